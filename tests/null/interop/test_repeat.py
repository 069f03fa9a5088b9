"""A backward pass repeats its operator's program as long as the operator would run it, and no longer."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import nxcore
from nxcore.choose.learn.exploration import Switch
from nxcore.interop import native
from nxcore.interop.autograd import Differentiable
from nxcore.plugin import Launched, note
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec import launched
from nxcore.spec.problem import Problem

if (EXTENSION := native.found().extension) is None:
    pytest.skip(f"nxcore-native: {native.found().detail}", allow_module_level=True)

from tests.null.interop.test_program import CONTEXT, SHAPE, Driver

pytestmark = pytest.mark.parametrize("path", ["compiled"], indirect=True)


class Pair:
    """A forward operator whose backward operator has a plan of one launch.

    The launch gets the addresses of the gradient and of the first saved tensor, and a number.
    """

    def __init__(self, name: str, *args, number: float = 0.0, switched: bool = False) -> None:
        self.driver, self.plain = Driver(), []
        spec, self.args = nxcore.op(name).spec, args
        self.leaves = [t for a in args for t in (a if isinstance(a, list) else [a]) if isinstance(t, Tensor)]
        self.out = spec.reference(*args).detach()
        self.back = Session(Settings(native=True), discover(found=())).op(spec.gradient.op)
        self.switch = Switch(self, self.plan(number))
        needed = tuple(t.requires_grad for t in self.leaves)
        tensors = tuple(tuple(a) if isinstance(a, list) else a for a in args)
        self.given = spec.gradient.args(torch.ones_like(self.out), needed, *tensors)
        self.use(self.switch.call if switched else self.switch.target)
        described = Problem.of(spec, args).args
        made = Differentiable(spec, described, spec.gradient, lambda *_: self.out.clone(), self.back, None)
        self.node = made.compiled(EXTENSION)

    def use(self, plan) -> None:
        """Let the backward operator call ``plan``."""
        with torch.no_grad():
            self.back.replan(self.back.key(*self.given), plan)

    def plan(self, number: float = 0.0):
        """Return a plan of a launch; the callable behind it notes its calls."""

        def noting(grad, first, *rest):
            saved = first[0] if isinstance(first, tuple) else first
            numbers = [one for one in rest if isinstance(one, float)]
            made = [torch.empty(t.shape) if t.requires_grad else None for t in self.leaves]
            block = bytes(16) + int(8 * (numbers or [number])[0]).to_bytes(8, "little")
            pointers = ((0, grad.data_ptr()), (8, saved.data_ptr()))
            note(Launched(5, CONTEXT, SHAPE, block, (0, 8, 16), pointers, driver=self.driver.addresses))
            return tuple(made)

        def call(*given):
            self.plain.append(given)
            return tuple(torch.zeros(t.shape) if t.requires_grad else None for t in self.leaves)

        return launched.recorded(call, lambda: noting)

    def run(self, grad: Tensor | None = None, *args) -> list[int]:
        """Run both ways, and return what the last launch got."""
        given = args or self.args
        result = self.node(*given)
        result.backward(torch.ones_like(result) if grad is None else grad)
        return self.driver.launches[-1][-1] if self.driver.launches else []

    @property
    def counts(self) -> tuple[int, int]:
        """How many passes launched, and how many called Python's plan."""
        return len(self.driver.launches), len(self.plain)


@pytest.fixture
def blend():
    """Return a weighted sum of two candidates after two passes, of which the second was repeated."""
    xs = [torch.ones(3, 4, requires_grad=True) for _ in range(2)]
    pair = Pair("softmax_sum", xs, torch.ones(2, requires_grad=True))
    for _ in range(2):
        pair.run()
    assert pair.counts == (2, 0)
    return pair


def test_a_pass_gets_its_own_tensors(path, blend):
    grads = [torch.ones(3, 4) for _ in range(3)]
    for grad in grads:
        other = torch.ones(3, 4, requires_grad=True)
        words = blend.run(grad, [other, blend.args[0][1]], blend.args[1])
        assert words[:2] == [grad.data_ptr(), other.data_ptr()]
    assert blend.counts == (5, 0)


