"""Gradients of many candidates are allocated together where a GPU's launch is repeated."""

import pytest
import torch

import nxcore
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

COMPILED = pytest.mark.parametrize("path", ["compiled"], indirect=True)
SIZES = ((3, 5), (7,), (2, 2))


def plan(driver, *, form=tuple, shape=SHAPE):
    """Return a backward plan of one launch, which gets the last gradient of a candidate and another one."""

    def noting(grad, xs, logits, mask):
        many = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in xs]
        one = torch.empty(logits.shape)
        pointers = ((0, grad.data_ptr()), (8, many[-1].data_ptr()), (16, one.data_ptr()))
        note(Launched(5, CONTEXT, shape, bytes(24), (0, 8, 16), pointers, driver=driver.addresses))
        return form(many), one

    return launched.recorded(lambda *args: "python", lambda: noting)


def arguments(shapes, dtype=torch.float32):
    xs = tuple(torch.ones(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return torch.ones(4), xs, torch.ones(len(xs), requires_grad=True)


def gradients(driver, shapes=SIZES, *, dtype=torch.float32, **about):
    """Return a function that passes backward through a node: candidates' gradients, and another one."""
    spec = nxcore.op("softmax_sum").spec
    grad, xs, logits = arguments(shapes, dtype)
    node = Differentiable(
        spec,
        Problem.of(spec, (xs, logits)).args,
        spec.gradient,
        lambda *_: torch.empty(4),
        plan(driver, **about),
        None,
    ).compiled(EXTENSION)

    def run():
        *many, one = torch.autograd.grad(node(xs, logits), [*xs, logits], grad)
        return many, one

    return run


def storages(tensors):
    return {t.untyped_storage().data_ptr() for t in tensors}


@COMPILED
@pytest.mark.parametrize("form", [tuple, list])
def test_they_are_parts_of_one_allocation(path, form):
    driver = Driver()
    run = gradients(driver, form=form)
    for _ in range(2):
        many, one = run()
        assert [tuple(t.shape) for t in many] == list(SIZES)
        assert all(t.is_contiguous() and t.dtype is torch.float32 and not t.is_inference() for t in many)
        assert len(storages(many)) == 1
        assert not storages(many) & storages([one])
        begin = many[0].untyped_storage().data_ptr()
        assert [t.data_ptr() - begin for t in many] == [0, 512, 1024]
        assert driver.launches[-1][-1][1:] == [many[-1].data_ptr(), one.data_ptr()]


@COMPILED
def test_results_of_the_operators_own_call_have_memory_of_their_own(path):
    """Torch forbids what compilers see as an operator to return tensors that share memory."""
    driver = Driver()
    made, given = plan(driver), arguments(SIZES)
    for _ in range(2):
        many, one = made(*given, (True,) * 4)
        assert len(storages([*many, one])) == len(SIZES) + 1
        assert [t.untyped_storage().nbytes() for t in many] == [t.nbytes for t in many]
        assert driver.launches[-1][-1][1:] == [many[-1].data_ptr(), one.data_ptr()]
    assert len(driver.launches) == 2


@COMPILED
def test_each_is_a_tensor_of_its_own(path):
    many, _ = gradients(Driver())()
    for value, tensor in enumerate(many):
        before = [t._version for t in many]
        tensor.fill_(value)
        assert [t._version - b for t, b in zip(many, before, strict=True)] == [t is tensor for t in many]
        assert not tensor._is_view()
    assert [t.unique().tolist() for t in many] == [[0], [1], [2]]


@COMPILED
def test_what_is_left_of_them_keeps_the_memory(path):
    run = gradients(Driver())
    kept = run()[0][1].fill_(3)
    for _ in range(8):
        for other in run()[0]:
            other.fill_(4)
    assert kept.unique().tolist() == [3]


@COMPILED
def test_large_ones_have_memory_of_their_own(path):
    many, _ = gradients(Driver(), ((2**18,), (2**18 + 1,), (3,)))()
    large, apart, small = storages(many[:1]), storages(many[1:2]), storages(many[2:])
    assert large == small != apart


@COMPILED
def test_types_of_other_sizes_begin_where_theirs_may(path):
    many, _ = gradients(Driver(), dtype=torch.bfloat16)()
    assert [t.storage_offset() * 2 for t in many] == [0, 512, 1024]


@COMPILED
def test_one_alone_is_no_part(path):
    many, one = gradients(Driver(), SIZES[:1])()
    assert many[0].untyped_storage().nbytes() == 60
    assert one.untyped_storage().nbytes() == 4


def through_an_operator(made, xs, logits, grad):
    """Return a node whose backward operator has ``made`` as its plan."""
    spec = nxcore.op("softmax_sum").spec
    back = Session(Settings(native=True), discover(found=())).op("softmax_sum_backward")
    with torch.no_grad():
        back.replan(back.key(grad, xs, logits, (True,) * (len(xs) + 1)), made)
    described = Problem.of(spec, (xs, logits)).args
    return Differentiable(spec, described, spec.gradient, lambda *_: torch.empty(4), back, None).compiled(
        EXTENSION
    )


@COMPILED
def test_a_plan_in_python_reads_the_gradients_of_a_program_that_it_calls(path):
    driver, seen = Driver(), []
    grad, xs, logits = arguments(SIZES)
    made = plan(driver)

    def watched(*args):
        seen.append(made(*args))
        return seen[-1]

    node = through_an_operator(watched, xs, logits, grad)
    for _ in range(2):
        found = torch.autograd.grad(node(xs, logits), [*xs, logits], grad)
        many, one = seen[-1]
        assert [t.data_ptr() for t in found] == [t.data_ptr() for t in (*many, one)]
    assert len(driver.launches) == 2


@pytest.mark.gpu
@COMPILED
def test_leaves_get_gradients_of_their_own(path):
    xs = [torch.randn(4, 96, 24, 24, device="cuda", requires_grad=True) for _ in range(8)]
    logits = torch.randn(8, device="cuda", requires_grad=True)
    blend, grad = nxcore.op("softmax_sum", backend="cuda"), torch.randn(4, 96, 24, 24, device="cuda")
    wanted = torch.autograd.grad(blend.spec.reference(xs, logits), [*xs, logits], grad)
    for times in (1, 2, 3):
        blend(xs, logits).backward(grad)
        for leaf, one in zip((*xs, logits), wanted, strict=True):
            torch.testing.assert_close(leaf.grad, times * one, rtol=1e-4, atol=1e-4)
    for leaf in (*xs, logits):
        leaf.grad = None
    blend(xs, logits).backward(grad)
    xs[3].grad.zero_()
    xs[5].grad.record_stream(torch.cuda.Stream())
    kept = xs[4].grad
    del xs[:4]
    assert torch.allclose(kept, wanted[4], rtol=1e-4, atol=1e-4)
