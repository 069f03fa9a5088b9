"""The bridge: torch's tensors as JAX's arrays and back, without a copy, around one jitted function a problem.

A tensor is handed over as the compact row-major array that its memory is. The jitted function transposes that
to the tensor's own dimensions, and results to torch's order in memory, which XLA does by choosing layouts.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta, preserved
from nxcore_jax import cuda
from nxcore_jax.layout import Packed

DTYPES = {
    torch.float32: jnp.float32,
    torch.float16: jnp.float16,
    torch.bfloat16: jnp.bfloat16,
    torch.uint8: jnp.uint8,
    torch.bool: jnp.uint8,  # torch makes bool of the result
    torch.int32: jnp.int32,
    torch.int64: jnp.int32,  # JAX has no int64 unless told so for the whole process; torch widens the result
}

ALIGNED = 16  # bytes
_streams: dict[int, set[torch.cuda.Stream]] = {}
"""The streams that were given results, for each CUDA device."""


@functools.cache
def start() -> None:
    """Let JAX initialise its devices now, without lasting side effects.

    It leaves the last CUDA device current, whatever torch had. And it takes three quarters of a GPU's memory,
    which here is torch's, unless a variable forbids it, read at this first look alone.
    """
    before = torch.cuda.current_device() if torch.cuda.is_available() and cuda() else None
    with preserved():
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as at its import
        jax.devices()
    if before is not None:
        torch.cuda.set_device(before)


def wide(x: jax.Array) -> jax.Array:
    """Return ``x`` in float32, in which all is computed."""
    return x.astype(jnp.float32)


def numbers(problem: Problem) -> tuple[int, ...]:
    """Return the places of the arguments that are numbers, which may change from call to call."""
    params = zip(problem.spec.params, problem.args, strict=True)
    return tuple(
        i for i, (p, a) in enumerate(params) if p.kind in ("scalar", "operand") and isinstance(a, type)
    )


class Bridged:
    """A function of arrays, jitted, as a kernel for one problem.

    Parameters
    ----------
    compute : callable
        Takes the operator's arguments: an array for a tensor, of its shape; a float for a number; what is
        fixed as it is. Returns arrays as the operator returns tensors; they are rounded to its dtypes here.
    outputs : optional
        Described as in the problem, which they replace: None where ``compute`` returns None.
    """

    def __init__(self, problem: Problem, compute: Callable[..., Any], outputs: Any = None) -> None:
        start()
        self.args = problem.args
        self.numbers = frozenset(numbers(problem))
        self.outputs = problem.outputs if outputs is None else outputs
        self.device = problem.device
        self.elsewhere = problem.device.type == "cuda" and torch.cuda.device_count() > 1
        self.compute = compute
        self.views = [_packing(meta) for meta in problem.tensors]
        self.jitted = jax.jit(self._run)

    def __call__(self, *args: Any) -> Any:
        """Run it; takes the operator's arguments, all positional."""
        if self.elsewhere:
            with torch.cuda.device(self.device):
                return self._call(args)
        return self._call(args)

    def __del__(self) -> None:
        """Have JAX let go of its programs: it leaves the device that they were on current."""
        if getattr(self, "elsewhere", False) and not sys.is_finalizing():
            with torch.cuda.device(self.device):
                del self.jitted

    def _call(self, args: tuple[Any, ...]) -> Any:
        cuda = self.device.type == "cuda"
        if cuda:
            _await_readers(self.device)
        leaves: list[Any] = []
        views = iter(self.views)
        for i, (described, value) in enumerate(zip(self.args, args, strict=True)):
            if i in self.numbers:
                leaves.append(float(value))
            elif isinstance(described, TensorMeta):
                leaves.append(_array(value, next(views)))
            elif isinstance(described, tuple) and described and isinstance(described[0], TensorMeta):
                leaves.extend([_array(v, next(views)) for v in value])
        results = self.jitted(*leaves)
        if not cuda:
            jax.block_until_ready(results)  # torch may write into the arguments as soon as this returns
        return self._tensors(self.outputs, iter(results), {t.data_ptr() for t in _tensors(args)})

    def _run(self, *leaves: Any) -> tuple[jax.Array, ...]:
        given, args = iter(leaves), []
        for i, described in enumerate(self.args):
            if i in self.numbers:
                args.append(next(given))
            elif isinstance(described, TensorMeta):
                args.append(_logical(next(given), described))
            elif isinstance(described, tuple) and described and isinstance(described[0], TensorMeta):
                args.append(tuple(_logical(next(given), meta) for meta in described))
            else:
                args.append(described)
        return tuple(_laid_out(self.compute(*args), self.outputs))

    def _tensors(self, outputs: Any, results: Iterator[jax.Array], taken: set[int]) -> Any:
        """Return ``results`` as tensors, in the structure of ``outputs``."""
        if outputs is None:
            return None
        if isinstance(outputs, tuple):
            return tuple(self._tensors(o, results, taken) for o in outputs)
        tensor = torch.utils.dlpack.from_dlpack(next(results))
        if tensor.data_ptr() in taken:
            tensor = tensor.clone()  # JAX returns an argument itself where there was nothing to compute
        if tensor.dtype is not outputs.dtype:
            tensor = tensor.to(outputs.dtype)
        return tensor.as_strided(outputs.shape, outputs.strides)


