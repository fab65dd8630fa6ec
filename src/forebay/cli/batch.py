"""`forebay batch submit | list | status | cancel | results`: work that may take its time, by the file.

    batch.py ──▶ batch_lines.py (what is uploaded) ──▶ batching.py (what is asked)
       └──▶ batch_watch.py (until it has ended) ──▶ batch_view.py

Standard output gets the id, a table, JSON or results; all else goes to standard error.

Not here: which server and key (`server.py`), what becomes of a batch (the server's).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from forebay.cli import desk
from forebay.cli.batch_lines import Endpoint, Order, Prepared, prepare
from forebay.cli.failure import NOT_ALL_DONE, WRONG_USE, Failure
from forebay.cli.options import AsJson
from forebay.cli.output import opened
from forebay.cli.screen import counted, print_json, print_table, say
from forebay.cli.server import Server, with_server

if TYPE_CHECKING:
    from forebay.cli.answering import Target
    from forebay.cli.batching import Batch

STDIN = Path("-")

Which = Annotated[str, typer.Argument(metavar="BATCH", help="Its id.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Show how it gets on until it has ended; Ctrl-C leaves.")
]


def build() -> typer.Typer:
    """The group."""
    group = typer.Typer(
        help="Many calls in one file, answered when there is room.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("submit")(submit)
    group.command("list")(list_batches)
    group.command("status")(status)
    group.command("cancel")(cancel_batch)
    group.command("results")(results)
    return group


def _source(text: str) -> Path:
    """A file that is there, or standard input."""
    path = Path(text)
    if path != STDIN and not path.exists():
        raise typer.BadParameter(f"there is no file {text!r}.")
    if path.is_dir():
        raise typer.BadParameter(f"{text!r} is a directory.")
    return path


@with_server
def submit(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=_source,
            help="A batch file, or text or JSON by the line; - reads standard input.",
        ),
    ],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Model of lines that name none; of text and JSON, else the server's first.",
        ),
    ] = None,
    endpoint: Annotated[
        Endpoint | None,
        typer.Option(
            metavar="PATH",
            help="/v1/chat/completions, /v1/completions or /v1/responses; if not given, what the "
            "first line is for.",
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", "--name", metavar="KEY=VALUE", help="Kept with it; may be repeated."
        ),
    ] = None,
    watch: Watch = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Watch it, and write its results here.",
            show_default=False,
        ),
    ] = None,
    server: Server,
    as_json: AsJson = False,
) -> None:
    """Have every line of a file answered.

    A line is one of OpenAI's batch files, or work: text, a JSON string, or the JSON of a request's
    body. Work is made into a batch file, with the custom_id line-7 for line 7. Prints the id of the
    batch, or with --json all of it. If it is watched: ends with 3 unless every line was answered.
    """
    tags = _tags(metadata or ())
    _check_place(output)
    target = desk.run(server.settings, server.target())
    with TemporaryFile() as upload:
        order = Order(_name(file), model, endpoint, _first_model(server, target))
        prepared = _prepare(file, upload, order)
        batch = desk.run(
            server.settings, _submit(target, upload, _upload_name(file), prepared, tags)
        )
    is_watched = watch or output is not None
    _announce(server, batch, prepared, is_watched=is_watched, as_json=as_json)
    if is_watched:
        batch = _watch(server, target, batch)
        if output is not None:
            desk.run(server.settings, _download(target, batch.output_file, output))
        if as_json:
            print_json(batch.body)
        _judge(server, batch, results_are_here=output is not None)


@with_server
def list_batches(
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Most to list.")] = 20,
    *,
    server: Server,
    as_json: AsJson = False,
) -> None:
    """The batches of the key's organisation, the newest first."""
    from forebay.cli import batch_view

    batches = desk.run(server.settings, _newest(server, limit))
    if as_json:
        print_json([each.body for each in batches])
    else:
        print_table(batch_view.HEADINGS, map(batch_view.cells, batches))


@with_server
def status(batch: Which, *, watch: Watch = False, server: Server, as_json: AsJson = False) -> None:
    """How a batch gets on.

    If it is watched: ends with 3 unless every line was answered.
    """
    from forebay.cli import batch_view

    target, found = desk.run(server.settings, _find(server, batch))
    if watch:
        found = _watch(server, target, found)
    if as_json:
        print_json(found.body)
    else:
        print(batch_view.details(found), flush=True)
    if watch:
        _judge(server, found)


@with_server
def cancel_batch(batch: Which, *, server: Server, as_json: AsJson = False) -> None:
    """End a batch early.

    Lines that were answered stay, are charged, and are in its results.
    """
    found = desk.run(server.settings, _cancel(server, batch))
    if as_json:
        print_json(found.body)
    else:
        print(found.stands, flush=True)


@with_server
def results(
    batch: Which,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Here, once all of it is written; else to standard output.",
            show_default=False,
        ),
    ] = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="The lines that failed or were not run, instead.")
    ] = False,
    server: Server,
    as_json: AsJson = False,
) -> None:
    """What was answered, once a batch has ended.

    One line of JSON for each line that was answered, in the order of what was submitted; the
    custom_id tells which it is. With --json and --output, standard output says what was written.
    """
    _check_place(output)
    target, found = desk.run(server.settings, _find(server, batch))
    file_id = _file_of(server, found, errors=errors)
    desk.run(server.settings, _download(target, file_id, output))
    if file_id is None:
        say(f"every line of {found.id} was answered")
    if not errors and found.error_file is not None:
        others = server.hint("batch", "results", found.id, "--errors")
        say(f"{counted(found.unanswered, 'line')} failed or not run; see `{others}`")
    if as_json and output is not None:
        print_json({"batch_id": found.id, "file_id": file_id, "output": str(output)})


