"""The engine's process: `python -m forebay.engine.child FD`, with FD one end of a socket pair.

    Start ─▶ load, warm up ─▶ Ready ─▶ loop: take all frames that are here · step · one frame out

A step of the embedded engine holds Python's global lock for as long as it takes, so it has a
process of its own. It blocks on the socket while there is nothing to do.

Invariants
- E1 All submits and cancels that have arrived are applied before the next step begins.
- It ends by itself within a second after its socket closes, also under load: it looks at the socket
  after every step, and on Linux the kernel kills it with its parent even while a step runs.
- SIGINT and SIGTERM are ignored: Ctrl-C and service managers signal whole groups of processes, and
  it is the parent's decision whether running answers are finished first.

Not here: supervision (`process.py`), the engines (`openvino.py`, `scripted.py`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import traceback

from forebay.engine.frames import (
    Cancel,
    ChannelClosed,
    ChildChannel,
    Fault,
    FrameError,
    Ready,
    Start,
    Step,
    Submit,
    ToChild,
)
from forebay.engine.journal import Journal
from forebay.engine.scripted import ScriptedStepper
from forebay.engine.stepper import EngineCrash, Stepper
from forebay.system import SystemClock

_PR_SET_PDEATHSIG = 1
EXIT_FAULT, EXIT_CRASH = 1, 70


def main(arguments: list[str]) -> int:
    """Serve one parent; the exit status says how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with_parent()
    channel = ChildChannel(socket.socket(fileno=int(arguments[0])))
    try:
        return _serve(channel)
    except ChannelClosed:
        return 0
    except FrameError as error:
        print(f"forebay engine: bad frame from the parent: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAULT


def _serve(channel: ChildChannel) -> int:
    start = _first(channel)
    try:
        stepper = _build(start, channel)
    except (ChannelClosed, FrameError):
        raise
    except Exception as error:  # the parent is told why, whatever the engine threw
        traceback.print_exc()
        channel.send(Fault(f"{type(error).__name__}: {error}"))
        return EXIT_FAULT
    channel.send(Ready(stepper.limits()))
    try:
        while True:
            _turn(channel, stepper)
    except EngineCrash as crash:
        print(f"forebay engine: crash: {crash}", file=sys.stderr)  # noqa: T201
        return EXIT_CRASH
    except (ChannelClosed, FrameError):
        raise
    except Exception:  # a step that throws leaves an engine nobody can trust
        traceback.print_exc()
        return EXIT_FAULT
    finally:
        stepper.close()


def _turn(channel: ChildChannel, stepper: Stepper) -> None:
    """Everything that has arrived, then one step if it is due."""
    for frame in channel.receive(stepper.next_due()):
        _apply(stepper, frame)
    due = stepper.next_due()
    if due is not None and due <= 0:
        outputs = stepper.step()
        channel.send(Step(outputs, stepper.kv_use(), stepper.made))


def _apply(stepper: Stepper, frame: ToChild) -> None:
    match frame:
        case Submit():
            stepper.submit(frame)
        case Cancel():
            stepper.cancel(frame.sequence)
        case _:
            raise FrameError("a second start")


def _first(channel: ChildChannel) -> Start:
    """The parent says nothing after Start until we are ready."""
    match channel.receive(None):
        case [Start() as start]:
            return start
        case frames:
            raise FrameError(f"expected a start, got {len(frames)} other frames")


def _build(start: Start, channel: ChildChannel) -> Stepper:
    if start.scripted is not None:
        if channel.receive(start.scripted.start_seconds):
            raise FrameError("work before ready")
        clock = SystemClock()
        journal = Journal(start.scripted.log_path, keep=False, clock=clock)
        return ScriptedStepper(start.settings, start.scripted, clock, journal)
    # OpenVINO's package reports its import to its maker's analytics unless this module is missing.
    # Nothing of an operator's machine is told to anybody.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    # Imported here: the scripted engine must start in a moment, and on machines without OpenVINO.
    from forebay.engine.openvino import OpenVinoStepper  # noqa: PLC0415

    return OpenVinoStepper(start.weights, start.settings, prefix_cache=start.prefix_cache)


def _die_with_parent() -> None:
    """A second belt: the end of the socket is the rule, and works everywhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    # Not sys.exit: an engine's threads and destructors must not delay or hang the end.
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)
