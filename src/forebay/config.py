"""Configuration: one frozen tree, read once, handed to wiring.

    flags  >  environment FOREBAY_…  >  YAML (--config or FOREBAY_CONFIG)  >  defaults

`Settings` is the tree; rooms define their own part of it as plain dataclasses, and pydantic is known
here only. `queue.flow_jobs` in the YAML is FOREBAY_QUEUE__FLOW_JOBS in the environment. Text means
the same in both: the schema decides whether `off`, `0.10` or `010` is a word or a number, never
YAML. Lists are replaced, not merged; an entry of `models` with a built-in's id changes that one.

- An unknown name is refused, with the place where it stands and the nearest known one.
- Problems are reported together, each with the flag, variable or path of the file it came from.
- A value whose field is marked secret is shown nowhere: not in errors, not by `describe`.

Not here: what a setting means (its room), credentials of callers (`forebay.tenancy`).
"""

# ruff: noqa: RUF009 - the defaults are frozen, and `_setting` answers a dataclass field.
from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError, create_model
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from forebay.admission import AdmissionSettings
from forebay.alerts import AlertSettings
from forebay.batch import BatchSettings
from forebay.catalog import BUILT_IN, SMOLLM2, LaneFactors, ModelSettings
from forebay.conversation import ConversationSettings
from forebay.core.wording import placed, plain
from forebay.engine.settings import ScriptedSettings
from forebay.gateway import GatewaySettings
from forebay.pipeline.kept import IdempotencySettings
from forebay.queue import QueueSettings
from forebay.tenancy import PlanSettings
from forebay.tokens import TokensSettings

