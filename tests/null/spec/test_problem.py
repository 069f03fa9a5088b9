"""A problem is a call minus its data: equal where kernels could be shared, with torch's own layouts."""

import dataclasses

import pytest
import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense

from nxcore.spec.problem import Problem, TensorMeta, is_tensor
from nxcore.spec.sample import rand
from nxcore.trust.truth import without_out
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

CPU = torch.device("cpu")
LAYOUTS = ("contiguous", "transposed", "sliced", "strided", "expanded")
TENSORS = {
    **{f"{n}_{'x'.join(map(str, s))}": (s, n) for n in LAYOUTS for s in ((2, 3, 4), (5, 1), (1, 7), (6,))},
    "channels_last": ((2, 3, 4, 5), "channels_last"),
    "channels_last_of_one_pixel": ((2, 3, 1, 1), "channels_last"),
    "empty": ((3, 0), "contiguous"),
    "empty_first": ((0, 3), "contiguous"),
    "zero_dimensions": ((), "contiguous"),
}


def tensor(name: str) -> torch.Tensor:
    shape, layout = TENSORS[name]
    return rand(*shape, layout=layout).build(CPU, torch.float32, 0)


@for_each("name", TENSORS)
def test_a_description_has_the_tensors_own_facts(name):
    x = tensor(name)
    meta = TensorMeta.of(x)
    assert (meta.shape, meta.stride(), meta.dtype, meta.device) == (
        tuple(x.shape),
        x.stride(),
        x.dtype,
        x.device,
    )
    assert (meta.ndim, meta.numel(), meta.element_size()) == (x.ndim, x.numel(), x.element_size())
    assert meta.nbytes == x.numel() * 4
    assert TensorMeta.of(meta) is meta


@for_each("name", TENSORS)
def test_is_contiguous_is_torchs(name):
    assert TensorMeta.of(tensor(name)).is_contiguous() == tensor(name).is_contiguous()


@for_each("name", TENSORS)
def test_is_dense_is_torchs(name):
    x = tensor(name)
    assert TensorMeta.of(x).is_dense() == (is_dense(x) or x.numel() == 0)


@for_each("name", TENSORS)
def test_empty_builds_the_same_layout(name):
    meta = TensorMeta.of(tensor(name))
    assert TensorMeta.of(meta.empty()) == meta


def test_a_description_reads_short():
    assert str(TensorMeta.of(torch.zeros(2, 3))) == "float32[2, 3]"
    assert str(TensorMeta.of(torch.zeros(2, 3).t())) == "float32[3, 2] strides (1, 3)"


def described(real):
    """Return the descriptions of a result's tensors, nested as they are."""
    if isinstance(real, tuple | list):
        return tuple(described(one) for one in real)
    return None if real is None else TensorMeta.of(real)


def listed(outputs):
    """Return descriptions with tuples in place of lists."""
    return tuple(listed(one) for one in outputs) if isinstance(outputs, tuple | list) else outputs


@for_each("spec", SPECS.values(), ids=SPECS)
def test_outputs_are_laid_out_as_the_reference_lays_them_out(spec):
    for sample in fakes.modest(spec):
        args = sample.build(spec, "cpu", torch.float32)
        real = described(spec.reference(*without_out(spec, args)))
        assert listed(Problem.of(spec, args).outputs) == real, sample.name


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("sum", (torch.zeros(2, 3, 4), (0, 2), False)),
        ("sum", (torch.zeros(1, 3, 1, 4), (0, 3), False)),
        ("mean", (torch.zeros(2, 1, 4), 1, True)),
        ("sum_to_size", (torch.zeros(1, 3, 1, 4), (3, 1, 1))),
        ("max_pool2d", (torch.zeros(2, 3, 8, 8), 3, 2, 1, 1, False, False)),
        (
            "avg_pool2d",
            (torch.zeros(2, 3, 8, 8).to(memory_format=torch.channels_last), 3, 1, 1, False, True, None),
        ),
    ],
)
def test_of_plain_calls_the_spec_tells_the_outputs_and_torch_is_not_asked(op, args):
    """To ask torch takes longer than all else in a call that is new."""
    spec = dataclasses.replace(fakes.SPECS[op], reference=lambda *args: pytest.fail("torch was asked"))
    assert Problem.of(spec, args).outputs == TensorMeta.of(fakes.SPECS[op].reference(*args))


@for_each("spec", SPECS.values(), ids=SPECS)
def test_a_problem_describes_every_tensor_in_order(spec):
    for sample in fakes.modest(spec):
        args = sample.build(spec, "cpu", torch.float32)
        problem = Problem.of(spec, args)
        assert problem.tensors == tuple(TensorMeta.of(t) for t in fakes.leaves(args)), sample.name
        assert problem.device == CPU, sample.name
        floats = [t.dtype for t in problem.tensors if t.dtype.is_floating_point]
        assert problem.dtype == (floats or [problem.tensors[0].dtype])[0], sample.name


