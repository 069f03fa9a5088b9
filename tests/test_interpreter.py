"""Triton's interpreter keeps the types and shapes that it works out."""

import os
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("there is a device, so nothing is interpreted", allow_module_level=True)
tl = pytest.importorskip("triton.language")
interpreter: Any = pytest.importorskip("triton.runtime.interpreter")


def test_types_are_numpys_at_the_first_and_the_second_time() -> None:
    kinds = (tl.float32, tl.bfloat16, tl.int1, tl.pointer_type(tl.float16), tl.block_type(tl.float64, [2]))
    pointers = tl.block_type(tl.pointer_type(tl.int8), [4, 2])
    for _ in range(2):
        names = [interpreter._get_np_dtype(kind).name for kind in (*kinds, pointers)]
        assert names == ["float32", "uint16", "bool", "uint64", "float64", "uint64"]


def test_what_is_made_twice_is_the_same() -> None:
    first, again, other = (tl.block_type(tl.float32, shape) for shape in ([2, 4], [tl.constexpr(2), 4], [4]))
    assert (first, first.name, first.shape, first.numel) == (again, again.name, (2, 4), 8)
    assert again.shape is first.shape
    assert (other != first, other.shape) == (True, (4,))
    assert tl.block_type(tl.float16, [2, 4]) != first
    one, two = (tl.tensor(None, kind) for kind in (first, again))
    assert two.shape is one.shape
    assert ([size.value for size in two.shape], two.numel.value, two.dtype) == ([2, 4], 8, tl.float32)


def test_a_shape_that_is_wrong_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="must be a power of 2"):
            tl.block_type(tl.float32, [3])
        with pytest.raises(TypeError, match="0d block_type"):
            tl.block_type(tl.float32, [])


def test_operands_are_promoted_and_broadcast_as_they_are_without_it() -> None:
    semantic = interpreter.interpreter_semantic
    one, two, three = (
        tl.tensor(interpreter.TensorHandle(interpreter.np.ones(shape, like), kind.scalar), kind)
        for kind, shape, like in (
            (tl.block_type(tl.float16, [2, 1]), (2, 1), "f2"),
            (tl.block_type(tl.float32, [2, 4]), (2, 4), "f4"),
            (tl.float32, (1,), "f4"),
        )
    )
    for lhs, rhs, dtype in ((one, two, tl.float32), (one, one, tl.float16), (three, two, tl.float32)):
        for left, right in ((lhs, rhs), (rhs, lhs)):
            got = semantic.binary_op_type_checking_impl(left, right)
            shape = [2, 1] if lhs is rhs else [2, 4]
            assert [(list(x.type.shape), x.dtype, list(x.handle.data.shape)) for x in got] == [
                (shape, dtype, shape)
            ] * 2
    quotient = semantic.binary_op_type_checking_impl(one, one, False, False, True, True)
    assert [x.dtype for x in quotient] == [tl.float32] * 2
    assert semantic.binary_op_type_checking_impl(two, two) == (two, two)
