"""What kernels take where nobody measured, on invented machines: device, host, and the ways that calls go."""

from __future__ import annotations

import random

import pytest
import torch

from nxcore.choose.estimate.model import Point, forecasts
from nxcore.choose.estimate.neighbours import guess, point
from nxcore.measure.timing import Timing
from nxcore.spec.problem import Problem
from nxcore.spec.sample import Sample, rand
from nxcore.spec.spec import Cost
from tests.null.fakes import SPECS

BOTH = ("torch", "fast")
SIZES = (100, 200, 400, 800, 1600, 3200, 6400, 12800)


def seen(size, shared=None, **us):
    """Return a problem of this size; ``us`` are times of device and host by label."""
    times = {n: Timing((device,) * 12, (host,) * 12) for n, (device, host) in us.items()}
    return Point((size,), Cost(4 * size, size), times, branches={} if shared is None else {"fast": shared})


def problem(op, *args):
    return Problem.of(SPECS[op], Sample("it", args).build(SPECS[op], "cpu", torch.float32))


def test_a_point_counts_results_and_knows_how_wide_a_load_can_be():
    rows = point(problem("sum", rand(64, 128), -1), {}, {})
    assert (rows.results, rows.grain) == (64, 16)
    assert point(problem("sum", rand(64, 130), -1), {}, {}).grain == 8
    assert point(problem("sum", rand(64, 129), -1), {}, {}).grain == 4
    assert point(problem("sum", rand(64, 128), 0), {}, {}).results == 128
    assert len(rows.place) == len(rows.sizes) + 3


def test_how_fast_the_host_was_at_each_point_is_no_miss_of_the_model():
    """Where the host is quick, torch waits for the device: what they took differs, for a known reason."""
    dice = random.Random(1)
    points = []
    for size in SIZES:
        pace = dice.uniform(1, 2)
        points.append(seen(size, torch=(10.0, 6.5 * pace), fast=(2.0, 5 * pace)))
    found = forecasts(seen(1000), points, points, BOTH)
    assert max(map(abs, found["fast"].missed)) < 0.02
    assert found["fast"].log == pytest.approx(-0.3, abs=0.1)


def test_the_steadiest_host_is_the_pace_of_all():
    """A reference that loops over its arguments takes as long as there are many."""
    dice = random.Random(2)
    points = []
    for size in SIZES:
        pace = dice.uniform(1, 1.5)
        points.append(seen(size, torch=(1.0, size / 10 * pace), fast=(1.0, 5 * pace)))
    found = forecasts(seen(1000), points, points, BOTH)
    assert found["torch"].log + found["fast"].log == pytest.approx(1.83, abs=0.1)


@pytest.mark.parametrize(("shared", "beside"), [(False, -0.29), (True, 0.18), ("never", None)])
def test_what_the_host_takes_depends_on_the_way_that_a_call_goes(shared, beside):
    """Where blocks share outputs a call costs the host more, whatever its size."""
    hosts = {size: (size in SIZES[::2], 12.0 if size in SIZES[::2] else 7.5) for size in SIZES}
    points = [seen(n, shared=way, torch=(4.0, 10.0), fast=(3.0, us)) for n, (way, us) in hosts.items()]
    at = seen(1000, shared=shared)
    found = forecasts(at, points, points, BOTH)
    told = found["fast"].log if "fast" in found else None
    assert told == (None if beside is None else pytest.approx(beside, abs=0.05))
    assert guess(at, points, BOTH).label == ("fast" if shared is False else "torch")


def test_of_a_way_that_was_gone_without_the_pace_nothing_is_told():
    """The one beside which hosts are told may not have been timed there."""
    points = [
        seen(n, shared=False, torch=(4.0, 10.0 + n % 3), steady=(9.0, 9.0), fast=(3.0, 7.5)) for n in SIZES
    ]
    points.append(seen(25_600, shared=True, torch=(4.0, 10.0), fast=(3.0, 12.0)))
    found = forecasts(seen(1000, shared=True), points[:-1], points, (*BOTH, "steady"))
    assert set(found) == {"torch", "steady"}


@pytest.mark.parametrize(("shared", "rule"), [(False, "bracketed"), (True, "prior")])
def test_points_where_a_call_goes_another_way_bracket_nothing(shared, rule):
    points = [seen(n, shared=False, torch=(4.0, 10.0), fast=(3.0, 7.5)) for n in (500, 2000)]
    assert guess(seen(1000, shared=shared), points, BOTH).rule == rule
