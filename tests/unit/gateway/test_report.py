from __future__ import annotations

from forebay.gateway.report import report_unhandled


def test_an_unexpected_error_is_logged_without_its_message_or_variables(capsys):
    planted = "planted-prompt"
    try:
        raise ValueError(planted)
    except ValueError as fault:
        report_unhandled(fault, "req_1")
    written = capsys.readouterr()
    text = written.out + written.err
    assert planted + "'" not in text
    assert "builtins.ValueError" in text
    assert "req_1" in text
    assert "test_report.py" in text