def test_a_gradient_of_another_layout_is_looked_up(path, blend):
    wide = torch.ones(1, 4).expand(3, 4)
    blend.run(wide)
    assert blend.counts == (2, 0), "torch serves it: no plan is known for it"
    grad = torch.ones(3, 4)
    assert blend.run(grad)[0] == grad.data_ptr()


def test_data_that_moved_is_found_where_it_is(path, blend):
    first = blend.args[0][0]
    result = blend.node(*blend.args)
    first.data = torch.full((3, 4), 2.0)
    result.backward(torch.ones(3, 4))
    assert blend.driver.launches[-1][-1][1] == first.data_ptr()


def test_data_of_another_size_is_not_taken(path, blend):
    first = blend.args[0][0]
    result = blend.node(*blend.args)
    first.data = torch.ones(2, 4)
    with pytest.raises((RuntimeError, ValueError)):
        result.backward(torch.ones(3, 4))
    assert blend.counts == (2, 0)


def test_a_plan_that_was_replaced_is_not_repeated(path, blend):
    ran = []
    blend.use(lambda *given: ran.append(given) or ([torch.zeros(3, 4)] * 2, torch.zeros(2)))
    blend.run()
    assert (len(ran), *blend.counts) == (1, 2, 0)


def test_behind_a_switch_the_target_is_repeated(path):
    xs = [torch.ones(3, 4, requires_grad=True) for _ in range(2)]
    pair = Pair("softmax_sum", xs, torch.ones(2, requires_grad=True), switched=True)
    for _ in range(3):
        pair.run()
    ran = []
    pair.switch.to(lambda *given: ran.append(given) or ([torch.zeros(3, 4)] * 2, torch.zeros(2)))
    pair.run()
    assert (len(ran), *pair.counts) == (1, 3, 0)
    pair.switch.to(pair.plan())
    pair.run()
    assert (len(ran), *pair.counts) == (1, 4, 0)


def test_what_the_program_prefers_counts(path, blend):
    with nxcore.use("torch"):
        blend.run()
    assert blend.counts == (2, 0)
    blend.run()
    assert blend.counts == (3, 0)


def test_a_failed_launch_is_made_by_the_plan(path, blend):
    blend.driver.fails.add("launch")
    blend.run()
    assert blend.plain
    assert blend.args[1].grad is not None


def test_each_number_has_its_program(path):
    logits = torch.ones(3, 4, requires_grad=True)
    pair = Pair("gumbel_softmax", logits, 0.5, False, torch.ones(3, 4))
    for tau in (0.5, 0.5, 0.25, 0.25, 0.5):
        assert pair.run(None, logits, tau, False, torch.ones(3, 4))[2] == int(8 * tau)
    assert pair.counts == (5, 0)


def test_gradients_that_are_not_needed_are_none(path):
    xs = [torch.ones(3, 4, requires_grad=True), torch.ones(3, 4)]
    pair = Pair("softmax_sum", xs, torch.ones(2))
    for _ in range(3):
        pair.run()
    assert pair.counts == (3, 0)
    assert xs[1].grad is None
    assert xs[0].grad is not None


def test_threads_repeat_one_pass(path, blend):
    def work(_):
        for _ in range(100):
            leaves = [torch.ones(3, 4, requires_grad=True) for _ in range(2)]
            found = torch.autograd.grad(blend.node(leaves, blend.args[1]), leaves, torch.ones(3, 4))
            assert [one.shape for one in found] == [(3, 4)] * 2

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert blend.counts == (402, 0)


def test_a_graph_that_was_walked_keeps_no_tensor(path, blend):
    first = torch.ones(3, 4, requires_grad=True) * 1
    result, gone = blend.node([first, blend.args[0][1]], blend.args[1]), weakref.ref(first)
    del first
    result.backward(torch.ones(3, 4))
    assert blend.counts == (3, 0)
    assert gone() is None
