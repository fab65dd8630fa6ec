"""`forebay chat`: talk to a model from the terminal, through the HTTP API like any other client.

Each answer is streamed and ends with what it took: `42 tok · 71 tok/s · first 0.11 s · $0.000017`.
The key comes from $FOREBAY_API_KEY, a file, or DATA_DIR/cli.key, never from the command line, and
the key of this machine is never sent to a server that was named with --url.

    chat.py ──▶ conversing.py (the prompt) ──▶ sitting.py (a turn) ──▶ dialogues.py, answering.py

Not here: the protocol and its failures (`answering.py`), what is remembered (`dialogues.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli import desk
from forebay.cli.failure import WRONG_USE, Failure
from forebay.cli.options import AsJson, with_settings
from forebay.cli.screen import say

if TYPE_CHECKING:
    from forebay.cli.answering import Target
    from forebay.cli.dialogues import Dialogue
    from forebay.cli.sitting import Sitting
    from forebay.config import Settings


@with_settings
def chat(
    message: Annotated[
        str | None,
        typer.Argument(metavar="MESSAGE", help="Answer this and exit."),
    ] = None,
    *,
    conversation: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Go on with this stored conversation; `new` begins one."),
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
    settings: Settings,
    as_json: AsJson = False,
) -> None:
    """Talk to a model.

    With a MESSAGE, or one piped in, it answers and exits; else it is a conversation, in which
    Ctrl-C stops an answer, Ctrl-D leaves and /help lists the rest. With --conversation the
    server stores it, so that it can be gone on with later.
    """
    from forebay.cli.conversing import converse
    from forebay.cli.sitting import Sitting
    from forebay.config import api_key_from_process

    if conversation is not None and not conversation.strip():
        raise Failure("--conversation is empty; name one by its id, or say `new`.", WRONG_USE)
    key = key_file.read_text().strip() if key_file else api_key_from_process()
    target = desk.run(settings, _target(settings, url, key))
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read()
    if message is not None and not message.strip():
        raise Failure("The message is empty.", WRONG_USE)
    dialogue, chosen = desk.run(settings, _open(target, conversation, model))
    sitting = Sitting(settings, target, dialogue, model=chosen, as_json=as_json)
    if message is None:
        converse(sitting)
    else:
        desk.run(settings, _once(sitting, message))
    # Whoever named it, knows it; programs read it in the answer.
    if sitting.dialogue.id not in (None, conversation) and not (message and as_json):
        same = {"--model": model, "--url": url, "--key-file": key_file}
        words = [str(word) for pair in same.items() if pair[1] is not None for word in pair]
        again = desk.hint(settings, "chat", "--conversation", str(sitting.dialogue.id), *words)
        say(f"go on with `{again}`")


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


async def _open(
    target: Target, conversation: str | None, model: str | None
) -> tuple[Dialogue, str]:
    """What is gone on with, and the model named or the first that the key may use."""
    from forebay.cli.answering import first_model
    from forebay.cli.dialogues import open_dialogue

    return await open_dialogue(target, conversation), model or await first_model(target)


async def _once(sitting: Sitting, message: str) -> None:
    from forebay.cli.sitting import advice

    try:
        await sitting.say(message)
    except Failure as failure:
        raise Failure(advice(failure, sitting.dialogue, "`--conversation new`")) from None
