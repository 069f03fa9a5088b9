"""State of the process that belongs to the program: what a toolkit changes on its way in is put back."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

VARIABLES = ("TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TF_CPP_", "TPU_", "XLA_")
"""How the environment variables begin that toolkits set for themselves."""

OWN = frozenset({"jax", "jaxlib", "numba", "sympy", "torch", "triton"})
"""Packages that add warning filters for categories of their own."""


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Undo what toolkits change of the process in this block, while they are imported or compile.

    Put back are environment variables of theirs that the block adds, warning filters for categories of their
    own, the recursion limit, the start method of ``multiprocessing``, torch's number of threads and default
    dtype, and, in the main thread, NumPy's random numbers. Other threads may set variables and filters
    meanwhile, so only names that are known to be a toolkit's are removed. A thread beside the main one leaves
    random numbers alone: the program may draw some meanwhile, and would draw them twice.
    """
    variables, filters = frozenset(os.environ), list(warnings.filters)
    limit, method = sys.getrecursionlimit(), _start_method()
    threads, dtype, numbers = torch.get_num_threads(), torch.get_default_dtype(), _numbers()
    try:
        yield
    finally:
        for name in [n for n in os.environ if n not in variables and n.startswith(VARIABLES)]:
            os.environ.pop(name, None)
        for added in [f for f in list(warnings.filters) if f not in filters and _is_own(f[2])]:
            with contextlib.suppress(ValueError):  # another thread was here first
                warnings.filters.remove(added)  # type: ignore[attr-defined]  # a list, whatever its type says
        if sys.getrecursionlimit() != limit:
            sys.setrecursionlimit(limit)
        if method is None and _start_method() is not None:
            multiprocessing.set_start_method(None, force=True)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)
        if numbers is not None:
            sys.modules["numpy"].random.set_state(numbers)


def _is_own(category: type[Warning] | tuple[type[Warning], ...]) -> bool:
    """Tell whether a filter's category, or each of its categories, is a toolkit's."""
    categories = category if isinstance(category, tuple) else (category,)
    return all(c.__module__.partition(".")[0] in OWN for c in categories)


def _start_method() -> str | None:
    """Return the start method of ``multiprocessing``; None where none is set."""
    return multiprocessing.get_start_method(allow_none=True)


def _numbers() -> Any:
    """Return the state of NumPy's random numbers; None where it is not to be put back."""
    numpy = sys.modules.get("numpy")
    if numpy is None or threading.current_thread() is not threading.main_thread():
        return None
    return numpy.random.get_state()
