"""An interactive chat: the prompt, Ctrl-C and Ctrl-D, and the words that begin with a slash.

A line that begins with `/word` is for us and never sent; one that begins with a space always is.

Not here: what a turn is (`sitting.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine
from typing import Any

from forebay.cli import chat_view
from forebay.cli.failure import Failure
from forebay.cli.screen import print_json, say
from forebay.cli.sitting import Sitting, advice

_WORD = re.compile(r"/\w*(?=\s|$)")


def converse(sitting: Sitting) -> None:
    """Until Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - line editing and history, where Python has it
    if sitting.dialogue.id is not None:
        say(f"conversation: {sitting.dialogue}")
    say(f"{sitting.model}; /help lists the rest, Ctrl-C stops an answer, Ctrl-D leaves")
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
                _line(runner, sitting, text)


def _line(runner: asyncio.Runner, sitting: Sitting, text: str) -> None:
    ours = word_of(text) is not None
    try:
        runner.run(command(sitting, text) if ours else sitting.say(text))
    except KeyboardInterrupt:
        print("" if ours else f"\n({sitting.dialogue.when_stopped})", flush=True)
    except Failure as failure:
        if not ours:
            print()
        say(advice(failure, sitting.dialogue, "/new"))


def word_of(line: str) -> str | None:
    """The word of ours that a line begins with, there or not; None for what is to be said."""
    found = _WORD.match(line)
    return found and found[0]


async def command(sitting: Sitting, line: str) -> None:
    """Do what the line's word says. Raises Failure, also if there is no such word."""
    word = word_of(line)
    if word not in COMMANDS:
        raise Failure(
            f"There is no {word}; there are {', '.join(COMMANDS)}, and Ctrl-D leaves. Begin with a "
            "space to say it to the model."
        )
    if line.strip() != word:
        raise Failure(
            f"{word} stands alone on its line. Begin with a space to say this to the model."
        )
    await COMMANDS[word][1](sitting)


async def _history(sitting: Sitting) -> None:
    messages = await sitting.dialogue.history()
    if sitting.as_json:
        print_json(messages)
    else:
        print(chat_view.history(messages), flush=True)


async def _usage(sitting: Sitting) -> None:
    usage = await sitting.usage()
    if sitting.as_json:
        print_json(usage)
    else:
        chat_view.print_usage(usage)


async def _new(sitting: Sitting) -> None:
    await sitting.anew()
    if sitting.as_json:
        print_json({"conversation_id": sitting.dialogue.id})
    else:
        say(f"new conversation: {sitting.dialogue}")


async def _help(sitting: Sitting) -> None:
    means = {word: meaning for word, (meaning, _) in COMMANDS.items()} | KEYS
    if sitting.as_json:
        print_json(means)
        return
    width = max(map(len, means))
    print("\n".join(f"{word:{width}}  {meaning}" for word, meaning in means.items()), flush=True)


COMMANDS: dict[str, tuple[str, Callable[[Sitting], Coroutine[Any, Any, None]]]] = {
    "/history": ("what was said so far", _history),
    "/usage": ("what the answers took since you came, and what this key may use", _usage),
    "/new": ("begin a new conversation", _new),
    "/help": ("this list", _help),
}
KEYS = {
    "Ctrl-C": "stop the answer",
    "Ctrl-D": "leave",
    "a space": "before the first word: the line is sent to the model, whatever it says",
}
