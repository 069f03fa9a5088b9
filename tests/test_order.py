"""The problems that matter most are measured first."""

import torch

from benchmarks.order import by_worth
from nxcore.offline.ahead import Cell
from nxcore.spec.problem import Problem
from tests.null import fakes
from tests.null.fakes import SPECS


def cell(name, size, calls):
    x = torch.empty(size)
    args = (x, x, 1, None)
    return Cell(SPECS["add"], name, lambda: args, problem=Problem.of(SPECS["add"], args), calls=calls)


def names(*traces):
    return [c.name for c in by_worth(fakes.registry(), traces)]


def test_many_calls_and_much_memory_are_first():
    few, many, large = cell("few", 8, 1), cell("many", 16, 50), cell("large", 1 << 24, 20)
    assert names([few, many, large]) == ["large", "many", "few"]


def test_a_problem_of_several_recordings_is_measured_once_and_earlier():
    own, shared, other = cell("own", 8, 10), cell("shared", 16, 9), cell("other", 32, 10)
    again = cell("again", 16, 9)
    found = by_worth(fakes.registry(), [[own, shared], [other, again]])
    assert found[0].calls == 18
    assert found[0].problem == shared.problem
    assert sorted(c.name for c in found[1:]) == ["other", "own"]


def test_samples_are_last_and_stay_in_order():
    samples = [Cell(SPECS["add"], name, lambda: ()) for name in ("b", "a")]
    assert names(samples, [cell("met", 8, 1)]) == ["met", "b", "a"]


def test_a_gradient_is_measured_just_before_its_call():
    registry = fakes.registry()
    spec, back = registry.spec("depthwise_conv2d"), registry.spec("depthwise_conv2d_backward")

    def of(op, n):
        x, w = torch.empty(n, 2, 6, 6), torch.empty(2, 1, 3, 3)
        given = ([torch.empty(n, 2, 6, 6)] if op is back else []) + [x, w, (1, 1), (1, 1), (1, 1)]
        args = (*given, *[p.default for p in op.params[len(given) :]])
        return Cell(op, f"{op.name} {n}", lambda: args, problem=Problem.of(op, args), calls=n)

    trace = [of(spec, 1), of(back, 1), of(spec, 4), of(back, 4)]
    found = [c.name for c in by_worth(registry, [trace])]
    assert found == [
        "depthwise_conv2d_backward 4",
        "depthwise_conv2d 4",
        "depthwise_conv2d_backward 1",
        "depthwise_conv2d 1",
    ]
