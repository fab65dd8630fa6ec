"""What a failure looks like on a terminal: one line that says what to do, and an exit code.

    0  it worked    1  it failed    2  wrong use, or it cannot start
    3  a batch that was watched has ended, and not every line of it was answered

Not here: failures that nobody expected (they keep their traceback: it is what a report needs).
"""

from __future__ import annotations

IT_FAILED, WRONG_USE, NOT_ALL_DONE = 1, 2, 3

# By name, so that nothing is imported only to find that it is not what happened.
EXPECTED = {
    "forebay.cli.failure.Failure": IT_FAILED,
    "forebay.config.ConfigError": WRONG_USE,
    "forebay.wiring.machine.DirectoryBusy": WRONG_USE,
    "forebay.gateway.serve.PortUnavailable": WRONG_USE,
    "forebay.migrations.database.DatabaseRefused": WRONG_USE,
    "forebay.tenancy.keys.PepperRefused": WRONG_USE,
    "forebay.core.errors.InvalidRequest": WRONG_USE,
    "forebay.core.errors.ForebayError": IT_FAILED,
    "forebay.catalog.download.WeightsError": IT_FAILED,
    "forebay.tokens.program.UnsupportedModel": IT_FAILED,
    "forebay.gateway.control.ControlFailed": IT_FAILED,
    "builtins.OSError": IT_FAILED,
}


class Failure(Exception):
    """A command ends here; the message is for people."""

    def __init__(self, message: str, exit_code: int = IT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def explain(fault: BaseException) -> Failure | None:
    """The failure to show for this exception; None for one that nobody expected."""
    if isinstance(fault, Failure):
        return fault
    for kind in type(fault).__mro__:
        exit_code = EXPECTED.get(f"{kind.__module__}.{kind.__qualname__}")
        if exit_code is not None:
            return Failure(_message(fault), exit_code)
    return None


def _message(fault: BaseException) -> str:
    if isinstance(fault, OSError) and fault.strerror:
        where = f"{fault.filename}: " if fault.filename else ""
        return f"{where}{fault.strerror}"
    return str(fault) or type(fault).__name__
