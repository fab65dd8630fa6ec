"""`forebay chat` as people and scripts use it: one message, a terminal, stored conversations."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
from openai import OpenAI

from tests.e2e.running import PROGRAM, Server, environment, eventually, forebay

# An answer takes at most 4 s: long enough to be stopped, short enough to be waited for.
MODEL = {
    "id": "scripted",
    "engine": "scripted",
    "context_tokens": 1024,
    "default_output_tokens": 400,
}
ENV = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.01", "FOREBAY_MODELS": json.dumps([MODEL])}
LOST = "conv_0000000000"
CONVERSATION = re.compile(r"\bconv_\w+")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server.start(data_dir=tmp_path_factory.mktemp("chat"), env=ENV) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0) as client:
        yield client


class Terminal:
    """A pseudo-terminal in which a chat runs."""

    def __init__(self, server: Server, *arguments: str) -> None:
        self._terminal, end = os.openpty()
        self.process = subprocess.Popen(
            [PROGRAM, "chat", "--data-dir", str(server.data_dir), *arguments],
            stdin=end,
            stdout=end,
            stderr=end,
            env=environment({"TERM": "dumb"}),
            start_new_session=True,
        )
        os.close(end)
        os.set_blocking(self._terminal, False)
        self._seen = ""

    def __enter__(self) -> Terminal:
        self.until("\n> ")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)
        if kind is not None:
            print(self._seen)

    def until(self, text: str) -> str:
        """All that is shown up to this and with it; what came before is forgotten."""
        eventually(lambda: text in self._look(), what=f"{text!r} is shown")
        shown, _, self._seen = self._seen.partition(text)
        return shown + text

    def line(self, text: str) -> str:
        """Type it and see what comes, up to the next prompt."""
        self.type(f"{text}\n")
        return self.until("\n> ")

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def leave(self) -> str:
        """Ctrl-D; what is said at the end."""
        self.type("\x04")
        assert self.process.wait(30) == 0
        return self._look()

    def _look(self) -> str:
        with contextlib.suppress(OSError):
            self._seen += os.read(self._terminal, 65536).decode().replace("\r\n", "\n")
        return self._seen


def script(text: str, length: int = 4) -> str:
    return f"{text} [[script length={length}]]"


def said(client: OpenAI, id: str) -> list[str]:
    items = client.conversations.items.list(id, order="asc", limit=100).data
    return [item.content[0].text for item in items]  # type: ignore[union-attr]


def test_chat_answers_once_with_the_key_of_this_machine(server: Server):
    said = server.command("chat", "[[script length=6 text=Paris.]]")
    assert said.returncode == 0, said.stderr
    text, summary = said.stdout.splitlines()
    assert text == "Paris."
    tokens, *_, first, price = summary.split(" · ")
    assert tokens == "6 tok"
    assert first.startswith("first 0.")
    newest = server.usage()[0]
    assert price == f"${newest['amount_usd']}"


def test_chat_reads_a_pipe_and_speaks_json(server: Server):
    said = forebay("chat", "--json", "--data-dir", server.data_dir, stdin="[[script length=4]]")
    answer = json.loads(said.stdout)
    assert answer["output_tokens"] == 4
    assert answer["finish_reason"] == "stop"
    assert len(answer["text"]) == 4
    assert answer["call_id"] == server.usage()[0]["call_id"]
    empty = forebay("chat", "--data-dir", server.data_dir, stdin=" \n")
    assert (empty.returncode, empty.stdout) == (2, "")


def test_chat_takes_a_key_from_the_environment_or_a_file_for_any_url(
    server: Server, tmp_path: Path
):
    url = ("--url", server.base_url)
    named = forebay("chat", "hello", *url, env={"FOREBAY_API_KEY": server.key})
    assert named.returncode == 0, named.stderr
    assert "$" not in named.stdout.splitlines()[-1]  # what another server charges is not known here
    file = tmp_path / "key"
    file.write_text(server.key + "\n")
    assert forebay("chat", "hello", *url, "--key-file", file).returncode == 0


def test_chat_shows_the_words_of_the_api(server: Server, tmp_path: Path):
    wrong = forebay("chat", "hi", "--url", server.base_url, env={"FOREBAY_API_KEY": "fbk_wrong"})
    assert wrong.returncode == 1
    assert "Incorrect API key" in wrong.stderr
    model = server.command("chat", "hi", "--model", "nobody")
    assert model.returncode == 1
    assert "nobody" in model.stderr
    silent = forebay("chat", "hi", "--data-dir", tmp_path)
    assert silent.returncode == 1
    assert "forebay up" in silent.stderr
    nobody = {"FOREBAY_API_KEY": "x"}
    assert forebay("chat", "hi", "--url", "http://127.0.0.1:9", env=nobody).returncode == 1


def test_chat_is_a_conversation_on_a_terminal(server: Server):
    """Two turns, the second stopped by Ctrl-C, then Ctrl-D."""
    with Terminal(server) as terminal:
        assert "\nHello!\n6 tok" in terminal.line("[[script length=6 text=Hello!]]")
        terminal.type("[[script length=400 text=onand]]\n")
        terminal.until("onandonand")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("(stopped)\n> ")
        assert "assistant\n  onandonand" in terminal.line("/history"), "what was seen stays"
        terminal.leave()
    eventually(lambda: server.usage()[0]["outcome"] == "cancelled", what="the call is resolved")
    stopped, whole = server.usage()[:2]
    assert (whole["outcome"], whole["output_tokens"]) == ("completed", 6)
    assert stopped["input_tokens"] > whole["input_tokens"]  # the first turn came along


def test_a_conversation_begun_in_one_process_goes_on_in_the_next(server: Server, client: OpenAI):
    begun = server.command("chat", "--conversation", "new", script("One."))
    assert begun.returncode == 0, begun.stderr
    [id] = CONVERSATION.findall(begun.stderr)
    assert f"chat --conversation {id}" in begun.stderr, "how to go on"
    went_on = server.command("chat", "--conversation", id, script("Two."))
    assert (went_on.returncode, went_on.stderr) == (0, "")
    texts = said(client, id)
    assert texts[::2] == [script("One."), script("Two.")]
    assert texts[1::2] == [each.stdout.splitlines()[0] for each in (begun, went_on)]
    first, second = server.usage()[1::-1]
    assert second["input_tokens"] > first["input_tokens"], "the first turn came along"


def test_a_program_reads_the_conversation_in_the_answer(server: Server):
    begun = server.command_json("chat", "--conversation", "new", script("One."))
    id = begun["conversation_id"]
    went_on = server.command_json("chat", "--conversation", id, script("Two."))
    assert went_on["conversation_id"] == id
    assert went_on["dropped_turns"] == 0
    assert server.command_json("chat", script("Alone."))["conversation_id"] is None


def test_a_conversation_that_is_not_there_is_said_before_the_first_prompt(server: Server):
    lost = server.command("chat", "--conversation", LOST, "hello")
    assert (lost.returncode, lost.stdout) == (1, "")
    assert f"no conversation '{LOST}'" in lost.stderr
    assert "--conversation new" in lost.stderr
    assert server.command("chat", "--conversation", "..", "hello").returncode == 1
    assert server.command("chat", "--conversation", "", "hello").returncode == 2


def test_a_server_without_conversations_is_told_of(server: Server):
    no_api = server.base_url.removesuffix("/v1") + "/elsewhere"
    refused = forebay(
        "chat", "hi", "--conversation", "new", "--url", no_api, env={"FOREBAY_API_KEY": server.key}
    )
    assert refused.returncode == 1
    assert "Leave --conversation out" in refused.stderr


def test_a_stored_conversation_on_a_terminal(server: Server, client: OpenAI):
    """It is told by name, goes on, forgets a turn that is stopped, and is begun anew."""
    with Terminal(server, "--conversation", "new") as terminal:
        answer = terminal.line(script("One.")).splitlines()[1]
        shown = terminal.line("/history")
        assert f"user\n  {script('One.')}\n\nassistant\n  {answer}\n" in shown
        terminal.type("[[script length=400 text=onand]]\n")
        terminal.until("onandonand")
        terminal.process.send_signal(signal.SIGINT)
        terminal.type(script("Again.") + "\n")  # at once, before the server can have noticed
        terminal.until("keeps nothing of this turn)\n> ")
        assert "4 tok" in terminal.until("\n> ")
        assert "onand" not in terminal.line("/history")
        rows = terminal.line("/usage").splitlines()
        newest, stopped, oldest = server.usage()[:3]
        amounts = [row.split()[-1] for row in rows if re.match(r" +(\d|total) ", row)]
        assert amounts[:3] == [each["amount_usd"] for each in (oldest, stopped, newest)]
        assert any(row.startswith("this key: ") for row in rows)
        [new] = CONVERSATION.findall(terminal.line("/new"))
        terminal.line(script("Two."))
        assert said(client, new)[0] == script("Two.")
        client.conversations.delete(new)
        assert "/new begins a new conversation" in terminal.line("Three.")
        terminal.line("/new")
        assert "go on with `" in terminal.leave()


def test_words_with_a_slash_are_not_sent(server: Server):
    calls = len(server.usage())
    with Terminal(server) as terminal:
        assert "Nothing was said yet." in terminal.line("/history")
        assert "There is no /exit; there are /history" in terminal.line("/exit")
        assert "stands alone" in terminal.line("/new topic")
        assert "/usage" in terminal.line("/help")
        assert len(server.usage()) == calls
        terminal.line(script(" /exit"))
        assert "user\n   /exit" in terminal.line("/history")
        assert "not stored" in terminal.line("/new")
        assert "Nothing was said yet." in terminal.line("/history")
        assert "go on with" not in terminal.leave()
    assert len(server.usage()) == calls + 1


def test_a_chat_for_programs_answers_words_with_json(server: Server):
    with Terminal(server, "--json", "--conversation", "new") as terminal:
        answer = json.loads(terminal.line(script("One.")).splitlines()[1])
        history = json.loads(terminal.line("/history").splitlines()[1])
        assert [each["role"] for each in history] == ["user", "assistant"]
        assert history[1]["content"] == answer["text"]
        usage = json.loads(terminal.line("/usage").splitlines()[1])
        assert [each["call_id"] for each in usage["answers"]] == [answer["call_id"]]
        assert usage["total"]["amount_usd"] == answer["amount_usd"]
        assert usage["key"]["object"] == "usage"


def test_a_history_has_all_pages(server: Server, client: OpenAI):
    id = client.conversations.create().id
    for start in range(0, 240, 20):
        items = [
            {"type": "message", "role": "user", "content": f"number {start + n}"} for n in range(20)
        ]
        client.conversations.items.create(id, items=items)  # type: ignore[arg-type]
    with Terminal(server, "--conversation", id) as terminal:
        found = re.findall(r"number (\d+)", terminal.line("/history"))
    assert found == [str(number) for number in range(240)]


def test_turns_that_are_left_out_are_told_once(server: Server):
    with Terminal(server, "--conversation", "new") as terminal:
        shown = [terminal.line(script(f"Turn {number}. " + "word " * 24)) for number in range(7)]
    told = [number for number, each in enumerate(shown) if "left out" in each]
    assert len(told) == 1
    assert 0 < told[0] < 6, "and there were answers after it"


def test_a_conversation_on_which_somebody_else_works_is_told_of(server: Server, client: OpenAI):
    """Of the 9 s that the other's answer takes, this needs two."""
    id = client.conversations.create().id
    with (
        Terminal(server, "--conversation", id) as terminal,
        client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": script("Long.", 900)}],
            max_tokens=900,
            extra_body={"conversation": id},
            stream=True,
        ) as stream,
    ):
        next(iter(stream))
        assert "retry when it has ended" in terminal.line("hello")
        assert "Nothing was said yet." in terminal.line("/history")
