"""Ctrl-C and SIGTERM, which end a command with a line that says how to go on."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import typer

REPEAT_SECONDS = 10.0

OWN = {"experiments", "virl_tf"}
TENSORFLOW = {"keras", "tensorflow", "tensorflow_probability", "tf_keras"}


@contextlib.contextmanager
def interruptible(then: str = "continues from the last finished iteration") -> Iterator[None]:
    """Ctrl-C and SIGTERM (what a cluster sends before the time is up) say how to go on.

    Python drops an exception that is raised in a destructor or in a library's callback, and the
    signal with it; so it is raised again if the work goes on, then wherever it comes.
    """
    stopping = False

    def stop(_: int, frame: FrameType | None) -> None:
        nonlocal stopping
        signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)
        own = None if stopping else _own_caller_of_tensorflow(frame)
        stopping = True
        if own is None:
            raise KeyboardInterrupt
        _interrupt(own)

    tracing = sys.gettrace()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; the same command {then}.", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.settrace(tracing)


def _own_caller_of_tensorflow(frame: FrameType | None) -> FrameType | None:
    """Where control comes back to this project's code; None outside of TensorFlow.

    Its C++ calls Python back without expecting an exception: one that was raised there has ended
    the process with a SystemError, and with a segmentation fault. Its import takes seconds and is
    not waited for.
    """
    inside = False
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package in OWN:
            return frame if inside else None
        if frame.f_code.co_name == "<module>":
            return None
        inside = inside or package in TENSORFLOW
        frame = frame.f_back
    return None


def _interrupt(frame: FrameType) -> None:
    """Raise KeyboardInterrupt at the next line of `frame`, or where it returns."""

    def raise_here(*_: Any) -> None:
        raise KeyboardInterrupt

    frame.f_trace = raise_here
    sys.settrace(lambda *_: None)  # without a tracer Python does not look at f_trace
