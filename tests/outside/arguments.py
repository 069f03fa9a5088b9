"""Arguments that no call should have, and those that only look as if it shouldn't."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nxcore.spec.problem import TensorMeta
from nxcore.spec.spec import OpSpec, Param

HUGE = (2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)


class Subclass(Tensor):
    """A tensor of a class that no kernel knows."""


class Hostile:
    """Raises where it is compared, measured or asked for its truth."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __bool__(self) -> bool:
        raise RuntimeError("asked for its truth")

    def __len__(self) -> int:
        raise RuntimeError("measured")

    __hash__ = None  # type: ignore[assignment]  # what can't be compared can't be hashed

    def __repr__(self) -> str:
        return "Hostile()"


PLAIN: dict[str, Any] = {
    "none": None,
    "text": "a",
    "same": "same",
    "bytes": b"ab",
    "empty_text": "",
    "empty_list": [],
    "empty_tuple": (),
    "list_of_none": [None],
    "tuple_of_text": ("a", "b"),
    "ragged": [[1], [2, 3]],
    "dict": {1: 2},
    "set": {1, 2},
    "range": range(2),
    "object": object(),
    "hostile": Hostile(),
    "type": int,
    "slice": slice(None),
    "half": 0.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "imaginary": 1j,
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "two": 2,
    "minus_one": -1,
    "minus_huge": -(2**63) - 1,
    "pair_of_zeros": (0, 0),
    "pair_of_minus_ones": (-1, -1),
    "pair_of_halves": (0.5, 0.5),
    "pair_of_flags": (True, False),
    "triple": (1, 1, 1),
    "many": (1,) * 70,
    "numpy_integer": np.int64(2),
    "numpy_number": np.float32(2),
    "numpy_flag": np.bool_(True),
    "numpy_array": np.array([2, 2]),
    "numpy_empty": np.array([]),
    "numpy_object": np.array([None, "a"], dtype=object),
    "dtype": torch.float32,
    "device": torch.device("cpu"),
    "layout": torch.strided,
    "size": torch.Size([2, 3]),
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
    "storage": torch.zeros(4).untyped_storage(),
    "typed_description": TensorMeta((2, 3), (3, 1), torch.float32, torch.device("cpu")),
    "number_tensor": torch.tensor(2),
    "tensors": [torch.zeros(3), torch.zeros(3)],
    "tensors_and_none": (torch.zeros(3), None),
    **{f"huge_{n}": n for n in HUGE},
    **{f"huge_pair_{n}": (n, n) for n in HUGE},
    "huge_and_small": (2**62, 1),
}
"""By name: no argument, or one of another parameter's kind."""


