"""Configuration: what wins, what is refused and how it is said, what is shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from forebay import config
from forebay.batch import window_seconds
from forebay.catalog import SCRIPTED, SMOLLM2, PathSource, WheelSource
from forebay.config import ConfigError, Settings, describe, load, settings_page
from forebay.core.job import Lane
from forebay.gateway import KeepAlive
from forebay.tenancy import PlanSettings

HOME = {"HOME": "/home/me"}
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "forebay.yaml"
        path.write_text(text)
        return path

    return written


def settings(
    environ: Mapping[str, str] | None = None, path: Path | None = None, **flags: Any
) -> Settings:
    return load(flags, HOME | dict(environ or {}), path)


def problems(
    environ: Mapping[str, str] | None = None, path: Path | None = None, **flags: Any
) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        settings(environ, path, **flags)
    assert str(refused.value) == "\n".join(refused.value.problems)
    return refused.value.problems


def test_without_any_configuration_everything_has_its_default() -> None:
    made = settings()
    assert (made.host, made.port, made.admin_host, made.admin_port) == (
        "127.0.0.1",
        8080,
        "127.0.0.1",
        8081,
    )
    assert made.data_dir == Path("/home/me/.local/share/forebay")
    assert made.cache_dir == Path("/home/me/.cache/forebay")
    assert made.gateway.max_body_bytes == 4 * 1024 * 1024
    assert made.models == (SMOLLM2,)
    assert made.plans == ()
    assert (made.queue.flow_jobs, made.queue.lane_jobs) == (256, 2048)
    assert (made.lane_factors.premium, made.lane_factors.batch) == (Decimal("1.5"), Decimal("0.5"))


def test_flags_win_over_environment_over_file_over_defaults(write: Write) -> None:
    path = write("port: 1\nadmin_port: 2\nhost: file\nqueue: {flow_jobs: 5, lane_jobs: 6}\n")
    environ = {
        "FOREBAY_PORT": "3",
        "FOREBAY_ADMIN_PORT": "4",
        "FOREBAY_QUEUE__FLOW_JOBS": "7",
    }
    made = load({"port": 9, "queue.window_seconds": 8}, HOME | environ, path)
    assert (made.port, made.admin_port, made.host) == (9, 4, "file")
    queue = made.queue
    assert (queue.flow_jobs, queue.lane_jobs, queue.window_seconds, queue.w_in) == (7, 6, 8, 10)


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    assert settings({"FOREBAY_PORT": "3"}, port=None).port == 3


def test_the_file_is_named_by_the_flag_or_else_by_the_environment(
    write: Write, tmp_path: Path
) -> None:
    path = write("port: 1")
    other = tmp_path / "other.yaml"
    other.write_text("port: 2")
    assert settings({"FOREBAY_CONFIG": str(path)}).port == 1
    assert settings({"FOREBAY_CONFIG": str(path)}, other).port == 2


@pytest.mark.parametrize("text", ["", "# nothing\n", "queue:\nmodels: [scripted]\n"])
def test_an_empty_file_or_heading_changes_nothing(write: Write, text: str) -> None:
    assert settings(path=write(text)).queue == settings().queue


def test_words_of_yaml_1_1_stay_words_and_amounts_stay_exact(write: Write) -> None:
    """`off` would be false, 010 eight and 0.10 a float, if YAML had its way."""
    path = write(
        "models:\n"
        "- id: smollm2-135m-instruct\n"
        "  prefix_cache: off\n"
        "  input_usd_per_million: 0.1000\n"
        "  source: {distribution: a, version: 0.10, member: a.gguf, size_bytes: 010,"
        f" sha256: {'0' * 64}}}\n"
        "gateway: {keep_alive: off}\n"
    )
    made = settings(path=path)
    (model,) = made.models
    assert model.prefix_cache == "off"
    assert str(model.input_usd_per_million) == "0.1000"
    assert isinstance(model.source, WheelSource)
    assert (model.source.version, model.source.size_bytes) == ("0.10", 10)
    assert made.gateway.keep_alive is KeepAlive.OFF


@pytest.mark.parametrize("nothing", ["none", "null", "~", ""])
def test_a_limit_can_be_lifted(write: Write, nothing: str) -> None:
    path = write(f"admission: {{premium_deadline_seconds: {nothing}}}")
    assert settings(path=path).admission.premium_deadline_seconds is None


def test_a_limit_can_be_lifted_in_the_environment() -> None:
    made = settings({"FOREBAY_ADMISSION__INTERACTIVE_DEADLINE_SECONDS": "none"})
    assert made.admission.interactive_deadline_seconds is None


def test_an_entry_with_a_built_ins_id_changes_that_one(write: Write) -> None:
    path = write("models: [{id: smollm2-135m-instruct, max_sequences: 4}, scripted]")
    changed, scripted = settings(path=path).models
    assert changed == dataclasses.replace(SMOLLM2, max_sequences=4)
    assert scripted == SCRIPTED


def test_a_model_of_ones_own_lies_beside_the_file(write: Write, tmp_path: Path) -> None:
    path = write("models: [{id: mine, aliases: [default], source: {path: weights/mine.gguf}}]")
    (model,) = settings(path=path).models
    assert model.source == PathSource(path=tmp_path / "weights" / "mine.gguf")
    assert model.aliases == ("default",)


def test_serve_chooses_by_id_or_alias_among_configured_and_built_in_models(write: Write) -> None:
    path = write("models: [{id: mine, engine: scripted, aliases: [my]}, smollm2-135m-instruct]")
    assert [model.id for model in settings(path=path).models] == ["mine", SMOLLM2.id]
    assert [model.id for model in settings(path=path, serve=("my", "mine")).models] == ["mine"]
    served = settings({"FOREBAY_SERVE": "scripted, small"}, path).models
    assert [model.id for model in served] == ["scripted", SMOLLM2.id]
    assert settings(serve=()).models == (SMOLLM2,)


def test_a_configured_model_hides_the_built_in_of_its_name(write: Write) -> None:
    path = write("models: [{id: scripted, engine: scripted, max_sequences: 3}]")
    assert settings(path=path, serve=("scripted",)).models[0].max_sequences == 3


def test_plans_come_from_the_configuration(write: Write) -> None:
    path = write("plans: [{name: gold, weight: 4, lanes: [premium, interactive]}]")
    assert settings(path=path).plans == (
        PlanSettings(name="gold", weight=4, lanes=(Lane.PREMIUM, Lane.INTERACTIVE)),
    )


def test_lists_in_the_environment_are_yaml_or_names_with_commas() -> None:
    assert settings({"FOREBAY_PIP_ARGUMENTS": "['-v', \"--proxy=a,b\"]"}).pip_arguments == (
        "-v",
        "--proxy=a,b",
    )
    made = settings({"FOREBAY_PLANS": "[{name: gold}]"})
    assert made.plans == (PlanSettings(name="gold"),)


def test_paths_start_at_home_the_working_directory_or_the_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert settings({"FOREBAY_DATA_DIR": "data"}).data_dir == Path("/data")
    assert settings(data_dir=Path("~/data")).data_dir == Path("/home/me/data")
    assert settings(path=write("data_dir: data")).data_dir == tmp_path / "data"
    assert settings(path=write("data_dir: /data")).data_dir == Path("/data")


def test_home_is_needed_only_where_it_is_used() -> None:
    with pytest.raises(ConfigError, match=r"cache_dir: ~/\.cache/forebay needs HOME"):
        load({"data_dir": "/d"}, {})
    made = load({"data_dir": "/d", "cache_dir": "/c"}, {})
    assert (made.data_dir, made.cache_dir) == (Path("/d"), Path("/c"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prot: 1", "forebay.yaml: prot: unknown setting; did you mean port?"),
        (
            "queue: {flow_jobz: 1}",
            "forebay.yaml: queue.flow_jobz: unknown setting; did you mean flow_jobs?",
        ),
        (
            "models: [{id: scripted, context: 1}]",
            "forebay.yaml: models[0].context: unknown setting; did you mean context_tokens?",
        ),
        (
            "models: [{id: m, source: {path: a, sha: b}}]",
            "forebay.yaml: models[0].source.sha: unknown setting; did you mean sha256?",
        ),
        ("lane_factors: {zzz: 1}", "forebay.yaml: lane_factors.zzz: unknown setting; there are: "),
        ("port: x", "forebay.yaml: port: must be a whole number, not 'x'"),
        ("port: null", "forebay.yaml: port: must be a whole number, not None"),
        ("port: true", "forebay.yaml: port: must be a whole number, not 'true'"),
        ("port: [1]", "forebay.yaml: port: must be a whole number, not ['1']"),
        ("port: 65536", "forebay.yaml: port: is 65536; ports are 0 to 65535"),
        ("port: 8081", "admin_port: is the same as port"),
        ("log_level: loud", "forebay.yaml: log_level: must be 'debug', 'info', 'warning' or"),
        ("queue: 5", "forebay.yaml: queue: must be a group of settings (names with values), not"),
        ("queue: {flow_jobs: 0}", "forebay.yaml: queue.flow_jobs: is 0"),
        ("queue: {flow_jobs: 1.5}", "forebay.yaml: queue.flow_jobs: must be a whole number"),
        ("gateway: {body_seconds: .nan}", "forebay.yaml: gateway.body_seconds: must be a "),
        ("engine_start_timeout_seconds: inf", "forebay.yaml: engine_start_timeout_seconds: "),
        ("engine_step_timeout_seconds: 0", "forebay.yaml: engine_step_timeout_seconds: "),
        ("lane_factors: {batch: -1}", "forebay.yaml: lane_factors.batch: must be 0"),
        ("scripted: {evicts: maybe}", "forebay.yaml: scripted.evicts: must be true or false"),
        ("conversation: {max_items: 0}", "forebay.yaml: conversation.max_items: is 0; it must be"),
        ("conversation: {summary_tokens: 0}", "forebay.yaml: conversation.summary_tokens: is 0"),
        ("conversation: {summary_share: 60}", "forebay.yaml: conversation.summary_share: is 60"),
        ("conversation: {summary_payer: me}", "forebay.yaml: conversation.summary_payer: must be"),
        ("batch: {max_lines: 0}", "forebay.yaml: batch.max_lines: is 0; it must be 1 or more"),
        ("batch: {window_items: -1}", "forebay.yaml: batch.window_items: is -1"),
        ("batch: {without_budget: ask}", "forebay.yaml: batch.without_budget: must be 'wait' or"),
        ("batch: {completion_windows: []}", "forebay.yaml: batch.completion_windows: is empty"),
        (
            "batch: {completion_windows: [24h, 1.5h]}",
            "forebay.yaml: batch.completion_windows: '1.5h' is not a time like 24h or 30m",
        ),
        ("batch: {completion_windows: 24h}", "forebay.yaml: batch.completion_windows: must be a"),
        ("plans: [{weight: 0}]", "forebay.yaml: plans[0]: weight must be between 1 and"),
        ("plans: [{lanes: [fast]}]", "forebay.yaml: plans[0].lanes[0]: must be 'premium', "),
        ("plans: [{name: a}, {name: a}]", "forebay.yaml: plans: the name 'a' is used twice"),
        ("plans: gold", "forebay.yaml: plans: must be a list"),
        ("models: []", "forebay.yaml: models: there must be at least one"),
        ("models: [{engine: scripted}]", "forebay.yaml: models[0].id: is missing"),
        ("models: [scripted, scripted]", "forebay.yaml: models: the name 'scripted' is"),
        ("models: [nobody]", "forebay.yaml: models[0].source: an openvino model"),
        ("models: [{id: m, engine: vllm, source: {path: a}}]", "forebay.yaml: models[0].engine: "),
        ("models: [{id: m, source: 5}]", "forebay.yaml: models[0].source: must be a group of"),
        ("serve: [smal]", "forebay.yaml: serve: no model 'smal'; did you mean small?"),
        ("port: 1\nhost: a\nport: 2", "forebay.yaml:3: 'port' stands here twice"),
        ("queue: {w_in: 1, w_in: 2}", "forebay.yaml:1: 'w_in' stands here twice"),
        ("[1]: 2", "forebay.yaml:1: a name must be text"),
        ("port: 1\n bad: 2", "forebay.yaml:2: mapping values are not allowed here"),
        ("port: 'x", "forebay.yaml:1: found unexpected end of stream"),
        ("- port", "forebay.yaml: must be a mapping of settings at its top"),
        ("just text", "forebay.yaml: must be a mapping of settings at its top"),
        ("a: !!python/object:os.system {}", "forebay.yaml:1: could not determine a constructor"),
        ("data_dir: ''", "forebay.yaml: data_dir: is empty; name a path"),
        (
            "models: [{id: m, kv_tokens: 5, source: {path: a}}]",
            "forebay.yaml: models[0].kv_tokens: is",
        ),
        ("port: \x01", "forebay.yaml: not YAML: unacceptable character"),
    ],
)
def test_what_a_file_gets_wrong_is_said_with_its_place(
    write: Write, text: str, expected: str
) -> None:
    found = problems(path=write(text))
    assert any(problem.startswith(expected) for problem in found), found


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("*", ("*",)),
        ("https://a.example", ("https://a.example",)),
        (
            "https://a.example, http://localhost:3000",
            ("https://a.example", "http://localhost:3000"),
        ),
        ("['*']", ("*",)),
    ],
)
def test_origins_in_the_environment_need_no_quotes(text: str, origins: tuple[str, ...]) -> None:
    assert settings({"FOREBAY_GATEWAY__CORS_ORIGINS": text}).gateway.cors_origins == origins


def test_origins_and_the_public_address_in_a_file_are_checked(write: Write) -> None:
    made = settings(path=write("gateway: {cors_origins: ['*'], public_url: 'https://a.example'}"))
    assert (made.gateway.cors_origins, made.gateway.public_url) == (("*",), "https://a.example")
    for text, expected in (
        ("gateway: {cors_origins: [a.example]}", "gateway.cors_origins: 'a.example' is no origin"),
        ("gateway: {cors_origins: '*'}", "gateway.cors_origins: must be a list, not '*'"),
        ("gateway: {public_url: a.example}", "gateway.public_url: is 'a.example', but must be an"),
    ):
        (problem,) = problems(path=write(text))
        assert problem.startswith(f"forebay.yaml: {expected}")


def test_windows_of_batches_are_times_with_a_unit(write: Write) -> None:
    assert settings().batch.completion_windows == ("24h",)
    made = settings(path=write("batch: {completion_windows: [30s, 90m, 24h, 7d]}"))
    windows = {each: window_seconds(each) for each in made.batch.completion_windows}
    assert windows == {"30s": 30, "90m": 5_400, "24h": 86_400, "7d": 604_800}
    made = settings({"FOREBAY_BATCH__COMPLETION_WINDOWS": "1h, 24h"})
    assert made.batch.completion_windows == ("1h", "24h")
    for text in ("", "h", "0h", "01h", "24", "24 h", "-1h", "1w", "1h\n", "1234567s", "٣h"):
        with pytest.raises(ValueError, match="is not a time like 24h or 30m"):
            window_seconds(text)


@pytest.mark.parametrize("content", ["port: 1".encode("utf-16"), b"\xff\xfe", b"host: \xe9"])
def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_bytes(content)
    assert problems(path=path) == ("forebay.yaml: is not UTF-8 text; save it as UTF-8",)


def test_the_mark_that_some_editors_put_before_utf_8_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_bytes(b"\xef\xbb\xbfport: 1\nhost: h\xc3\xa9\n")
    assert (settings(path=path).port, settings(path=path).host) == (1, "hé")
    path.write_bytes(b"\xef\xbb\xbf")
    assert settings(path=path) == settings()


def test_no_problem_speaks_the_language_of_a_library(write: Write) -> None:
    text = "queue: 5\nplans: gold\nport: x\nhost: [1]\nmodels: [{id: m, source: 5}, [a], {}]\n"
    found = problems(path=write(text))
    assert len(found) == 7
    for word in ("Settings", "Source", "tuple", "dictionary", "instance", "Value error", "Input"):
        assert word not in str(found)


def test_all_problems_are_said_at_once(write: Write) -> None:
    path = write("prot: 1\nqueue: {flow_jobz: 1}\n")
    assert len(problems({"FOREBAY_HOTS": "x"}, path, porrt=1)) == 4
    assert len(problems(path=write("port: x\nqueue: {w_in: y, w_out: z}\n"))) == 3


def test_problems_name_the_flag_or_the_variable() -> None:
    assert problems(port=70_000) == ("--port: is 70000; ports are 0 to 65535",)
    assert problems(porrt=1) == ("--porrt: unknown setting; did you mean port?",)
    (problem,) = problems({"FOREBAY_QUEUE__FLOW_JOBS": "many"})
    assert problem.startswith("FOREBAY_QUEUE__FLOW_JOBS: must be a whole number")
    (problem,) = problems({"FOREBAY_QUEUE__FLOW_JOBS": "0"})
    assert problem.startswith("FOREBAY_QUEUE__FLOW_JOBS: is 0")
    (problem,) = problems({"FOREBAY_MODELS": "[{id: m, engine: x, source: {path: a}}]"})
    assert problem.startswith("FOREBAY_MODELS (models[0].engine): must be ")
    assert problems({"FOREBAY_SERVE": "[a"})[0].startswith("FOREBAY_SERVE:1: ")


def test_unknown_variables_are_refused_with_the_nearest() -> None:
    assert problems({"FOREBAY_QUEUE__FLOW_JOBZ": "1"}) == (
        "FOREBAY_QUEUE__FLOW_JOBZ: unknown variable; did you mean FOREBAY_QUEUE__FLOW_JOBS?",
    )
    assert "unknown variable" in problems({"FOREBAY_QUEUE": "{}"})[0]


def test_variables_that_others_put_there_are_left_alone() -> None:
    environ = {
        "FOREBAY_API_KEY": "fbk_live_x",
        "FOREBAY_PORT": "tcp://10.0.0.1:80",
        "FOREBAY_SERVICE_HOST": "10.0.0.1",
        "FOREBAY_SERVICE_PORT_HTTP": "80",
        "FOREBAY_GATEWAY_PORT_80_TCP_ADDR": "10.0.0.1",
        "FOREBAY_HOST": "",
        "PATH": "/bin",
    }
    assert settings(environ) == settings()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert problems(path=missing) == (f"cannot read {missing}: No such file or directory",)
    assert problems({"FOREBAY_CONFIG": str(tmp_path)})[0].endswith("Is a directory")


def test_secrets_are_shown_nowhere(write: Write) -> None:
    text = "pip_arguments: [--index-url=https://me:hunter2@index.example]"
    made = settings(path=write(text))
    assert "hunter2" in made.pip_arguments[0]
    shown = [row for row in describe(made) if row.name == "pip_arguments"]
    assert [row.value for row in shown] == ["(set)"]
    assert "hunter2" not in repr(made) + repr(describe(made))
    found = problems(path=write("pip_arguments: {hunter2: [hunter2]}"))
    assert "hunter2" not in repr(found)
    found = problems({"FOREBAY_PIP_ARGUMENTS": "[a, [hunter2]]"})
    assert "hunter2" not in repr(found)


def test_describe_says_where_each_value_came_from(write: Write) -> None:
    path = write("host: h\nmodels: [scripted]\nqueue: {w_in: 1, w_out: 2}\n")
    made = load({"port": 1}, HOME | {"FOREBAY_QUEUE__W_IN": "3"}, path)
    rows = {row.name: row for row in describe(made)}
    assert rows["port"][:4] == ("port", "1", "8080", "--port")
    assert rows["host"][:4] == ("host", "h", "127.0.0.1", "forebay.yaml: host")
    assert rows["queue.w_in"][1:4] == ("3", "10", "FOREBAY_QUEUE__W_IN")
    assert rows["queue.w_out"][1:4] == ("2", "40", "forebay.yaml: queue.w_out")
    assert rows["queue.w_cached"][1:4] == ("1", "1", "default")
    assert rows["models.scripted.engine"][1:4] == ("scripted", "openvino", "forebay.yaml: models")
    assert rows["admission.batch_deadline_seconds"].value == "none"
    assert rows["scripted.evicts"].value == "false"
    assert rows["gateway.keep_alive"].value == "comment"
    assert rows["data_dir"][1:4] == (
        "/home/me/.local/share/forebay",
        "~/.local/share/forebay",
        "default",
    )


def test_every_setting_has_a_help_sentence_and_outside_of_lists_a_default() -> None:
    for path, kind, _ in config._walk():
        for each in dataclasses.fields(kind):
            if each.name == "origins":
                continue
            sentence = each.metadata["help"]
            assert sentence.endswith("."), f"{path}{each.name}"
            assert "[]" in path or each.default is not dataclasses.MISSING, f"{path}{each.name}"


def test_the_settings_page_names_every_setting() -> None:
    page = settings_page()
    for path, kind, _ in config._walk():
        assert not path or f"## `{path.rstrip('.')}`" in page
        for each in dataclasses.fields(kind):
            if each.name != "origins" and not dataclasses.is_dataclass(each.default):
                assert f"| `{each.name}` |" in page
    assert "| `port` | `8080` | Port of the API; 0 takes a free one. |" in page
    assert page.endswith("|\n")


def test_the_process_environment_is_read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("FOREBAY_PORT", "1234")
    assert config.load_from_process({}).port == 1234
    assert config.load_from_process({"port": 2}).port == 2


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().port = 1  # type: ignore[misc]
