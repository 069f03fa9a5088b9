"""Kernels that are timed as faster than they are: each is named, and none is chosen.

The patterns are from public reports on benchmarks of generated kernels. One needs a GPU: work on a stream
other than the current one (``test_backends``).
"""

import signal
import statistics
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nxcore.errors import MeasurementError
from nxcore.measure import clock
from nxcore.measure.race import Race, race
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec import driver
from nxcore.spec.problem import leaves
from nxcore.trust.state import CUDA_FACTS
from tests.null import fakes
from tests.null.fakes import SPECS

Call = Callable[..., Any]

X = torch.randn(64, 64)
ADD = SPECS["add"].reference


def remembers(key: Callable[[Tensor], Any]) -> Callable[[], Call]:
    """Return what keeps results by a property of the first argument."""

    def make() -> Call:
        known: dict[Any, Tensor] = {}

        def call(*args: Any) -> Tensor:
            first = next(leaves(args))
            if key(first) not in known:
                known[key(first)] = ADD(*args)
            return known[key(first)].clone()

        return call

    return make


def stale() -> Call:
    """Return memory that it doesn't write."""
    return lambda *args: torch.zeros_like(ADD(*args))


def rounded() -> Call:
    """Compute in half precision."""

    def call(x: Any, y: Any, alpha: Any, out: Any) -> Tensor:
        return ADD(x.half(), y.half() if isinstance(y, Tensor) else y, alpha, None).float()

    return call


class Later(Tensor):
    """A tensor whose numbers aren't computed yet."""


def lazy() -> Call:
    """Return a subclass."""
    return lambda *args: ADD(*args).as_subclass(Later)


def turns() -> Call:
    """Be right in the calls of the gate, and give what a race meets from another call."""
    calls = 0

    def call(*args: Any) -> Tensor:
        nonlocal calls
        calls += next(leaves(args)).shape == X.shape
        return ADD(*args) if calls < 3 else torch.empty_like(args[0]).fill_(float("nan"))

    return call


def knows_when_it_is_timed() -> Call:
    """Leave the work out where the arguments are those of the last call."""
    last: list[Any] = [None]

    def call(*args: Any) -> Tensor:
        before, last[0] = last[0], args[0]
        return torch.zeros_like(args[0]) if before is args[0] else ADD(*args)

    return call


def in_the_background() -> Call:
    """Let a thread write the result."""

    def call(*args: Any) -> Tensor:
        right = ADD(*args)
        result = torch.empty_like(right)
        threading.Timer(0.05, result.copy_, [right]).start()
        return result

    return call


def replaces(owner: Any, name: str, make: Callable[[Call], Call]) -> Callable[[], Call]:
    """Return what replaces a function that a race reads time by, once a race may have begun."""

    def maker() -> Call:
        def call(*args: Any) -> Tensor:
            if next(leaves(args)).shape == X.shape and getattr(owner, name) is ORIGINAL[name]:
                setattr(owner, name, make(ORIGINAL[name]))
            return ADD(*args)

        return call

    return maker


ORIGINAL = {name: getattr(owner, name) for owner, name in ((time, "perf_counter_ns"), (statistics, "median"))}
ORIGINAL |= {name: getattr(torch.cuda.Event, name) for name in ("elapsed_time", "record")}
ORIGINAL["synchronize"] = torch.cuda.synchronize

