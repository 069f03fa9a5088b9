"""Process state that toolkits change while they are imported or compile: it is restored."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from nxcore.errors import PluginError

INTERNAL = "_TORCHINDUCTOR_"
"""Prefix of variables that hold an address of this process: one that was inherited is overwritten."""

VARIABLES = (
    "TORCHINDUCTOR_",
    INTERNAL,
    "TF_CPP_",
    "TPU_",
    "TRITON_CACHE_DIR",
    "TRITON_PTXAS",
    "XLA_",
)
"""Prefixes of the environment variables that toolkits set for themselves."""

OWN = frozenset({"jax", "jaxlib", "numba", "sympy", "torch", "triton"})
"""Packages that add warning filters for categories of their own."""

MESSAGES = ("the matrix subclass is not the recommended way",)
"""Messages of the filters that toolkits add for Python's categories: SciPy's, which CuPy imports."""


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Undo the changes that toolkits make to the process in this block, while they are imported or compile.

    Restored are the toolkits' environment variables that the block adds, their internal ones that it
    replaces, warning filters for the toolkits' categories, the recursion limit, the start method of
    ``multiprocessing``, torch's number of threads and default dtype, and, in the main thread, NumPy's random
    state. Other threads may set variables and filters at the same time, so only known names of toolkits are
    removed. Other threads than the main one leave the random state alone: the program may draw numbers
    during the block, and would draw them twice.

    >>> with preserved():
    ...     torch.set_default_dtype(torch.float64)
    >>> torch.get_default_dtype()
    torch.float32
    """
    variables, filters = dict(os.environ), list(warnings.filters)
    limit, method = sys.getrecursionlimit(), _start_method()
    threads, dtype, numbers = torch.get_num_threads(), torch.get_default_dtype(), _numbers()
    try:
        yield
    finally:
        for name in [n for n in os.environ if n not in variables and n.startswith(VARIABLES)]:
            os.environ.pop(name, None)
        os.environ.update({n: v for n, v in variables.items() if n.startswith(INTERNAL)})
        for added in [f for f in list(warnings.filters) if f not in filters and _is_own(f)]:
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


def imported(target: str) -> Any:
    """Return what ``"module:attribute"`` names in a plugin, whose import may load a toolkit."""
    module, _, attribute = target.partition(":")
    try:
        with preserved():
            return getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise PluginError(f"kernel target {target!r}: {error}") from error


def _is_own(added: tuple[Any, ...]) -> bool:
    """Return whether a filter is a toolkit's: by its message, or by each of its categories."""
    _, message, category, *_ = added
    if getattr(message, "pattern", message) in MESSAGES:
        return True
    categories = category if isinstance(category, tuple) else (category,)
    return all(c.__module__.partition(".")[0] in OWN for c in categories)


def _start_method() -> str | None:
    """Return the start method of ``multiprocessing``; None where none is set."""
    return multiprocessing.get_start_method(allow_none=True)


def _numbers() -> Any:
    """Return NumPy's random state; None where it must not be restored."""
    numpy = sys.modules.get("numpy")
    if numpy is None or threading.current_thread() is not threading.main_thread():
        return None
    return numpy.random.get_state()
