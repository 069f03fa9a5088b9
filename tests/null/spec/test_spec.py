"""Specs are data: signatures bind, samples are built alike everywhere, refusals have one wording."""

import functools
import re
from collections.abc import Callable

import pytest
import torch

from nxcore.errors import InvalidInputError
from nxcore.plugin import REQUIRED, ErrorCase, OpSpec, Param, Sample, rand
from nxcore.spec.checks import require_same, require_tensor
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

ADD = SPECS["add"]
every_op = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def refused(call: Callable[..., object], spec: OpSpec, case: ErrorCase) -> str:
    """Return the words in which an error case is refused; those that it promises must be among them."""
    args = case.build(spec)
    with pytest.raises(InvalidInputError) as caught:
        call(*args)
    said = str(caught.value)
    assert re.search(case.match, said), f"{case.name}: {said}"
    return said


def test_bind_fills_in_defaults_and_takes_names_in_any_order():
    assert ADD.bind(1, 2) == (1, 2, 1, None)
    assert ADD.bind(y=2, alpha=3, x=1) == (1, 2, 3, None)


@for_each(
    ("args", "named", "said"),
    [
        ((1,), {}, r"add\(\) is missing its argument 'y'"),
        ((1, 2), {"beta": 3}, r"add\(\) got unexpected arguments: \['beta'\]"),
        ((1, 2), {"x": 3}, r"unexpected arguments: \['x'\]"),
        ((1, 2, 3, None, 5), {}, r"add\(\) got unexpected arguments"),
    ],
)
def test_bind_refuses(args, named, said):
    with pytest.raises(TypeError, match=said):
        ADD.bind(*args, **named)


def test_bind_draws_what_is_random_and_was_left_out():
    logits, spec = torch.zeros(3, 4), SPECS["gumbel_softmax"]
    assert repr(spec.params[3].default) == "<drawn>"
    torch.manual_seed(2)
    *_, noise = spec.bind(logits)
    torch.manual_seed(2)
    assert torch.equal(noise, torch.empty(3, 4).exponential_())
    assert spec.bind(logits, noise=noise)[3] is noise


def test_the_summary_is_the_first_line_of_the_reference():
    assert ADD.summary == "Return ``x + alpha * y``, broadcast and promoted as ``torch.add`` does."


def test_a_required_default_reads_as_such():
    assert repr(REQUIRED) == "<required>"
    assert Param("x", "tensor").default is REQUIRED


def test_tagged_finds_those_with_the_tag():
    spec = fakes.twice(samples=(Sample("a", ()), Sample("b", (), tags=frozenset({"bench"}))))
    assert [s.name for s in spec.tagged("bench")] == ["b"]
    assert [s.name for s in spec.tagged("edge")] == ["a"]


STRIDES = {
    "contiguous": (12, 4, 1),
    "transposed": (1, 2, 6),
    "sliced": (12, 4, 1),
    "strided": (24, 8, 2),
    "expanded": (0, 4, 1),
}


@pytest.mark.parametrize("layout", STRIDES)
def test_a_layout_has_the_strides_that_it_is_named_after(layout):
    built = rand(2, 3, 4, layout=layout).build(torch.device("cpu"), torch.float32, 0)
    assert built.stride() == STRIDES[layout]
    assert built.shape == (2, 3, 4)
    assert built.storage_offset() == (1 if layout == "sliced" else 0)


def test_channels_last_is_torchs():
    built = rand(2, 3, 4, 5, layout="channels_last").build(torch.device("cpu"), torch.float32, 0)
    assert built.is_contiguous(memory_format=torch.channels_last)
    assert not built.is_contiguous()


@pytest.mark.parametrize("layout", sorted(set(STRIDES) - {"expanded"}))
def test_a_layout_moves_no_value(layout):
    plain, laid = (
        rand(2, 3, 4, layout=n).build(torch.device("cpu"), torch.float32, 7) for n in ("contiguous", layout)
    )
    assert torch.equal(plain, laid)


def test_the_gaps_of_a_strided_tensor_hold_something_else():
    built = rand(5, layout="strided").build(torch.device("cpu"), torch.float32, 0)
    assert torch.equal(built.as_strided((5,), (2,), 1), torch.full((5,), 3.0))


def test_values_are_as_described():
    def make(**how):
        return rand(700, **how).build(torch.device("cpu"), torch.float32, 3)

    assert make(values="nan")[::7].isnan().all()
    assert int(make(values="nan").isnan().sum()) == 100
    infinite = make(values="inf")
    assert int(infinite.isinf().sum()) == 100
    assert bool((infinite > 1e30).any())
    assert bool((infinite < -1e30).any())
    assert float(make(values="zeros").abs().max()) == 0.0
    small = make(values="denormal").abs()
    assert 0 < float(small.max()) < torch.finfo(torch.float32).tiny
    low, high = make(low=5, high=6).aminmax()
    assert 5 <= low < high < 6
    assert make().min() < 0 < make().max()


def test_a_sketch_may_fix_its_dtype_and_device():
    built = rand(3, dtype=torch.int64, device="meta").build(torch.device("cpu"), torch.float16, 0)
    assert built.dtype == torch.int64
    assert built.device.type == "meta"


@every_op
def test_a_sample_is_built_alike_every_time(spec: OpSpec):
    for sample in spec.samples:
        if {"bench", "huge"} & sample.tags:
            continue
        first, second = (fakes.leaves(sample.build(spec, "cpu", torch.float32)) for _ in range(2))
        for a, b in zip(first, second, strict=True):
            assert a.stride() == b.stride()
            assert torch.equal(a.nan_to_num(), b.nan_to_num())


def test_arguments_of_one_sample_differ():
    x, y, *_ = fakes.build("add", "last_block_partly_filled")
    assert not torch.equal(x, y)
    xs, _ = fakes.build("softmax_sum", "list_of_pointers")
    assert not torch.equal(xs[0], xs[1])


def test_narrower_samples_are_the_rounded_wider_ones():
    wide, narrow = (fakes.build("sum", "inner_axis", d)[0] for d in (torch.float32, torch.bfloat16))
    assert torch.equal(wide.bfloat16(), narrow)


@pytest.mark.parametrize("backend", [None, "fake"], ids=["any", "pinned"])
@every_op
def test_every_backend_refuses_in_the_words_of_the_check(spec, backend):
    operator = fakes.session(fakes.backend()).op(spec.name, backend=backend)
    for case in spec.errors:
        said = refused(lambda *args: fakes.called(operator, args), spec, case)
        assert said == refused(spec.check, spec, case)


@every_op
def test_explaining_refuses_in_the_same_words(spec):
    session = fakes.session(fakes.backend())
    for case in spec.errors:
        refused(functools.partial(session.explain, spec.name), spec, case)


def test_require_tensor_names_the_argument():
    with pytest.raises(InvalidInputError, match="grad must be a tensor, got int") as caught:
        require_tensor(3, "grad")
    assert caught.value.argument == "grad"
    require_tensor(torch.zeros(2, dtype=torch.int64), "x", floating=False)


def test_require_same_names_the_odd_one():
    with pytest.raises(
        InvalidInputError, match=r"xs must share one shape: xs\[0\] has \(2,\), xs\[2\] has \(3,\)"
    ):
        require_same([torch.zeros(2), torch.zeros(2), torch.zeros(3)], "xs", "dtype", "shape")
