from __future__ import annotations

from forebay.catalog.download import Progress, Stage
from forebay.cli.progress import FetchProgress


def test_a_log_gets_a_line_per_quarter_and_stage(capsys):
    progress = FetchProgress()
    for done in range(0, 101, 5):
        progress("small", Progress(Stage.DOWNLOADING, done * 1_000_000, 100_000_000))
    progress("small", Progress(Stage.WAITING, 0, None))
    progress("small", Progress(Stage.WAITING, 0, None))
    progress.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "forebay: downloading small 0 % of 100 MB",
        "forebay: downloading small 25 % of 100 MB",
        "forebay: downloading small 50 % of 100 MB",
        "forebay: downloading small 75 % of 100 MB",
        "forebay: downloading small 100 % of 100 MB",
        "forebay: waiting small",
    ]