def jitted(compute: Callable[..., Any]) -> Callable[[Problem], Bridged]:
    """Return the planner of a function of arrays."""
    return lambda problem: Bridged(problem, compute)


def _tensors(args: Any) -> Iterator[Tensor]:
    for value in args:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _packing(meta: TensorMeta) -> Packed | None:
    """Return how to describe the memory of a tensor; None where the tensor itself will do."""
    return None if meta.is_contiguous() else Packed.of(meta)


def _array(tensor: Tensor, packed: Packed | None) -> jax.Array:
    """Hand a tensor over; on CUDA, JAX's stream waits for torch's current one."""
    tensor = tensor.detach()
    if packed is not None:
        tensor = tensor.as_strided(packed.shape, packed.strides)
    if tensor.is_cuda and tensor.data_ptr() % ALIGNED:
        tensor = tensor.clone()  # XLA's programs for CUDA refuse it
    return jax.dlpack.from_dlpack(tensor)


def _logical(array: jax.Array, meta: TensorMeta) -> jax.Array:
    """Give an array the dimensions of the tensor whose memory it is."""
    packed = _packing(meta)
    if packed is None:
        return array
    once = tuple(n if i in packed.order else 1 for i, n in enumerate(meta.shape))
    return jnp.broadcast_to(jnp.transpose(array, packed.inverse).reshape(once), meta.shape)


def _laid_out(result: Any, outputs: Any) -> Iterator[jax.Array]:
    """Round results to their dtypes and give them torch's order in memory."""
    if isinstance(outputs, TensorMeta):
        packed = Packed.of(outputs)
        assert packed is not None  # noqa: S101  accepts looked
        rounded = result.astype(DTYPES[outputs.dtype]).reshape(tuple(n for n in outputs.shape if n != 1))
        places = {dim: i for i, dim in enumerate(sorted(packed.order))}
        yield jnp.transpose(rounded, tuple(places[dim] for dim in packed.order))
    elif outputs is not None:
        for one, described in zip(result, outputs, strict=True):
            yield from _laid_out(one, described)


def _await_readers(device: torch.device) -> None:
    """Have the current stream wait for the others that read results.

    A result that is dropped goes back to JAX, which may put the next one there as soon as the stream that
    this call comes from is through: it knows of no other.
    """
    current = torch.cuda.current_stream(device)
    streams = _streams.setdefault(current.device_index, set())
    for stream in streams:
        if stream != current:
            current.wait_stream(stream)
    streams.add(current)
