"""Memory of the kit: torch's own, filled with NaN; and whether a result is in torch's form."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.problem import TensorMeta, leaves
from nxcore.trust.form import form, misformed
from nxcore.trust.truth import Truth


@contextlib.contextmanager
def poisoned(*, warn_only: bool) -> Iterator[None]:
    """Let torch fill new memory with NaN, or the largest integer, so that elements not written show.

    Parameters
    ----------
    warn_only : bool
        Allow operators that have no deterministic implementation in torch.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic  # a module with properties, which mypy can't see
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    settings.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        settings.fill_uninitialized_memory = filled


def in_form(truth: Truth, result: Any, *, laid_out: bool = True) -> bool:
    """Return whether a result has torch's number, dtypes, shapes, devices and, if ``laid_out``, strides."""
    got, wanted = (
        [(t.dtype, t.shape, t.device, _strides(t) if laid_out else ()) for t in tensors]
        for tensors in (leaves(result), truth.torch)
    )
    return got == wanted and (not laid_out or not misformed(tuple(leaves(result)), form(truth.torch)))


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return TensorMeta.of(tensor).strides_of_extent if tensor.numel() else ()