def _fresh(like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    shape = tuple(like.shape) if shape is None else shape
    return torch.ones(shape, dtype=like.dtype)


def _inference(like: Tensor) -> Tensor:
    with torch.inference_mode():
        return _fresh(like)


def _flat(shape: tuple[int, ...], strides: tuple[int, ...], like: Tensor) -> Tensor:
    """Lay a tensor over the little memory that its shape and strides reach."""
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 1
    return torch.ones(span, dtype=like.dtype).as_strided(shape, strides)


def _quantized(like: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates them, and still makes them
        return torch.quantize_per_tensor(torch.ones(like.shape), 0.1, 0, torch.quint8)


def _nested(like: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its prototype one
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])


def _csr(like: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR a beta
        return torch.ones(3, 3, dtype=like.dtype).to_sparse_csr()


TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda t: np.ones(tuple(t.shape), dtype=np.float32),
    "nested_list": lambda t: _fresh(t).tolist(),
    "meta": lambda t: _fresh(t).to("meta"),
    "bool": lambda t: _fresh(t).bool(),
    "uint8": lambda t: _fresh(t).to(torch.uint8),
    "uint16": lambda t: _fresh(t).to(torch.uint16),
    "int32": lambda t: _fresh(t).to(torch.int32),
    "int64": lambda t: _fresh(t).to(torch.int64),
    "float16": lambda t: _fresh(t).to(torch.float16),
    "bfloat16": lambda t: _fresh(t).to(torch.bfloat16),
    "float64": lambda t: _fresh(t).to(torch.float64),
    "float8": lambda t: _fresh(t).to(torch.float8_e4m3fn),
    "complex64": lambda t: _fresh(t).to(torch.complex64),
    "conjugated": lambda t: _fresh(t).to(torch.complex64).conj(),
    "negated": lambda t: _fresh(t).to(torch.complex64).conj().imag,
    "coo": lambda t: _fresh(t).to_sparse(),
    "csr": _csr,
    "mkldnn": lambda t: torch.ones(t.shape or (1,)).to_mkldnn(),  # it has none without dimensions
    "nested": _nested,
    "quantized": _quantized,
    "subclass": lambda t: _fresh(t).as_subclass(Subclass),
    "parameter": lambda t: torch.nn.Parameter(torch.ones(t.shape)),
    "needs_grad": lambda t: torch.ones(t.shape, requires_grad=True),
    "not_a_leaf": lambda t: torch.ones(t.shape, requires_grad=True) * 1,
    "inference": _inference,
    "description": TensorMeta.of,
    "zero_dimensions": lambda t: _fresh(t, ()),
    "one_dimension_less": lambda t: _fresh(t, tuple(t.shape)[1:]),
    "one_dimension_more": lambda t: _fresh(t, (1, *t.shape)),
    "seventy_dimensions": lambda t: _fresh(t, (1,) * 64),
    "no_elements": lambda t: _fresh(t, (0, *tuple(t.shape)[1:])),
    "no_columns": lambda t: _fresh(t, (*tuple(t.shape)[:-1], 0)),
    "one_more": lambda t: _fresh(t, (*tuple(t.shape)[:-1], tuple(t.shape)[-1] + 1) if t.ndim else (2,)),
    "ones": lambda t: _fresh(t, (1,) * t.ndim),
    "expanded": lambda t: _fresh(t, ()).expand(t.shape),
    "overlapping": lambda t: _flat(tuple(t.shape), (1,) * t.ndim, t),
    "gaps": lambda t: _flat(tuple(t.shape), tuple(2 * s for s in t.contiguous().stride()), t),
    "huge_strides_of_one": lambda t: _flat((1, *t.shape), (2**40, *t.contiguous().stride()), t)[0:1],
    "huge_strides_of_none": lambda t: _flat((0, *tuple(t.shape)[1:]), (2**40,) * max(t.ndim, 1), t),
    "huge_and_empty": lambda t: _fresh(t, (0,)).expand((2**40, 0)),
}
"""By name: a tensor that differs from one that fits."""


def confused(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield values that equal a static one, or look like it, and are of another type."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield "as_float", float(value)
        yield "as_text", str(value)
        yield "as_numpy", np.int64(value)
        yield "class_and_value", [type(value), value]
        yield "one_of_them", [value]
        yield "one_float", (float(value),)
        yield "both_floats", (float(value), float(value))
    if isinstance(value, bool):
        yield "as_integer", int(value)
        yield "as_float", float(value)
        yield "class_and_value", [bool, value]
    if isinstance(value, tuple):
        yield "of_floats", tuple(float(v) if isinstance(v, int) else v for v in value)
        yield "of_flags", tuple(bool(v) for v in value)
        yield "longer", (*value, 1)
        yield "shorter", value[1:]
        yield "negative", tuple(-v if isinstance(v, int) else v for v in value)
        yield "huge", tuple(2**62 for _ in value)
        yield "class_and_value", [tuple, value]
        yield "as_array", np.array(value)
        yield "nested", (value,)
    if value is None:
        yield "class_and_value", [type(None), None]


def odd(param: Param, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what may be put, by mistake, in place of an argument that fits; each with its name."""
    yield from PLAIN.items()
    if param.kind in ("static", "size"):
        yield from confused(value)
    tensor = next(iter(leaves(value)), torch.ones(3, 5))
    for name, make in TENSORS.items():
        yield f"tensor_{name}", make(tensor)
    if isinstance(value, tuple) and isinstance(value[0], Tensor):
        for name, make in TENSORS.items():
            yield f"last_{name}", (*value[:-1], make(value[-1]))
        yield "one_fewer", value[:-1]
        yield "holds_a_tuple", (value, *value[1:])
        yield "holds_a_number", (1.5, *value[1:])


def leaves(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested tuple."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from leaves(item)


def odd_calls(spec: OpSpec, args: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield a call's arguments with one of them odd, for each parameter and each odd value."""
    for i, param in enumerate(spec.params):
        for name, value in odd(param, args[i]):
            yield f"{param.name}={name}", (*args[:i], value, *args[i + 1 :])
