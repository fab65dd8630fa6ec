"""Which server a command is a client of, and with which key: this machine's, or one that was named.

The key comes from $FOREBAY_API_KEY, a file, or DATA_DIR/cli.key, never from the command line, and
the key of this machine is never sent to a server that was named with --url.

Not here: what is asked of it (`answering.py`, `batching.py`), the control socket (`desk.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.failure import WRONG_USE, Failure
from forebay.cli.options import with_settings

if TYPE_CHECKING:
    from forebay.cli.answering import Target
    from forebay.config import Settings

_Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Base URL of the API; if not given, this machine's."),
]
_KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="File with the API key; else $FOREBAY_API_KEY, else this machine's own.",
    ),
]


@dataclass(frozen=True, slots=True)
class Server:
    """What was said on the command line about the server."""

    settings: Settings
    url: str | None
    key_file: Path | None

    async def target(self) -> Target:
        """Where to call, and with which key. Raises Failure if no server runs here."""
        from forebay.cli.answering import Target
        from forebay.config import api_key_from_process
        from forebay.gateway.control import ControlFailed, call

        key = self.key_file.read_text().strip() if self.key_file else api_key_from_process()
        if self.url is not None:
            if not key:
                raise Failure(
                    "--url needs a key: set FOREBAY_API_KEY or use --key-file.", WRONG_USE
                )
            return Target(self.url, key, here=False)
        try:
            status = await call(self.settings.data_dir / desk.SOCKET, "status")
            root = status["urls"][0]
        except (ControlFailed, IndexError):
            raise Failure(self._nobody()) from None
        return Target(root, key or self._own_key(), here=True)

    def hint(self, *arguments: str) -> str:
        """A command to type that reaches the same server."""
        same = {"--url": self.url, "--key-file": self.key_file}
        words = [str(word) for pair in same.items() if pair[1] is not None for word in pair]
        return desk.hint(self.settings, *arguments, *words)

    def _nobody(self) -> str:
        start = desk.hint(self.settings, "up")
        said = [
            f"No server runs on {self.settings.data_dir}.",
            desk.elsewhere(self.settings),
            f"Start one with `{start}`, or name another one's --url.",
        ]
        return " ".join(filter(None, said))

    def _own_key(self) -> str:
        path = self.settings.data_dir / desk.CLI_KEY
        try:
            return path.read_text().strip()
        except OSError as fault:
            raise Failure(f"{path}: {fault.strerror}. Set FOREBAY_API_KEY instead.") from None


def with_server(command: Callable[..., None]) -> Callable[..., None]:
    """The command as people call it: with options that name a server where it takes `server`.

    Its other parameters stay what they are.
    """

    def run(*, settings: Settings, url: str | None, key_file: Path | None, **given: Any) -> None:
        command(server=Server(settings, url, key_file), **given)

    own = inspect.signature(command, eval_str=True)
    run.__signature__ = own.replace(parameters=list(_options(own)))  # type: ignore[attr-defined]
    run.__doc__ = command.__doc__
    return with_settings(run)


def _options(own: inspect.Signature) -> Iterator[inspect.Parameter]:
    for parameter in own.parameters.values():
        if parameter.name != "server":
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        for name, option in (("url", _Url), ("key_file", _KeyFile)):
            yield parameter.replace(
                name=name, kind=inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option
            )
        yield parameter.replace(
            name="settings", kind=inspect.Parameter.KEYWORD_ONLY, annotation=Any
        )