PREFIX = "FOREBAY_"
_PLACES = {"data_dir": Path("~/.local/share/forebay"), "cache_dir": Path("~/.cache/forebay")}
_NOT_SETTINGS = {"FOREBAY_API_KEY", "FOREBAY_CONFIG"}  # `chat` and the printed curl read the key
_FLAGS = {"serve": "model"}  # those that are not called as their setting
# What Kubernetes puts into every container beside a Service whose name begins with forebay.
_SERVICE_LINK = re.compile(r".*_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


class ConfigError(Exception):
    """The configuration is refused; one line per problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))


def _setting(default: Any, help_sentence: str, *, secret: bool = False) -> Any:
    marks = {"help": help_sentence, "secret": secret}
    return field(default=default, metadata=marks, repr=not secret)


def _group(kind: type, help_sentence: str) -> Any:
    return _setting(kind(), help_sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an operator decides. `models` are those to serve, after `serve` has chosen."""

    data_dir: Path = _setting(_PLACES["data_dir"], "Directory of databases, keys and sockets.")
    cache_dir: Path = _setting(_PLACES["cache_dir"], "Directory of fetched weights.")
    host: str = _setting("127.0.0.1", "Address that the API listens on.")
    port: int = _setting(8080, "Port of the API; 0 takes a free one.")
    admin_host: str = _setting("127.0.0.1", "Address that metrics and health are served on.")
    admin_port: int = _setting(8081, "Port of metrics and health; 0 takes a free one.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Least severe log events that are written: debug, info, warning or error."
    )
    log_format: Literal["text", "json"] = _setting("text", "Form of the log: text or json.")
    serve: tuple[str, ...] = _setting((), "Names of the models to serve; if empty, all `models`.")
    pip_arguments: tuple[str, ...] = _setting(
        (), "More arguments for pip when it fetches weights, such as an index.", secret=True
    )
    engine_start_timeout_seconds: float = _setting(
        300.0, "Longest that loading and warming up an engine may take."
    )
    engine_step_timeout_seconds: float = _setting(
        60.0, "An engine with work that is silent for this long is restarted."
    )
    gateway: GatewaySettings = _group(GatewaySettings, "Limits and times of the HTTP side.")
    admission: AdmissionSettings = _group(AdmissionSettings, "How long calls may wait.")
    idempotency: IdempotencySettings = _group(IdempotencySettings, "Calls with a key of their own.")
    conversation: ConversationSettings = _group(ConversationSettings, "What is kept of dialogues.")
    batch: BatchSettings = _group(BatchSettings, "Bounds and times of files and batches.")
    queue: QueueSettings = _group(QueueSettings, "Bounds and weights of the queue.")
    tokens: TokensSettings = _group(TokensSettings, "Bounds of tokenising.")
    alerts: AlertSettings = _group(AlertSettings, "The webhooks of spend alerts.")
    scripted: ScriptedSettings = _group(ScriptedSettings, "The scripted engine, for tests.")
    lane_factors: LaneFactors = _group(LaneFactors, "Price factors of the lanes.")
    plans: tuple[PlanSettings, ...] = _setting((), "Plans beside, or instead of, `standard`.")
    models: tuple[ModelSettings, ...] = _setting((SMOLLM2,), "The models, one pool each.")
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("port", "admin_port"):
            if not 0 <= getattr(self, name) <= 65_535:
                raise ValueError(f"{name} is {getattr(self, name)}; ports are 0 to 65535")
        if self.port and (self.host, self.port) == (self.admin_host, self.admin_port):
            raise ValueError("admin_port is the same as port; they need one each")
        for name in ("engine_start_timeout_seconds", "engine_step_timeout_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if not self.models:
            raise ValueError("models: there must be at least one")
        names = {"plans": [plan.name for plan in self.plans]}
        names["models"] = [name for model in self.models for name in model.names()]
        for what, used in names.items():
            if repeated := [name for name in used if used.count(name) > 1]:
                raise ValueError(f"{what}: the name {repeated[0]!r} is used twice")


class Row(NamedTuple):
    """One setting as people see it."""

    name: str
    value: str
    default: str
    source: str
    help: str


def load_from_process(flags: Mapping[str, Any], config_path: Path | None = None) -> Settings:
    """`load` with this process's environment: the only place that reads it."""
    return load(flags, os.environ, config_path)  # noqa: TID251


def api_key_from_process() -> str:
    """The key that `forebay chat` should call with; empty if the environment has none."""
    return os.environ.get("FOREBAY_API_KEY", "")  # noqa: TID251


def load(
    flags: Mapping[str, Any], environ: Mapping[str, str], config_path: Path | None = None
) -> Settings:
    """The configuration. `flags` are settings by dotted name, None where not given.

    Raises ConfigError. Relative paths start at the working directory, in a file at the file's own.
    """
    home = environ.get("HOME", "")
    layers = [_Layer(home), _from_environment(environ, home)]
    for name, value in flags.items():
        if value is not None:
            flag = _FLAGS.get(name, name).replace("_", "-")
            layers[0].put(name, value, f"--{flag}")
    if config_path is None and environ.get("FOREBAY_CONFIG"):
        config_path = Path(environ["FOREBAY_CONFIG"])
    if config_path is not None:
        layers.append(_from_file(config_path, home))
    given = {name for layer in layers for name in layer.values}
    layers.append(_Layer(home))
    layers[-1].values = {name: path for name, path in _PLACES.items() if name not in given}
    for layer in layers:
        layer.values = layer.settle(layer.values, Settings, "")
    if problems := [problem for layer in layers for problem in layer.problems]:
        raise ConfigError(problems)
    settings = _validated(layers)
    origins = {path: origin for layer in reversed(layers) for path, origin in layer.written.items()}
    return _serving(replace(settings, origins=origins))


class _Layer:
    """One source of settings: nested values, and how its author wrote each name."""

    def __init__(self, home: str, *, base: Path | None = None, file: str = "") -> None:
        self.values: Any = {}
        self.written: dict[str, str] = {}
        self.problems: list[str] = []
        self.file = file
        self._home, self._base = home, base or Path()

    def put(self, path: str, value: Any, written: str) -> None:
        """Place one value by its dotted name."""
        *outer, last = path.split(".")
        inner = self.values
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = value
        self.written[path] = written

    def settle(self, value: Any, kind: Any, path: str) -> Any:
        """The value with its paths resolved and its alternatives decided; notes unknown names."""
        groups, item = _groups(kind), _item(kind)
        if value is None and kind in groups:  # a heading with nothing under it
            return {}
        if isinstance(value, Mapping) and groups:
            group = max(groups, key=lambda each: len(_hints(each).keys() & value.keys()))
            members = dict(self._members(value, group, path))
            return members if len(groups) == 1 else self._decide(members, group, path)
        if isinstance(value, list | tuple) and item is not None:
            entries = map(_from_built_in, value) if item is ModelSettings else value
            return [self.settle(each, item, f"{path}[{n}]") for n, each in enumerate(entries)]
        if isinstance(value, str) and value in ("none", "null") and NoneType in _alternatives(kind):
            return None
        if isinstance(value, str | Path) and Path in _alternatives(kind):
            if value == "":
                self.problems.append(f"{_origin(path, [self])}: is empty; name a path")
            return self._resolve(Path(value), path)
        return value

    def _members(self, value: Mapping[str, Any], group: Any, path: str) -> Iterator[Any]:
        hints = _hints(group)
        for name, each in value.items():
            inner = f"{path}.{name}" if path else name
            if self.file:
                self.written[inner] = f"{self.file}: {inner}"
            if name in hints:
                yield name, self.settle(each, hints[name], inner)
            else:
                unknown = f"{_origin(inner, [self])}: unknown setting"
                self.problems.append(unknown + _suggestion(name, hints))

    def _decide(self, members: dict[str, Any], group: Any, path: str) -> Any:
        """One of several groups (a wheel or a path), made alone so that errors speak of one."""
        try:
            return TypeAdapter(group).validate_python(members)
        except ValidationError as error:
            self.problems.extend(_explain(error, [self], path))
            return members

    def _resolve(self, path: Path, name: str) -> Path:
        if path.parts[:1] != ("~",):
            return (self._base / path).absolute()
        if not self._home:
            self.problems.append(f"{_origin(name, [self])}: {path} needs HOME, which is not set")
        return Path(self._home, *path.parts[1:])


def _from_environment(environ: Mapping[str, str], home: str) -> _Layer:
    layer = _Layer(home)
    known = {
        PREFIX + (path + name).upper().replace(".", "__"): (path + name, hint)
        for path, kind, _ in _walk()
        for name, hint in _hints(kind).items()
        if "[]" not in path and not _groups(hint)
    }
    for name in sorted(environ):
        ours = name.startswith(PREFIX) and environ[name] and name not in _NOT_SETTINGS
        if not ours or _SERVICE_LINK.fullmatch(name) or _SERVICE_ADDRESS.match(environ[name]):
            continue
        if name not in known:
            layer.problems.append(f"{name}: unknown variable{_suggestion(name, known)}")
            continue
        path, kind = known[name]
        value: Any = environ[name]
        if _item(kind) is not None:
            value = [value] if value == "*" else _parse(value, name)  # alone it means no YAML
            value = [each.strip() for each in value.split(",")] if isinstance(value, str) else value
        layer.put(path, value, name)
    return layer


def _from_file(path: Path, home: str) -> _Layer:
    try:
        content = path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError([f"cannot read {path}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path.name}: is not UTF-8 text; save it as UTF-8"]) from None
    layer = _Layer(home, base=path.absolute().parent, file=path.name)
    parsed = _parse(content, path.name)
    layer.values = {} if parsed is None else parsed
    if not isinstance(layer.values, dict):
        raise ConfigError([f"{path.name}: must be a mapping of settings at its top"])
    return layer


class _Loader(yaml.SafeLoader):
    """YAML in which every plain value is text, but for null, and names are text and unique."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            problem = "a name must be text"
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":null"):
                problem = f"{key.value!r} stands here twice" if key.value in seen else ""
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.endswith((":null", ":merge"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parse(content: str, where: str) -> Any:
    try:
        return yaml.load(content, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError([f"{where}{line}: {error.problem}"]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([f"{where}: not YAML: {error}".replace("\n", " ")]) from None


class _Given(PydanticBaseSettingsSource):
    """A layer as pydantic-settings takes it."""

    def __init__(self, tree: type[BaseSettings], values: dict[str, Any]) -> None:
        super().__init__(tree)
        self._values = values

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def _validated(layers: Sequence[_Layer]) -> Settings:
    """Merge the layers, the first wins, and check every value."""

    class Layered(BaseSettings):
        model_config = SettingsConfigDict(extra="forbid", allow_inf_nan=False)

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: Any, **__: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_Given(settings_cls, layer.values) for layer in layers)

    hints = _hints(Settings)
    schema: Any = {each.name: (hints[each.name], each.default) for each in _fields(Settings)}
    try:
        tree = create_model("Tree", __base__=Layered, **schema)()
        return Settings(**{name: getattr(tree, name) for name in schema})
    except ValidationError as error:
        raise ConfigError(_explain(error, layers, "")) from None
    except ValueError as error:  # of Settings itself; the message begins with the name
        name = re.split(r"[: ]", str(error))[0]
        path, text = placed(name, str(error), (name,))
        raise ConfigError([f"{_origin(path, layers)}: {text}"]) from None


def _explain(error: ValidationError, layers: Sequence[_Layer], prefix: str) -> Iterator[str]:
    """One line per problem, with the place where somebody wrote it."""
    for each in error.errors(include_url=False):
        path = prefix
        for part in each["loc"]:
            if isinstance(part, int):
                path += f"[{part}]"
            elif not part[:1].isupper():  # else the name of a class that was tried
                path += f".{part}" if path else part
        text = plain(each["msg"])
        if each["type"] == "value_error":
            entry = each["input"] if isinstance(each["input"], Mapping) else {}
            names = (path, path.rpartition(".")[2], f"models.{entry.get('id')}", "models")
            path, text = placed(path, str(each["ctx"]["error"]), names)
        elif each["type"] != "missing" and not _is_secret(path):
            text += f", not {each['input']!r:.60}"
        yield f"{_origin(path, layers)}: {text}"


def _origin(path: str, layers: Sequence[_Layer]) -> str:
    """The nearest that somebody wrote: the setting, what it is part of, or its parts."""
    parts = re.split(r"(?=[.\[])", path)
    for length in range(len(parts), 0, -1):
        for layer in layers:
            if origin := layer.written.get("".join(parts[:length])):
                if layer.file:
                    return f"{layer.file}: {path}"
                return origin if length == len(parts) else f"{origin} ({path})"
    inner = [layer.written[each] for layer in layers for each in layer.written if path in each]
    return ", ".join(inner) or path


def _from_built_in(entry: Any) -> Any:
    """An entry of `models`: a name alone, or changes to the built-in of that id."""
    entry = {"id": entry} if isinstance(entry, str) else entry
    for model in BUILT_IN:
        if isinstance(entry, dict) and entry.get("id") == model.id:
            return {each.name: getattr(model, each.name) for each in fields(model)} | entry
    return entry


def _serving(settings: Settings) -> Settings:
    """Leaves the models that `serve` names, by id or alias, built-ins included; all if empty."""
    named = {name: each for each in (*BUILT_IN, *settings.models) for name in each.names()}
    if unknown := [name for name in settings.serve if name not in named]:
        where = settings.origins["serve"]
        raise ConfigError(
            f"{where}: no model {each!r}{_suggestion(each, named)}" for each in unknown
        )
    chosen = tuple(dict.fromkeys(named[name] for name in settings.serve))
    return replace(settings, models=chosen or settings.models)


def describe(settings: Settings) -> list[Row]:
    """Every setting as it is, for `doctor`; entries of a list by their names."""
    return list(_rows(settings, "", "", settings.origins))


def _rows(group: Any, prefix: str, entry_of: str, origins: Mapping[str, str]) -> Iterator[Row]:
    for each in _fields(type(group)):
        value, path = getattr(group, each.name), prefix + each.name
        if is_dataclass(value):
            yield from _rows(value, f"{path}.", entry_of, origins)
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for entry in value:
                yield from _rows(entry, f"{path}.{_shown(entry)}.", path, origins)
        else:
            source = origins.get(entry_of or path, "default")
            shown = "(set)" if value and each.metadata.get("secret") else _shown(value)
            yield Row(path, shown, _default(each), source, each.metadata["help"])


def settings_page() -> str:
    """docs/reference/settings.md, made from the code."""
    lines = [
        "# Settings",
        "",
        "A flag wins over the environment, the environment over the YAML file (`--config` or",
        "`FOREBAY_CONFIG`), the file over the default. `queue.flow_jobs` in the file is",
        "`FOREBAY_QUEUE__FLOW_JOBS` in the environment; lists are written there as YAML, or as names",
        "with commas. An entry of `models` that has the id of a built-in model changes that one.",
    ]
    for path, kind, meaning in _walk():
        title = f"`{path.rstrip('.')}`: {meaning}" if path else "At the top"
        lines += ["", f"## {title}", "", "| Setting | Default | Meaning |", "| --- | --- | --- |"]
        for each in _fields(kind):
            if not is_dataclass(each.default):
                lines.append(f"| `{each.name}` | `{_default(each)}` | {each.metadata['help']} |")
    return "\n".join([*lines, ""])


def _walk(
    kind: Any = Settings, path: str = "", meaning: str = ""
) -> Iterator[tuple[str, Any, str]]:
    """Every group of settings with its place: "", "queue.", "models[].", "models[].source."."""
    yield path, kind, meaning
    for each in _fields(kind):
        hint = _hints(kind)[each.name]
        place = path + each.name + ("[]." if _item(hint) else ".")
        for group in _groups(_item(hint) or hint):
            yield from _walk(group, place, each.metadata["help"])


def _is_secret(path: str) -> bool:
    marked = {f.name for _, kind, _ in _walk() for f in _fields(kind) if f.metadata.get("secret")}
    return not marked.isdisjoint(re.findall(r"\w+", path))


def _fields(kind: Any) -> list[Field[Any]]:
    """A group's settings: the fields that say what they mean."""
    return [each for each in fields(kind) if "help" in each.metadata]


def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in _fields(kind)}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _groups(kind: Any) -> list[Any]:
    return [each for each in _alternatives(kind) if is_dataclass(each)]


def _item(kind: Any) -> Any:
    """What a list is made of; None for what is no list."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(sorted(known))}"


def _default(each: Field[Any]) -> str:
    return "required" if each.default is MISSING else _shown(each.default)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value)) or "none"
    if is_dataclass(value):  # an entry of a list
        return str(getattr(value, "id", None) or getattr(value, "name", value))
    text = str(value.value if isinstance(value, Enum) else value)
    return {"None": "none", "True": "true", "False": "false", "": "none"}.get(text, text)