def _tags(pairs: Sequence[str]) -> dict[str, str]:
    tags = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE, such as team=search.")
        tags[name] = value
    return tags


def _check_place(output: Path | None) -> None:
    """Before anything is done that takes long."""
    if output is not None and not output.absolute().parent.is_dir():
        raise Failure(
            f"There is no directory {output.parent} to write {output.name} in.", WRONG_USE
        )


def _name(file: Path) -> str:
    return "standard input" if file == STDIN else str(file)


def _upload_name(file: Path) -> str:
    return "stdin.jsonl" if file == STDIN else f"{file.stem}.jsonl"


def _prepare(file: Path, upload: BinaryIO, order: Order) -> Prepared:
    if file == STDIN:
        return prepare(sys.stdin.buffer, upload, order)
    with file.open("rb") as source:
        return prepare(source, upload, order)


def _first_model(server: Server, target: Target) -> Callable[[], str]:
    def ask() -> str:
        from forebay.cli.answering import first_model

        return desk.run(server.settings, first_model(target))

    return ask


async def _submit(
    target: Target, upload: BinaryIO, name: str, prepared: Prepared, tags: dict[str, str]
) -> Batch:
    from forebay.cli.batching import submit

    upload.seek(0)
    return await submit(target, upload, name, prepared.endpoint, tags)


async def _newest(server: Server, limit: int) -> list[Batch]:
    from forebay.cli.batching import newest

    return await newest(await server.target(), limit)


async def _find(server: Server, id: str) -> tuple[Target, Batch]:
    from forebay.cli.batching import find

    target = await server.target()
    return target, await find(target, id)


async def _cancel(server: Server, id: str) -> Batch:
    from forebay.cli.batching import cancel

    return await cancel(await server.target(), id)


async def _download(target: Target, file_id: str | None, output: Path | None) -> None:
    """Write what is in a file; nothing if there is none."""
    from forebay.cli.batching import download

    with opened(output) as file:
        if file_id is not None:
            await download(target, file_id, file.buffer.write)


def _announce(
    server: Server, batch: Batch, prepared: Prepared, *, is_watched: bool, as_json: bool
) -> None:
    """What was made, and what to do next. One that is watched is told of, as JSON, at its end."""
    model = f" by {prepared.model}" if prepared.model else ""
    said = f"{counted(prepared.lines, 'line')} for {prepared.endpoint}{model}"
    if not as_json:
        print(batch.id, flush=True)
    elif not is_watched:
        print_json(batch.body)
    if is_watched:
        say(f"{batch.id}: {said}")
        return
    look = server.hint("batch", "status", batch.id, "--watch")
    get = server.hint("batch", "results", batch.id)
    say(f"{said}; watch it with `{look}`, and get what was answered with `{get}`")


def _watch(server: Server, target: Target, batch: Batch) -> Batch:
    """Until it has ended. Ctrl-C leaves the batch alone."""
    import asyncio

    from forebay.cli import batch_view
    from forebay.cli.batch_watch import watch
    from forebay.system import SystemClock

    try:
        with batch_view.screen(live=batch_view.is_live()) as show:
            return asyncio.run(watch(target, batch, show, SystemClock()))
    except KeyboardInterrupt:
        again = server.hint("batch", "status", batch.id, "--watch")
        end = server.hint("batch", "cancel", batch.id)
        raise Failure(
            f"No longer watching; {batch.id} goes on. Watch it again with `{again}`, end it with "
            f"`{end}`."
        ) from None


def _judge(server: Server, batch: Batch, *, results_are_here: bool = False) -> None:
    """Say where its results are. Raises Failure unless every line was answered."""
    from forebay.cli import batch_view

    if batch.output_file is not None and not results_are_here:
        say(f"get what was answered with `{server.hint('batch', 'results', batch.id)}`")
    if batch.problems:
        lines = [f"{batch.stands}:", *batch_view.problems(batch)]
        raise Failure("\n".join(lines), NOT_ALL_DONE)
    if batch.status == "completed" and not batch.failed:
        return
    see = server.hint("batch", "results", batch.id, "--errors")
    raise Failure(
        f"{batch.stands}: {batch_view.outcomes(batch)}"
        + (f"; see `{see}`" if batch.error_file else ""),
        NOT_ALL_DONE,
    )


def _file_of(server: Server, batch: Batch, *, errors: bool) -> str | None:
    """The file that is asked for; None if all lines were answered. Raises Failure if it has none."""
    if not batch.has_ended:
        look = server.hint("batch", "status", batch.id, "--watch")
        raise Failure(
            f"{batch.stands}, with {batch.done} of {counted(batch.lines, 'line')} "
            f"done. Its results come when it has ended; watch it with `{look}`."
        )
    if errors and not batch.problems:
        return batch.error_file
    if batch.output_file is None:
        look = server.hint("batch", "status", batch.id)
        raise Failure(f"{batch.stands}, and no line of it was answered. See `{look}`.")
    return batch.output_file
