"""Precision classes of float32 operators, and torch's settings of products of matrices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

Precision = Literal["ieee32", "fp32x", "tf32", "half"]

CLASSES: tuple[Precision, ...] = ("ieee32", "fp32x", "tf32", "half")
"""Precision classes, the finest first.

``ieee32``: factors have all 24 bits. ``fp32x``: factors are sums of shorter ones; the error is float32's on
ordinary numbers, and what leaves the range of a part is lost. ``tf32``: factors of 11 bits. ``half``: of 8
or more.
"""

WORDS: Mapping[str, Precision] = MappingProxyType({"highest": "ieee32", "high": "tf32", "medium": "half"})
"""The words of ``torch.set_float32_matmul_precision`` -> the coarsest class that they allow."""

SHARE: Mapping[Precision, float] = MappingProxyType(
    {"ieee32": 0.0, "fp32x": 2.0**-20, "tf32": 2.0**-10, "half": 2.0**-7}
)
"""The largest error of a term by its factors' lost bits, as a share of the term."""

IEEE32, FP32X, TF32 = 5e-6, 2e-5, 2e-3
"""The normwise errors below which a float32 kernel belongs to the first three."""

_BACKENDS = {"cuda": "cuda", "cpu": "mkldnn"}
_OF_TORCH: dict[str, Precision] = {"none": "ieee32", "ieee": "ieee32", "tf32": "tf32", "bf16": "half"}
_TO_TORCH = {"cuda": ("ieee", "ieee", "tf32", "tf32"), "mkldnn": ("ieee", "ieee", "tf32", "bf16")}


def precision_class(error: float) -> Precision:
    """Return the precision class of a relative error in the 2-norm."""
    bounds = zip(CLASSES, (IEEE32, FP32X, TF32), strict=False)
    return next((name for name, bound in bounds if error < bound), "half")


def coarser(one: Precision, other: Precision) -> bool:
    """Return whether a class is coarser than another.

    >>> coarser("tf32", "ieee32"), coarser("ieee32", "tf32")
    (True, False)
    """
    return CLASSES.index(one) > CLASSES.index(other)


def class_of(given: Any) -> Precision:
    """Return the class that an argument ``precision`` allows: a class, a word of torch's, or None.

    >>> class_of("high"), class_of("fp32x"), class_of(None)
    ('tf32', 'fp32x', 'ieee32')
    """
    if not isinstance(given, str):
        return "ieee32"
    return next((name for name in CLASSES if name in (given, WORDS.get(given))), "ieee32")


def in_force(first: Any) -> Precision | None:
    """Return the class that torch's settings allow in products on a tensor's device; None for other dtypes.

    The settings are ``torch.set_float32_matmul_precision`` and ``torch.backends.<device>.matmul``.

    >>> in_force(torch.ones(2)), in_force(torch.ones(2, dtype=torch.float16))
    ('ieee32', None)
    """
    if not isinstance(first, Tensor) or first.dtype is not torch.float32:
        return None
    if first.is_cpu:  # reading the device takes three times as long
        return _OF_TORCH.get(_read("mkldnn", "matmul"), "ieee32")
    return _OF_TORCH.get(_read("cuda", "matmul"), "ieee32") if first.is_cuda else "ieee32"


def allowing(given: Any, first: Tensor) -> AbstractContextManager[None]:
    """Return a context in which torch's float32 products on a tensor's device have a class.

    Where torch lacks the class, it is the next finer one. The setting is the process's: products of other
    threads may take it until the end.

    >>> with allowing("tf32", torch.ones(2)):
    ...     in_force(torch.ones(2))
    'tf32'
    """
    # Most calls change nothing, and a context of a generator takes as long as a small product.
    return _UNCHANGED if _as_set(given, first) else _setting(given, _BACKENDS[first.device.type])


def _as_set(given: Any, first: Tensor) -> bool:
    if first.dtype is not torch.float32:
        return True
    if first.is_cpu:  # as in ``in_force``
        return _read("mkldnn", "matmul") in _SAME["mkldnn"].get(given, _STRICT)
    return not first.is_cuda or _read("cuda", "matmul") in _SAME["cuda"].get(given, _STRICT)


@contextlib.contextmanager
def _setting(given: Any, backend: str) -> Iterator[None]:
    before = _read(backend, "matmul")
    _write(backend, "matmul", _TO_TORCH[backend][CLASSES.index(class_of(given))])
    try:
        yield
    finally:
        _write(backend, "matmul", before)


_UNCHANGED = contextlib.nullcontext()

_STRICT = frozenset({"none", "ieee"})
"""The settings of torch without shorter factors."""

_SAME: dict[str, dict[Any, frozenset[str]]] = {
    backend: {
        given: _STRICT if (made := names[CLASSES.index(class_of(given))]) in _STRICT else frozenset({made})
        for given in (*CLASSES, *WORDS)
    }
    for backend, names in _TO_TORCH.items()
}
"""Backend and class or word -> torch's settings that make such products."""

# The public attributes refuse to be read where an older function of torch's was used for the same setting.
_read = torch._C._get_fp32_precision_getter  # noqa: SLF001  as above
_write = torch._C._set_fp32_precision_setter  # noqa: SLF001  as above


def setting_of(backend: str, op: str) -> str:
    """Return torch's setting of float32 products: ``"ieee"`` where nothing was set.

    >>> setting_of("mkldnn", "matmul")
    'ieee'
    """
    found = _read(backend, op)
    return "ieee" if found == "none" else found


def to_setting(backend: str, op: str, setting: str) -> None:
    """Set it."""
    _write(backend, op, setting)
