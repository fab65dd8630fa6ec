"""`forebay chat`: talk to a model from the terminal, through the HTTP API like any other client.

Each answer is streamed and ends with what it took: `42 tok · 71 tok/s · first 0.11 s · $0.000017`.

    chat.py ──▶ conversing.py (the prompt) ──▶ sitting.py (a turn) ──▶ dialogues.py, answering.py

Not here: which server and key (`server.py`), the protocol and its failures (`answering.py`), what is
remembered (`dialogues.py`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli import desk
from forebay.cli.failure import WRONG_USE, Failure
from forebay.cli.options import AsJson
from forebay.cli.screen import say
from forebay.cli.server import Server, with_server

if TYPE_CHECKING:
    from forebay.cli.answering import Target
    from forebay.cli.dialogues import Dialogue
    from forebay.cli.sitting import Sitting


@with_server
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
    server: Server,
    as_json: AsJson = False,
) -> None:
    """Talk to a model.

    With a MESSAGE, or one piped in, it answers and exits; else it is a conversation, in which
    Ctrl-C stops an answer, Ctrl-D leaves and /help lists the rest. With --conversation the
    server stores it, so that it can be gone on with later.
    """
    from forebay.cli.conversing import converse
    from forebay.cli.sitting import Sitting

    if conversation is not None and not conversation.strip():
        raise Failure("--conversation is empty; name one by its id, or say `new`.", WRONG_USE)
    settings = server.settings
    target = desk.run(settings, server.target())
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
        named = () if model is None else ("--model", model)
        again = server.hint("chat", "--conversation", str(sitting.dialogue.id), *named)
        say(f"go on with `{again}`")


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
