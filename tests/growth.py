"""How the work grows with the input: a measure that is the same on every machine."""

import sys
import time
from collections.abc import Callable


def n_calls(function: Callable[[], object]) -> int:
    """Calls of functions, in Python and in C, while this one runs."""
    n = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return n


def assert_linear(small: Callable[[], object], large: Callable[[], object], factor: int) -> None:
    """Fails where the work of `large`, whose input is `factor` times that of `small`, is not in
    proportion: in calls, and in the time of the processor, which also sees what happens within a
    call (the best of a few tries; only a square of the factor is told from it).
    """
    small()  # what is imported and cached by the first is none of its work
    calls = n_calls(large) / n_calls(small)
    assert calls < 1.25 * factor, f"{calls:.1f} times the calls for {factor} times the input"

    def seconds(function: Callable[[], object]) -> float:
        began = time.process_time()
        function()
        return time.process_time() - began

    times = min(seconds(large) for _ in range(2)) / min(seconds(small) for _ in range(3))
    assert times < 4 * factor, f"{times:.1f} times the time for {factor} times the input"
