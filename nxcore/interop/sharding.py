"""Calls with DTensors: every rank computes its own shards, where the spec says how a call divides.

torch's own rules don't cover our kernels, nor all of torch: in 2.13 they have no rule for the gradient of an
average pool, and a wrong one for a depthwise convolution with sharded channels.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from nxcore.spec.problem import Problem, tensors_of
from nxcore.spec.spec import OpSpec, Way


def is_sharded(args: tuple[Any, ...]) -> bool:
    """Return whether a ``DTensor`` is among ``args``; False if the class was never imported."""
    module = sys.modules.get("torch.distributed.tensor")
    cls = getattr(module, "DTensor", None)  # another thread may be importing the module
    return cls is not None and any(isinstance(t, cls) for t in tensors_of(args))


def ways_of(spec: OpSpec, args: tuple[Any, ...]) -> list[Way]:
    """Return the ways by which ranks divide a call."""
    return [way for way in spec.ways(*args) if not way.audits]


def divided(spec: OpSpec, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run ``call`` on each rank's own shards of ``args``, all positional; return its shard of the result.

    Along each dimension of the mesh, one of the spec's ways to divide a call is used, or none: the way that
    moves the fewest elements. Arguments with another placement are redistributed. Calls that can't be divided
    go to torch's own rules.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    spec.check(*args)
    tensors: list[Any] = tensors_of(args)
    ways = ways_of(spec, args)
    known = all(isinstance(t, DTensor) and t.device_mesh == tensors[0].device_mesh for t in tensors)
    kinds = {type(p) for t in tensors for p in t.placements} if known else set()
    if not ways or not known or not kinds <= {Shard, Replicate, Partial}:
        return spec.reference(*args)
    mesh = tensors[0].device_mesh
    candidates = [Way((None,) * len(tensors), None), *(w for w in ways if _fits(w, tensors, mesh))]

    def moved(axis: int, way: Way) -> int:
        wanted = (Replicate() if dim is None else Shard(dim) for dim in way.tensors)
        pairs = zip(tensors, wanted, strict=True)
        return sum(t.numel() for t, placement in pairs if t.placements[axis] != placement)

    chosen = [min(candidates, key=functools.partial(moved, axis)) for axis in range(mesh.ndim)]
    parts: list[Tensor] = []
    for i, tensor in enumerate(tensors):
        dims = [way.tensors[i] for way in chosen]
        placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
        # A rank's gradient of a replicated argument covers only its own part of the call.
        grads = [
            p if way.result is None or dim is not None else Partial()
            for p, way, dim in zip(placements, chosen, dims, strict=True)
        ]
        part = tensor if list(tensor.placements) == placements else tensor.redistribute(placements=placements)
        parts.append(part.to_local(grad_placements=grads))
    results = call(*_rebuilt(args, iter(parts)))
    placements = [Replicate() if way.result is None else Shard(way.result) for way in chosen]

    def joined(result: Any, meta: Any) -> Any:
        if isinstance(result, tuple | list):
            return tuple(joined(r, m) for r, m in zip(result, meta, strict=True))
        size = {"shape": meta.shape, "stride": meta.strides}  # without these it assumes equal shards
        return DTensor.from_local(result, mesh, placements, run_check=False, **size)

    return joined(results, Problem.of(spec, args).outputs)


def _fits(way: Way, tensors: list[Any], mesh: Any) -> bool:
    """Return whether no rank's part is empty: operators differ in what they accept of empty tensors."""
    count = mesh.size()
    sizes = [t.shape[dim] for t, dim in zip(tensors, way.tensors, strict=True) if dim is not None]
    if mesh.ndim > 1:  # shards of shards
        return all(n and n % count == 0 for n in sizes)
    return all(-(-n // count) * (count - 1) < n for n in sizes)


def _rebuilt(args: tuple[Any, ...], parts: Iterator[Tensor]) -> Iterator[Any]:
    for value in args:
        if isinstance(value, Tensor):
            yield next(parts)
        elif isinstance(value, tuple | list) and value and isinstance(value[0], Tensor):
            yield tuple(next(parts) for _ in value)
        else:
            yield value
