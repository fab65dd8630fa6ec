"""L1, L4-L6, L12, L13 across kill -9: what was acknowledged is there, and the books add up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from forebay.core.hold import UsageQuery
from forebay.ledger.sqlite import SqliteLedger
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger_records import check_audit

STORM = """
import asyncio, os, sys
from dataclasses import replace
from pathlib import Path
from forebay.core.hold import Hold
from forebay.core.usage import Outcome
from forebay.ledger.sqlite import SqliteLedger
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import ask, bill, furnish


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


async def call(ledger, number):
    hold = await ledger.hold(ask(number))
    say("held", hold.id, hold.amount_nanos)
    if number % 3 == 0:
        return
    ended = bill(number % 80)
    if number % 3 == 1:
        row = await ledger.settle(hold.id, 1, ended)
    else:
        row = await ledger.release(hold.id, 1, replace(ended, outcome=Outcome.FAILED))
    say("ended", row.call_id, row.amount_nanos)


async def main():
    ledger = await SqliteLedger.open(Path(sys.argv[1]), FakeClock())
    await furnish(ledger)

    async def caller(first):
        for number in range(first, 10**9, 20):
            await call(ledger, number)

    await asyncio.gather(*(caller(first) for first in range(20)))


asyncio.run(main())
"""


def killed_storm(path: Path, seconds: float) -> tuple[dict[str, int], dict[str, int]]:
    """Holds and endings that were acknowledged before the process was killed, with amounts."""
    storm = subprocess.Popen([sys.executable, "-c", STORM, str(path)], stdout=subprocess.PIPE)
    assert storm.stdout is not None
    with closing(storm.stdout) as out:
        out.readline()  # the storm has begun
        time.sleep(seconds)
        storm.send_signal(signal.SIGKILL)
        lines = [line.split() for line in out.read().decode().split("\n")[:-1]]
    assert storm.wait() == -signal.SIGKILL
    said = [(what, call_id, int(amount)) for what, call_id, amount in lines]
    held = {call_id: amount for what, call_id, amount in said if what == "held"}
    return held, {call_id: amount for what, call_id, amount in said if what == "ended"}


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.7])
async def test_what_was_acknowledged_survives_kill_9_and_the_books_add_up(
    tmp_path: Path, seconds: float
) -> None:
    path = tmp_path / "ledger.db"
    held, ended = killed_storm(path, seconds)
    assert len(held) > 20
    ledger = await SqliteLedger.open(path, FakeClock())
    rows = await ledger.usage(UsageQuery(limit=10**9))
    await check_audit(ledger)
    await ledger.close()
    amounts = {row.call_id: row.amount_nanos for row in rows}
    assert len(amounts) == len(rows), "L4"
    assert {call_id: amounts.get(call_id) for call_id in ended} == ended, "L13"
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        assert connection.pragma("integrity_check") == "ok"
        opened = dict(connection.execute("SELECT id, amount_nanos FROM hold").fetchall())
    assert {i: opened[i] for i in held.keys() - amounts.keys()} == {
        i: held[i] for i in held.keys() - amounts.keys()
    }, "L6"
