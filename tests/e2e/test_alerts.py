"""Spend alerts over real sockets: a receiver that fails, a server that dies, the official client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from openai import OpenAI

from forebay.core.money import format_usd
from forebay.testing.rawhttp import RawClient
from tests.e2e.running import Server, eventually, forebay

CALLS = 20
ENV = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.005", "FOREBAY_ALERTS__ALLOW_HTTP": "true"}


@dataclass
class Receiver:
    """Answers with the next of `statuses`, then 200; 0 hangs until `released`."""

    statuses: list[int] = field(default_factory=list)
    got: list[tuple[bytes, dict[str, str]]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @contextmanager
    def listening(self) -> Iterator[Receiver]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.statuses.pop(0) if receiver.statuses else 200
                receiver.got.append((body, dict(self.headers.items())))
                if status:
                    self.send_response(status)
                    self.end_headers()
                else:
                    receiver.released.wait(60)

            def log_message(self, format: str, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.block_on_close = False
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            self.url = f"http://127.0.0.1:{server.server_port}/canary-path"
            try:
                yield self
            finally:
                self.released.set()
                server.shutdown()
                thread.join()


async def calls(server: Server, count: int) -> None:
    """So many at once."""
    body = {
        "model": "scripted",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "[[script length=1000]]"}],
    }
    clients = [RawClient(server.host, server.port, server.key) for _ in range(count)]
    answers = await asyncio.gather(*(client.post(body) for client in clients))
    for client in clients:
        await client.close()
    assert {answer.status for answer in answers} == {200}


def spent_nanos(server: Server) -> int:
    return sum(row["amount_nanos"] for row in server.usage())


async def test_an_event_outlives_a_failing_receiver_and_a_killed_server(tmp_path: Path) -> None:
    """Crossed by calls at once, it fires once; 500, then silence and kill -9, then 200."""
    data = tmp_path / "data"
    receiver = Receiver([500, 0])
    with receiver.listening():
        with Server.start("--model", "scripted", data_dir=data, env=ENV) as server:
            await calls(server, 1)
            threshold = format_usd(spent_nanos(server) * CALLS // 2)
            made = server.command_json(
                "alerts", "add", threshold, receiver.url, "--organisation", "default"
            )
            await calls(server, CALLS)
            eventually(lambda: len(receiver.got) == 2, 60, "a second attempt")
            [listed] = server.command_json("alerts", "list")
            assert (listed["last_event"]["state"], listed["last_event"]["attempts"]) == (
                "pending",
                1,
            )
            await asyncio.to_thread(server.kill)
            first_log = server.log_text()
        with Server.start("--model", "scripted", data_dir=data, env=ENV) as server:
            eventually(lambda: len(receiver.got) == 3, 60, "an attempt after the start")
            await calls(server, CALLS)
            eventually(lambda: _state(server) == "delivered", 60, "the record of the delivery")
            spent = spent_nanos(server)
            assert server.stop() == 0
            log = first_log + server.log_text()
    assert len(receiver.got) == 3, "one event, three attempts"
    client = OpenAI(api_key="unused", webhook_secret=made["secret"])
    events = [client.webhooks.unwrap(body, headers) for body, headers in receiver.got]
    assert {event.id for event in events} == {listed["last_event"]["id"]}
    assert {body for body, _ in receiver.got} == {receiver.got[0][0]}
    data_of_event = events[0].to_dict()["data"]
    assert isinstance(data_of_event, dict)
    assert (data_of_event["id"], data_of_event["threshold"]) == (made["id"], threshold)
    assert float(threshold) <= float(data_of_event["spent"]) <= spent / 10**9
    assert "webhook_failed" in log
    assert "webhook_delivered" in log
    for secret in (made["secret"], made["secret"][6:], "canary-path"):
        assert secret not in log


def _state(server: Server) -> str:
    [listed] = server.command_json("alerts", "list")
    return str(listed["last_event"]["state"])


def test_the_command_line_adds_tries_out_lists_and_removes(tmp_path: Path) -> None:
    receiver = Receiver([503, 204])
    with (
        receiver.listening(),
        Server.start("--model", "scripted", data_dir=tmp_path, env=ENV) as server,
    ):
        added = server.command("alerts", "add", "5", receiver.url, "--organisation", "default")
        assert added.returncode == 0
        said, secret = added.stdout.splitlines()
        assert said.startswith("alert_")
        assert secret.startswith("whsec_")
        alert_id = said.split()[0]
        refused = server.command("alerts", "test", alert_id)
        assert (refused.returncode, "answered 503" in refused.stderr) == (1, True)
        sent = server.command("alerts", "test", alert_id[-6:])
        assert (sent.returncode, "answered 204" in sent.stdout) == (0, True)
        event = OpenAI(api_key="unused", webhook_secret=secret).webhooks.unwrap(*receiver.got[1])
        assert event.type == "organization.spend_alert.test"
        for url in ("ftp://hooks.example/", "nonsense"):
            wrong = server.command("alerts", "add", "5", url, "--organisation", "default")
            assert (wrong.returncode, "https://" in wrong.stderr) == (2, True)
        assert receiver.url in server.command("alerts", "list", "--wide").stdout
        assert server.stop() == 0
        # No server runs: the same commands open the data themselves.
        [listed] = server.command_json("alerts", "list")
        assert (listed["id"], listed["last_event"]) == (alert_id, None)
        assert forebay("alerts", "remove", alert_id, "--data-dir", tmp_path).returncode == 0
        assert server.command_json("alerts", "list") == []