def problem(op: str, *args, **how) -> Problem:
    return Problem.of(SPECS[op], SPECS[op].bind(*args), **how)


X = torch.zeros(4, 6)
DIFFERENT = {
    "shape": ("add", (X, torch.zeros(6))),
    "strides": ("add", (X, torch.zeros(6, 4).t())),
    "dtype": ("add", (X, X.half())),
    "a number": ("add", (X, 2.0)),
    "the type of alpha": ("add", (X, X, 1.0)),
    "out": ("add", (X, X, 1, X)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_problem_differs_in(what):
    op, args = DIFFERENT[what]
    assert problem(op, *args) != problem("add", X, X)


def test_a_problem_differs_in_what_surrounds_it():
    plain = problem("add", X, X)
    assert Problem.of(SPECS["add"], SPECS["add"].bind(X, X), needs_grad=True) != plain
    assert Problem.of(SPECS["add"], SPECS["add"].bind(X, X), aliased=True) != plain
    assert plain != "add"


def test_data_values_and_storage_make_no_difference():
    one = problem("add", X, torch.ones(4, 6), 3)
    two = problem("add", torch.ones(4, 6), torch.ones(25)[1:].view(4, 6), 7)
    assert one == two
    assert hash(one) == hash(two)


def test_a_list_and_a_tuple_are_one_problem_and_a_stack_is_another():
    xs, w = [torch.zeros(3)] * 2, torch.zeros(2)
    assert problem("softmax_sum", xs, w) == problem("softmax_sum", tuple(xs), w)
    assert problem("softmax_sum", xs, w) != problem("softmax_sum", torch.zeros(2, 3), w)
    assert problem("sum", X, [0, 1]) == problem("sum", X, (0, 1))


def test_arguments_are_found_by_name():
    found = problem("add", X, 2.5)
    assert found["x"] == TensorMeta.of(X)
    assert (found["y"], found["alpha"], found["out"]) == (float, int, None)
    with pytest.raises(KeyError, match="add has no parameter 'z'"):
        found["z"]


def test_the_accelerator_is_the_device_of_a_mixed_call():
    meta = torch.device("meta")
    assert problem("add", torch.zeros(3, device=meta), torch.zeros(())).device == meta
    assert problem("add", torch.zeros(()), torch.zeros(3, device=meta)).device == meta


def test_a_problem_reads_short_and_as_plain_data():
    found = problem("softmax_sum", [torch.zeros(3)] * 2, torch.zeros(2))
    assert str(found) == "softmax_sum(xs=2 x float32[3], logits=float32[2]) on cpu"
    mixed = problem("softmax_sum", [torch.zeros(2, 3), torch.zeros(3, 2).t()], torch.zeros(2))
    assert "xs=[float32[2, 3], float32[2, 3] strides (1, 2)]" in str(mixed)
    assert problem("add", X, 2.5).to_dict() == {
        "op": "add",
        "needs_grad": False,
        "device": "cpu",
        "x": {"shape": [4, 6], "strides": [6, 1], "dtype": "float32"},
        "y": "float",
        "alpha": "int",
        "out": None,
    }


def test_is_tensor_knows_tensors_and_descriptions():
    assert is_tensor(X)
    assert is_tensor(TensorMeta.of(X))
    assert not is_tensor([X])


@pytest.mark.parametrize("alpha", [1, 2])
def test_a_number_that_may_change_does_not_make_a_result_a_view(alpha):
    """By 1, the gradient of y is a view of the incoming one; a plan serves every number."""
    spec, grad = fakes.SPECS["add_backward"], torch.ones(1).expand(4)
    args = spec.bind(grad, (1,), (4,), alpha)
    _, y_grad = Problem.of(spec, args).outputs
    assert y_grad.strides == (1,)
    session = fakes.session(fakes.backend("fake", fakes.kernel("add_backward")))
    _, found = session.op("add_backward", backend="fake")(grad, (1,), (4,), alpha)
    assert torch.equal(found, torch.full((4,), float(alpha)))


def test_a_mask_that_requests_all_is_no_question():
    """Torch may import its compiler to describe the gradients of filters."""
    spec = dataclasses.replace(
        fakes.SPECS["depthwise_conv2d_backward"], outputs=lambda *_: pytest.fail("it was asked")
    )
    x, weight = torch.zeros(2, 4, 8, 8), torch.zeros(4, 1, 3, 3)
    assert Problem.of(spec, (x, x, weight, (1, 1), (1, 1), (1, 1), (True, True))).idle == ""
