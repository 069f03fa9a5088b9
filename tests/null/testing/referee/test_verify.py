"""``nxcore.testing.verify``: a kernel with each kind of fault fails by the check that is about it."""

import json

import pytest
import torch
from torch.nn import functional

import nxcore
from nxcore.errors import InvalidInputError, UnknownOperatorError
from nxcore.testing import verify
from tests import fresh
from tests.harnesses import first, second
from tests.harnesses.__main__ import forget
from tests.harnesses.tasks import TASKS
from tests.table import for_each


@pytest.fixture(autouse=True)
def alone():
    """One thread, as small tensors need; what kernels of the bake-off keep is forgotten."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    forget()
    yield
    torch.set_num_threads(threads)


def judged(kernel, task, size=40):
    """Return the report of a kernel of the bake-off."""
    return verify(kernel, TASKS[task].reference, [lambda g: TASKS[task].arguments(g, size)])


FAULTS = (
    (first.softmax_in_place, "softmax", "inputs", "it wrote into its inputs"),
    (second.total_writes_further, "total", "inputs", "memory around its inputs"),
    (second.softmax_in_one_buffer, "softmax", "result", "wrote into the first one's result"),
    (first.softmax_keeps_by_shape, "softmax", "result", "times its bound"),
    (second.largest_unwritten, "largest", "result", "NaN must be where the reference has NaN"),
    (second.gelu_of_double, "gelu", "result", "dtype must be torch's"),
    (second.cumsum_transposed, "cumsum", "result", "strides must be torch's"),
    (second.relu_of_positive, "relu", "result", "a view of an input"),
    (second.relu_seeds, "relu", "state", "random number generator"),
    (second.matmul_leaves_precision, "matmul", "state", "fp32_precision"),
    (second.rms_norm_gradient_of_scale, "rms_norm", "gradients", "times its bound"),
    (second.softmax_over_incoming, "softmax", "gradients", "wrote into the incoming gradient"),
    (first.largest_of_numbers, "largest", "result", "NaN must be where"),
    (second.matmul_of_contiguous, "matmul", "result", "times its bound"),
)


@for_each("kernel, task, check, words", FAULTS)
def test_each_kind_of_fault_fails_by_its_check(kernel, task, check, words):
    report = judged(kernel, task)
    assert not report.passed
    assert any(c.name == check and words in c.explanation for c in report.failures), str(report)


def gated(x, gate):
    return torch.where(gate > 0, x, 2 * x)


def test_an_input_without_a_gradient_leaves_the_others_compared():
    def wrong(x, gate):
        return torch.where(gate > 0, x, x + x.detach())

    samples = [lambda g: (torch.randn(4, 33, generator=g), torch.randn(4, 33, generator=g))]
    assert "gradients" in {check.name for check in verify(gated, gated, samples).checks}
    assert {check.name for check in verify(wrong, gated, samples).failures} == {"gradients"}


def test_variants_say_which_call_fails():
    found = {c.sample for c in judged(first.softmax_drops_tail, "softmax").failures}
    assert "sample 0, size 41 for 40" in found
    assert not {"sample 0, transposed", "sample 0, a NaN"} - found


def test_settings_that_a_kernel_leaves_are_put_back():
    torch.manual_seed(5)
    before = torch.get_rng_state(), torch.get_float32_matmul_precision()
    judged(second.matmul_leaves_precision, "matmul")
    judged(second.relu_seeds, "relu")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_float32_matmul_precision() == before[1]


def test_a_right_kernel_in_another_order_and_in_bfloat16_passes():
    def norm(x, weight):
        wide = x.float()
        square = (wide.flip(-1) ** 2).mean(-1, keepdim=True)
        return (wide * torch.rsqrt(square + 1e-6) * weight.float()).to(x.dtype)

    def reference(x, weight):
        return functional.rms_norm(x, x.shape[-1:], weight, 1e-6)

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        sample = (torch.randn(6, 40).to(dtype), torch.randn(40).to(dtype))
        report = verify(norm, reference, [sample])
        assert report.passed, str(report)
        result = report.checks[1]
        assert result.error < result.tolerance
        assert "torch's own error" in result.explanation


def test_a_kernel_may_raise_on_other_calls_but_not_on_the_samples():
    def whole(x):
        if x.shape[-1] % 8:
            raise ValueError("needs a multiple of 8")
        return x.softmax(-1)

    taken, refused = (verify(whole, lambda x: x.softmax(-1), [(torch.randn(4, n),)]) for n in (40, 41))
    assert taken.passed
    assert any(c.outcome == "declined" and "multiple of 8" in c.explanation for c in taken.checks)
    assert not refused.passed


def test_a_report_is_a_table_and_json_and_the_seed_repeats_it():
    once, again = (judged(first.cross_entropy_of_all, "cross_entropy") for _ in range(2))
    assert once == again
    lines = str(once).splitlines()
    assert lines[0] == "cross_entropy_of_all against cross_entropy, seed 0: FAILED"
    assert lines[2].split() == ["check", "sample", "outcome", "error", "allowed"]
    assert "some indices -100" in lines[3]
    document = json.loads(once.json())
    assert document["passed"] is False
    assert document["checks"][0]["name"] == "state"


def test_an_operator_by_name_has_samples_of_its_own():
    assert verify(nxcore.ops.entropy.spec.reference, "entropy").passed
    wrong = verify(lambda *args: nxcore.ops.entropy.spec.reference(*args) * 1.0001, "entropy")
    assert len(wrong.failures) > 3
    with pytest.raises(UnknownOperatorError, match="entropy"):
        verify(torch.relu, "entrpy")


def test_what_is_no_sample_is_an_error():
    with pytest.raises(InvalidInputError, match="samples are needed"):
        verify(torch.relu, torch.relu)
    with pytest.raises(InvalidInputError, match="tuples with tensors"):
        verify(torch.relu, torch.relu, [torch.randn(3)])
    with pytest.raises(InvalidInputError, match="dtype of its inputs"):
        verify(torch.relu, lambda x: x.float().relu(), [(torch.randn(3, 3),)])
    with pytest.raises(InvalidInputError, match="the reference failed on sample 0"):
        verify(torch.relu, lambda x: x.reshape(7), [(torch.randn(3, 3),)])


def test_no_plugin_is_imported():
    code = (
        "import sys, torch; from nxcore.testing import verify;"
        "assert verify(torch.relu, torch.relu, [(torch.randn(4, 5),)]).passed;"
        "print([m for m in sys.modules if m.startswith('nxcore_')])"
    )
    assert fresh.run("-c", code, check=True).stdout.strip() == "[]"
