from __future__ import annotations

from forebay.cli.docs import cli_page, commands


def test_every_command_is_on_the_page_with_a_whole_sentence():
    page = cli_page()
    names = [name for name, _ in commands()]
    assert "forebay keys create" in names
    for name, text in commands():
        assert f"\n## {name}\n" in page
        assert text in page
        # A summary that does not fit its line is cut with dots.
        assert not [line for line in text.splitlines()[1:] if line.endswith("...")]
