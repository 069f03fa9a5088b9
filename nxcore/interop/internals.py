"""Private names of torch without a public form, or without one as fast, each with its reason."""
# ruff: noqa: SLF001  this module is the place for such names

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

functorch = torch._C._functorch
"""The internals of ``torch.func``: there is no public test for a tensor of a vmap."""


def batched(tensor: Tensor) -> bool:
    """Return whether a tensor is one of a vmap or another transform, which has no memory of its own."""
    return bool(functorch.is_legacy_batchedtensor(tensor) or functorch.is_functorch_wrapped_tensor(tensor))


interpreter = functorch.peek_interpreter_stack
"""The innermost transform of ``torch.func``; None outside of all."""

nn: Any = torch._C._nn
"""The functions of ``torch.nn.functional`` in C: many of the public ones are Python around them."""

tracing_state = torch._C._get_tracing_state
"""The trace of ``torch.jit.trace``; None outside of it. The public test is slower."""

set_tracing_state = torch._C._set_tracing_state  # type: ignore[attr-defined]  # not in torch's stub
"""Set what ``tracing_state`` returns."""

any_autocast = torch._C._is_any_autocast_enabled
"""Whether autocast is on, for any device. The public test takes one device."""

deterministic = torch._C._get_deterministic_algorithms
"""Whether deterministic algorithms are required. The public test is slower."""

dispatch_mode_stack: Callable[[], list[Any]] = torch.utils._python_dispatch._get_current_dispatch_mode_stack
"""The ``__torch_dispatch__`` modes in force."""

dispatch_modes = torch._C._len_torch_dispatch_stack
"""The number of ``__torch_dispatch__`` modes in force."""

function_modes = torch._C._is_torch_function_mode_enabled
"""Whether a ``__torch_function__`` mode is in force."""

function_mode_stack: Callable[[], list[Any]] = torch.overrides._get_current_function_mode_stack
"""The ``__torch_function__`` modes in force."""

set_grad_enabled = torch._C._set_grad_enabled
"""Set grad mode. The public form is a context manager."""

autocast_disabled = torch._C._DisableAutocast
"""Autocast disabled in a block. ``torch.autocast(enabled=False)`` costs ten times as much."""

AUTOCAST = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}
"""Device type -> the dispatch key of its autocast, which is on where this key isn't excluded."""

exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
"""Exclude a dispatch key in this thread, or no longer. As a context manager it costs twice as much."""


def bits_of(key: Any) -> int:
    """Return the set of one dispatch key, as torch's C++ has it."""
    return int(torch._C.DispatchKeySet(key).raw_repr())


def gradients(
    outs: Sequence[Tensor], wanted: Sequence[Tensor], grads: Sequence[Tensor], *, retain_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """Return what ``torch.autograd.grad`` does for gradients of the results' own shapes.

    That function compares them as symbolic sizes, and imports SymPy for it: 1 to 3 s, once a process.
    Autocast is off, as it is where a caller's backward pass follows the block.
    """
    if any_autocast():
        with autocast_disabled():
            return gradients(outs, wanted, grads, retain_graph=retain_graph)
    found: tuple[Tensor | None, ...] = torch.autograd.graph._engine_run_backward(
        tuple(outs),
        tuple(grads),
        retain_graph,
        False,
        tuple(wanted),
        True,  # unused ones are None
        accumulate_grad=False,
    )
    return found


below_autograd = torch._C._AutoDispatchBelowAutograd
"""Autograd disabled in a block, as in torch's own custom operators."""

raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""The current stream of a CUDA device by its index, as Triton reads it; None where torch has no CUDA."""

backward_pass = torch._C._current_graph_task_id
"""The number of the backward pass of this thread; -1 outside of one."""

will_run = torch._C._will_engine_execute_node
"""Whether this backward pass needs a node of autograd."""

without_batch = torch._remove_batch_dim
"""Return a tensor of a vmap as an ordinary one."""

with_batch = torch._add_batch_dim
"""Return an ordinary tensor as one of a vmap."""


@contextlib.contextmanager
def outside_of_batches() -> Iterator[None]:
    """Leave autograd's own vmap in a block: inside of it torch refuses random operations.

    A kernel that meets its first call there is verified on random samples.
    """
    depth = torch._C._vmapmode_increment_nesting() - 1
    for _ in range(depth + 1):
        torch._C._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(depth):
            torch._C._vmapmode_increment_nesting()


def transformed() -> bool:
    """Return whether a transform of ``torch.func`` is in force."""
    return interpreter() is not None


def in_forward_mode() -> bool:
    """Return whether forward-mode differentiation is in force."""
    return forward_ad._current_level >= 0


def is_view(tensor: Tensor) -> bool:
    """Return whether a tensor is a view of another one."""
    return tensor._is_view()


def storage(tensor: Tensor) -> int:
    """Return the identity of a tensor's storage: its address is only that of the first byte."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def saved_tensor_hooks() -> Any:
    """Return the hooks on saved tensors that are in force; None if there are none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def raised_by_hook(error: BaseException) -> bool:
    """Return whether a hook on saved tensors raised ``error``, which is the program's code then.

    A checkpoint ends a second forward pass in this way, once it has all tensors that it needs.
    """
    hooks = saved_tensor_hooks()
    called = [hook.func if isinstance(hook, functools.partial) else hook for hook in hooks or ()]
    codes = {getattr(one, "__code__", getattr(type(one).__call__, "__code__", None)) for one in called}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def spin(cycles: int) -> None:
    """Keep the current CUDA stream busy for a number of cycles, at about 2 GHz."""
    torch.cuda._sleep(cycles)
