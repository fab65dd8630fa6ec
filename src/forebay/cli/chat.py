"""`forebay chat`: talk to a model from the terminal, through the HTTP API like any other client.

Each answer is streamed and ends with what it took: `42 tok · 71 tok/s · first 0.11 s · $0.000017`.
The key comes from $FOREBAY_API_KEY, a file, or DATA_DIR/cli.key, never from the command line, and
the key of this machine is never sent to a server that was named with --url.

Not here: the protocol and its failures (`answering.py`).
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.failure import WRONG_USE, Failure
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import print_json, printable, say

if TYPE_CHECKING:
    import asyncio

    from forebay.cli.answering import Answer, Target
    from forebay.config import Settings


def chat(
    message: Annotated[
        str | None,
        typer.Argument(metavar="MESSAGE", help="Answer this and exit."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model to talk to; if not given, the server's first."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Base URL of the API; if not given, this machine's."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="File with the API key; else $FOREBAY_API_KEY, else this machine's own.",
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Talk to a model.

    With a MESSAGE, or one piped in, it answers and exits; else it is a conversation, in which
    Ctrl-C stops an answer and Ctrl-D leaves.
    """
    from forebay.config import api_key_from_process

    settings = desk.load(config, data_dir=data_dir)
    key = key_file.read_text().strip() if key_file else api_key_from_process()
    target = desk.run(settings, _target(settings, url, key))
    conversation = Conversation(settings, target, as_json=as_json)
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read()
    if message is not None and not message.strip():
        raise Failure("The message is empty.", WRONG_USE)
    desk.run(settings, conversation.choose(model))
    if message is not None:
        desk.run(settings, conversation.say(message))
    else:
        _converse(conversation)


async def _target(settings: Settings, url: str | None, key: str) -> Target:
    """Where to call, and with which key."""
    from forebay.cli.answering import Target
    from forebay.gateway.control import ControlFailed, call

    if url is not None:
        if not key:
            raise Failure("--url needs a key: set FOREBAY_API_KEY or use --key-file.", WRONG_USE)
        return Target(url, key, here=False)
    try:
        status = await call(settings.data_dir / desk.SOCKET, "status")
        root = status["urls"][0]
    except (ControlFailed, IndexError):
        start = desk.hint(settings, "up")
        said = [
            f"No server runs on {settings.data_dir}.",
            desk.elsewhere(settings),
            f"Start one with `{start}`, or name another one's --url.",
        ]
        raise Failure(" ".join(filter(None, said))) from None
    return Target(root, key or _own_key(settings), here=True)


def _own_key(settings: Settings) -> str:
    path = settings.data_dir / desk.CLI_KEY
    try:
        return path.read_text().strip()
    except OSError as fault:
        raise Failure(f"{path}: {fault.strerror}. Set FOREBAY_API_KEY instead.") from None


class Conversation:
    """The turns so far, in memory only."""

    def __init__(self, settings: Settings, target: Target, *, as_json: bool) -> None:
        self.model = ""
        self._settings = settings
        self._target = target
        self._as_json = as_json
        self._turns: list[dict[str, str]] = []
        self._partial: list[str] = []

    async def choose(self, model: str | None) -> None:
        """The model named, or the first that the key may use."""
        from forebay.cli.answering import first_model

        self.model = model or await first_model(self._target)

    async def say(self, text: str) -> None:
        """One turn. Raises Failure; then the turn never was."""
        from forebay.cli.answering import answer

        self._partial.clear()
        self._turns.append({"role": "user", "content": text})
        try:
            done = await answer(self._target, self.model, self._turns, self._show)
        except Failure:
            self._turns.pop()
            raise
        self._turns.append({"role": "assistant", "content": done.text})
        amount_usd = await self._amount_usd(done.call_id)
        if self._as_json:
            print_json({**asdict(done), "amount_usd": amount_usd})
        else:
            print("\n" + summary(done, amount_usd), flush=True)

    def stopped(self) -> None:
        """The person stopped the answer: what was said of it stays part of the conversation."""
        if self._partial:
            self._turns.append({"role": "assistant", "content": "".join(self._partial)})
        elif self._turns and self._turns[-1]["role"] == "user":
            self._turns.pop()

    def _show(self, text: str) -> None:
        self._partial.append(text)
        if not self._as_json:
            print(printable(text), end="", flush=True)

    async def _amount_usd(self, call_id: str) -> str | None:
        """From the usage row, which is durable before the answer ends; None for other servers."""
        from forebay.gateway.control import ControlFailed, call

        if not self._target.here:
            return None
        try:
            socket = self._settings.data_dir / desk.SOCKET
            rows: list[dict[str, Any]] = await call(socket, "usage", {"call_id": call_id})
        except ControlFailed:
            return None
        return str(rows[0]["amount_usd"]) if rows else None


def summary(done: Answer, amount_usd: str | None) -> str:
    """The line under an answer."""
    parts = [f"{done.output_tokens} tok"]
    if done.tokens_per_second is not None:
        parts.append(f"{done.tokens_per_second:.0f} tok/s")
    if done.first_token_seconds is not None:
        parts.append(f"first {done.first_token_seconds:.2f} s")
    if amount_usd is not None:
        parts.append(f"${amount_usd}")
    if done.finish_reason == "length":
        parts.append("cut at the output limit")
    return " · ".join(parts)


def _converse(conversation: Conversation) -> None:
    import asyncio

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - line editing and history, where Python has it
    say(f"{conversation.model}; Ctrl-C stops an answer, Ctrl-D leaves")
    with asyncio.Runner() as runner:
        while True:
            try:
                text = input("> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                continue
            if text.strip():
                _turn(runner, conversation, text)


def _turn(runner: asyncio.Runner, conversation: Conversation, text: str) -> None:
    try:
        runner.run(conversation.say(text))
    except KeyboardInterrupt:
        conversation.stopped()
        print("\n(stopped)", flush=True)
    except Failure as failure:
        print()
        say(str(failure))