PATTERNS: dict[str, tuple[Callable[[], Call], str]] = {
    "kept by address": (remembers(Tensor.data_ptr), "wrong on sample"),
    "kept by id": (remembers(id), "wrong on sample"),
    "kept by shape": (remembers(lambda t: t.shape), "wrong on sample"),
    "memory that isn't written": (stale, "wrong on sample"),
    "a lower precision": (rounded, "wrong on sample"),
    "a lazy tensor": (lazy, "Later"),
    "another kernel later": (turns, "its results are wrong while it is timed"),
    "right where it isn't timed": (knows_when_it_is_timed, "wrong on sample"),
    "a background thread": (in_the_background, "wrong on sample"),
    "a clock": (
        replaces(time, "perf_counter_ns", lambda own: lambda: own() // 10),
        "time.perf_counter_ns was replaced",
    ),
    "a median": (
        replaces(statistics, "median", lambda own: lambda values: own(values) / 2),
        "statistics.median was replaced",
    ),
    "an event": (
        replaces(torch.cuda.Event, "elapsed_time", lambda own: lambda a, b: own(a, b) / 2),
        "Event.elapsed_time was replaced",
    ),
    "a synchronisation": (
        replaces(torch.cuda, "synchronize", lambda own: lambda *_: None),
        "torch.cuda.synchronize was replaced",
    ),
}


@pytest.fixture(autouse=True)
def _own_functions():
    yield
    time.perf_counter_ns, statistics.median = ORIGINAL["perf_counter_ns"], ORIGINAL["median"]
    torch.cuda.synchronize = ORIGINAL["synchronize"]
    torch.cuda.Event.elapsed_time = ORIGINAL["elapsed_time"]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_kernel_that_fools_a_clock_is_named_and_not_chosen(name):
    make, reason = PATTERNS[name]
    hostile = fakes.backend("hostile", fakes.kernel("add", make()))
    session = Session(Settings(policy="measure"), fakes.registry(hostile), fakes.QUICK)
    result = session.op("add")(X, X)
    assert torch.equal(result, X + X)
    decision = session.explain("add", X, X).decision
    assert decision.chosen == "torch"
    assert reason in f"{decision.reason}; {decision['hostile'].refusal}", (
        decision.reason,
        decision["hostile"],
    )


def test_results_of_one_function_in_two_precisions_are_alike():
    x = torch.randn(1000)
    assert not clock.unlike(x.half(), x.half() * 1.001)
    assert not clock.unlike((x, torch.arange(3)), (x * 1.001, torch.arange(3) + 1))
    assert not clock.unlike(torch.zeros(3), torch.zeros(3))
    assert not clock.unlike(torch.full((3,), 1e4).half(), torch.full((3,), 1.001e4).half())
    assert (
        clock.unlike(torch.zeros(3), torch.ones(3))
        == "its distance from torch's is 1.7, and the norm of torch's is 1.7"
    )
    assert clock.unlike(torch.full((3,), torch.nan), torch.ones(3))


def test_an_interruption_is_no_error_of_the_clock(monkeypatch):
    """A kernel that replaces a function, and is interrupted then, ends as interrupted."""

    def interrupted() -> None:
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        race({"torch": interrupted}, torch.device("cpu"))
    with pytest.raises(MeasurementError, match=r"torch\.cuda\.synchronize was replaced"):
        race({"torch": lambda: None}, torch.device("cpu"))


def test_two_clocks_that_disagree_give_no_figures(monkeypatch):
    """What slows one of them needn't be a function of Python."""
    monkeypatch.setattr(clock, "second", lambda: 3 * time.perf_counter_ns())
    with pytest.raises(MeasurementError, match="two clocks disagree"):
        race({"torch": lambda: None}, torch.device("cpu"), effort=fakes.QUICK)
    assert not clock.apart(500_000, 410_000, 30_000_000)
    assert not clock.apart(90_000, 10_000, 20_000), "too short"


def library(limit, window):
    """Return the driver's library, as far as the cache is concerned."""
    return SimpleNamespace(
        cuCtxGetLimit=lambda found, _: setattr(found._obj, "value", limit[0]) or 0,
        cuCtxSetLimit=lambda _, value: limit.__setitem__(0, value.value),
        cuCtxResetPersistingL2Cache=lambda: None,
        cuStreamGetAttribute=lambda stream, _, found: setattr(found, "raw", window[0]) or 0,
        cuStreamSetAttribute=lambda stream, _, value: window.__setitem__(0, value.raw),
    )


@pytest.mark.parametrize("what", driver.WHAT)
def test_a_cache_that_is_left_set_aside_is_named_and_put_back(what, monkeypatch, cuda_answers):
    limit, window, failed = [0], [bytes(64)], []
    monkeypatch.setattr(driver, "library", lambda: library(limit, window))
    cuda_answers(current_stream=lambda: SimpleNamespace(cuda_stream=0))
    calls = dict.fromkeys(("torch", "hostile"))
    made = Race(calls, torch.device("cuda"), failed=lambda *found: failed.append(found))
    made._cache, before = (driver.aside(), driver.window()), CUDA_FACTS[what].read()
    value = 1 << 20 if what == driver.WHAT[0] else b"1" * 28
    assert made._attempt("torch", lambda *_: None)
    assert not made._attempt("hostile", lambda *_: CUDA_FACTS[what].write(value))
    assert (failed[0][0], str(failed[0][1])) == ("hostile", f"it left {what} changed")
    assert CUDA_FACTS[what].read() == before != value
