"""Time of the first call of a problem whose record another process wrote, as a ratio within one run.

The process is warm: plugins are imported, kernels compiled and verified, and other problems of the operator
were called. Several new sessions call each problem. The minimum counts, because noise only adds time, minus
the call's own work. The limit of the median over problems is 300 us on a host that forms one tensor's key
in 0.34 us, as in ``test_overhead``; it is higher for calls of many tensors. The watch is off;
docs/adr/0029-watch.md has its effect on the first calls of a problem.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from nxcore.measure.race import Effort
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import tensors_of
from nxcore.store.encoding import encoded

REFERENCE_KEY_US = 0.34
LIMIT_US, TENSORS, MORE_US = 300.0, 3, 35.0
"""The limit for up to three tensors, and for each further tensor."""
WARM, COUNTED, SESSIONS = 6, 20, 10
MOST, SAME = 40, 1.1
"""The largest number of sessions, and the allowed difference of the host's clock rate during one."""
QUICK = Effort(looks=(6,), warm_s=1e-3, budget_s=0.1)

CASES: Mapping[str, tuple[str, Callable[[int], tuple[Any, ...]]]] = {
    "add": ("add", lambda n: (torch.randn(100 + n), torch.randn(100 + n))),
    "sum": ("sum", lambda n: (torch.randn(64, 100 + n), 0)),
    "max_pool2d": ("max_pool2d", lambda n: (torch.randn(1, 4, 8 + n, 8), 3, 1, 1)),
    "softmax_sum of 8": (
        "softmax_sum",
        lambda n: (tuple(torch.randn(4, 100 + n) for _ in range(8)), torch.randn(8)),
    ),
}


def _us(call: Callable[[], Any]) -> float:
    started = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - started) * 1e-3


def _key_us() -> float:
    """Return the microseconds to read four properties of a tensor."""
    x = torch.randn(3, 4)
    key = timeit.repeat(lambda: (x.shape, x.stride(), x.dtype, x.device), number=1000, repeat=40)
    return (min(key) - min(timeit.repeat(lambda: None, number=1000, repeat=40))) * 1e3


def _let(label: str, folder: Path) -> None:
    """Set ``label`` as the winner in every page, so that a first call plans its kernel."""
    for path in folder.glob("v1/*/entries/*.json"):
        page = json.loads(path.read_text())
        page["value"]["decision"] |= {"chosen": label, "rule": "measured"}
        path.write_text(encoded(page))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread, so that its threads don't add to the time."""
    # As set: a first call's look-up has one thread; it is counted in reads of a tensor.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("chosen", ["torch", "numba"])
@pytest.mark.parametrize("case", CASES)
def test_a_miss_that_finds_its_page_stays_within_its_limit(
    case: str, chosen: str, tmp_path: Path, record_property: Any
) -> None:
    name, make = CASES[case]
    problems = [make(n) for n in range(WARM + COUNTED)]
    registry = discover()
    before = Session(Settings(cache=tmp_path, policy="measure"), registry, QUICK)
    for args in problems:
        before.op(name)(*args)
    _let(chosen, tmp_path)
    first, hits = ([float("inf")] * len(problems) for _ in range(2))
    unit, counted = _key_us() / REFERENCE_KEY_US, 0
    for _ in range(MOST):
        session = Session(Settings(audit=False, cache=tmp_path), registry, QUICK)
        op = session.op(name)
        taken = [[_us(functools.partial(op, *args)) for args in problems] for _ in range(2)]
        assert {c.decision.chosen for c in session.chooser.choices.values()} == {chosen}
        before, unit = unit, _key_us() / REFERENCE_KEY_US
        if max(before, unit) > SAME * min(before, unit):
            continue  # the host's clock changed on the way
        for least, us in zip((first, hits), taken, strict=True):
            least[:] = [min(known, t / unit) for known, t in zip(least, us, strict=True)]
        counted += 1
        if counted == SESSIONS:
            break
    assert counted, "the host's clock rate changed during every session"
    cost = statistics.median(f - h for f, h in zip(first[WARM:], hits[WARM:], strict=True))
    more = max(len(tensors_of(op.spec.bind(*problems[0]))) - TENSORS, 0)
    limit = LIMIT_US + MORE_US * more
    print(f"\n{case}: a first call with winner {chosen} takes {cost:.0f} us, limit {limit:.0f} us")
    record_property("miss_us", cost)
    assert cost <= limit
