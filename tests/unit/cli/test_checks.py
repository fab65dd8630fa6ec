from __future__ import annotations

import dataclasses
import fcntl
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from forebay import __version__
from forebay.cli import checks
from forebay.config import load

STATUS = {
    "version": __version__,
    "pid": 7,
    "urls": ["http://127.0.0.1:8080", "http://127.0.0.1:8081"],
    "open_calls": 2,
    "waiting": {"small": 1},
    "engines": [{"model": "small", "state": "ready", "pid": 8, "restarts": 0, "running": 2}],
}


@pytest.fixture
def settings(tmp_path):
    return load({"data_dir": tmp_path / "data", "cache_dir": tmp_path}, {"HOME": str(tmp_path)})


def levels(findings):
    return [finding.level for finding in findings]


def engine(**changes):
    return {**STATUS, "engines": [{**STATUS["engines"][0], **changes}]}


def test_this_environment_is_sound():
    assert set(levels(checks.versions())) == {"ok"}


def test_a_server_is_described_with_its_engines(settings):
    assert levels(checks.server(settings, STATUS)) == ["ok", "ok"]
    assert levels(checks.server(settings, engine(restarts=1))) == ["ok", "warning"]
    assert "1 restart, " in list(checks.server(settings, engine(restarts=1)))[1].text
    assert levels(checks.server(settings, engine(state="restarting"))) == ["ok", "wrong"]
    assert levels(checks.server(settings, engine(state="renewing"))) == ["ok", "ok"]
    other = checks.server(settings, {**STATUS, "version": "0.0.1"})
    assert levels(other) == ["ok", "warning", "ok"]
    assert levels(checks.server(settings, None)) == ["ok"]


async def test_weights_that_are_not_here_are_a_warning_with_the_command_that_fetches_them(settings):
    [finding] = await checks.weights(settings)
    assert finding.level == "warning"
    assert "models pull smollm2-135m-instruct" in finding.remedy


async def test_weights_that_differ_from_what_was_named_are_wrong(tmp_path):
    gguf, file = tmp_path / "a.gguf", tmp_path / "f.yaml"
    gguf.write_bytes(b"GGUF but another one")
    digest = "0" * 64
    file.write_text(f"models: [{{id: a, source: {{path: {gguf}, sha256: '{digest}'}}}}]")
    [finding] = await checks.weights(load({}, {"HOME": str(tmp_path)}, file))
    assert finding.level == "wrong"
    assert digest in finding.text


def test_a_directory_that_was_never_used_is_fine(settings):
    assert levels(checks.stores(settings, None)) == ["ok"]
    assert levels(checks.permissions(settings)) == []


def test_a_damaged_database_is_wrong(settings):
    settings.data_dir.mkdir()
    (settings.data_dir / "lock").touch()
    (settings.data_dir / "ledger.db").write_bytes(b"no database at all" * 100)
    ledger, other = checks.stores(settings, None)
    assert (ledger.level, other.level) == ("wrong", "ok")
    assert "ledger.db" in ledger.text
    assert "backup" in ledger.remedy


def test_a_directory_with_a_silent_owner_is_a_warning_and_is_not_looked_into(settings):
    settings.data_dir.mkdir()
    with (settings.data_dir / "lock").open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        [finding] = checks.stores(settings, None)
    assert finding.level == "warning"
    assert "4711" in finding.text


def test_a_taken_port_is_wrong_unless_our_server_has_it(settings):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = dataclasses.replace(settings, port=port, admin_port=0)
        finding, other = checks.ports(busy, None)
        assert (finding.level, other.level) == ("wrong", "ok")
        assert str(port) in finding.text
        assert "--port" in finding.text
        assert list(checks.ports(busy, STATUS)) == []


class Alive(BaseHTTPRequestHandler):
    """Answers as `GET /livez` of any Forebay does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "alive"}')

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_port_of_another_forebay_is_a_warning_that_says_whose(settings):
    with HTTPServer(("127.0.0.1", 0), Alive) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]
        busy = dataclasses.replace(settings, port=port, admin_port=0)
        near = {**STATUS, "urls": [f"http://127.0.0.1:{port}"]}
        unknown, *_ = checks.ports(busy, None)
        ours, *_ = checks.ports(busy, None, near)
        server.shutdown()
        thread.join()
    assert (unknown.level, ours.level) == ("warning", "warning")
    assert "other data" in unknown.text
    assert "./data" in ours.text
    assert "--data-dir data" in ours.remedy
    assert "--port" in ours.remedy


def test_data_in_the_working_directory_is_pointed_at(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = load({}, {"HOME": str(tmp_path)})
    assert list(checks.neighbour(elsewhere, None, None)) == []
    settings.data_dir.mkdir()
    (settings.data_dir / "ledger.db").touch()
    for other, word in ((None, "there is data"), (STATUS, "process 7")):
        [finding] = checks.neighbour(elsewhere, None, other)
        assert (finding.level, finding.remedy) == ("warning", "add --data-dir data")
        assert word in finding.text
    assert list(checks.neighbour(elsewhere, STATUS, None)) == []
    assert list(checks.neighbour(settings, None, None)) == []


def test_a_pepper_that_others_can_read_is_wrong(settings):
    settings.data_dir.mkdir(mode=0o700)
    pepper = settings.data_dir / "pepper"
    pepper.write_bytes(b"x" * 32)
    pepper.chmod(0o644)
    [finding] = checks.permissions(settings)
    assert finding.level == "wrong"
    assert finding.remedy == f"chmod 600 {pepper}"
    pepper.chmod(0o600)
    (settings.data_dir / "ledger.db").touch(0o644)
    assert levels(checks.permissions(settings)) == ["wrong"]
    (settings.data_dir / "ledger.db").chmod(0o600)
    assert levels(checks.permissions(settings)) == ["ok"]
    settings.data_dir.chmod(0o755)
    assert levels(checks.permissions(settings)) == ["warning", "ok"]


def test_free_space_is_measured_where_the_directory_will_be(settings, monkeypatch):
    assert "GB free for data" in next(iter(checks.disk(settings))).text
    full = type("Usage", (), {"free": 5 << 20})
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: full)
    assert levels(checks.disk(settings)) == ["wrong", "wrong"]


def test_e8_it_says_which_calls_go_on_when_their_engine_fails(settings):
    (finding,) = checks.continuation(settings)
    assert finding.level == "ok"
    for excepted in ("seed", "penalties", "logprobs", "JSON", "n above 1"):
        assert excepted in finding.text


def test_risky_choices_are_warned_about(settings):
    assert list(checks.choices(settings)) == []
    shared = dataclasses.replace(settings.models[0], prefix_cache="shared")
    risky = dataclasses.replace(settings, models=(shared,), host="0.0.0.0", admin_host="::")
    findings = list(checks.choices(risky))
    assert levels(findings) == ["warning"] * 3
    assert all(finding.remedy for finding in findings)
    named = dataclasses.replace(settings, host="localhost", admin_host="::1")
    assert list(checks.choices(named)) == []
