"""Which calls of batch_norm and of its gradients the kernels take. Imports no toolkit."""

from __future__ import annotations

from nxcore.plugin import YES, Problem, Verdict, collapse, no
from nxcore_cuda.accepts import tensors
from nxcore_cuda.layout import MAX_RANK

MOST = 65535  # blocks of a grid along y


def _accepts(problem: Problem, images: tuple[str, ...], factors: tuple[str, ...]) -> Verdict:
    if not (found := tensors(problem)):
        return found
    metas = [problem[name] for name in images]
    shape = metas[0].shape
    if shape[1] > MOST:
        return no(f"takes at most {MOST} channels, got {shape[1]}")
    for name, meta in zip(images, metas, strict=True):
        if shape[1] > 1 and meta.strides[1] == 1:
            return no(f"needs each channel's elements side by side, and {name} has strides {meta.strides}")
    rest = [(m.strides[0], *m.strides[2:]) for m in metas]
    rank = len(collapse((shape[0], *shape[2:]), *rest)[0])
    if rank > MAX_RANK:
        return no(f"takes at most {MAX_RANK} dimensions beside the channels after merging, got {rank}")
    for name in factors:
        meta = problem[name]
        if meta is not None and not meta.is_contiguous():
            return no(f"needs {name} without gaps, got strides {meta.strides}")
    return YES


def accepts_batch_norm(problem: Problem) -> Verdict:
    """Take images whose channels aren't innermost, of any other layout."""
    return _accepts(problem, ("x",), ("weight", "bias"))


def accepts_batch_norm_backward(problem: Problem) -> Verdict:
    """Take images and gradients whose channels aren't innermost, and at least one gradient to make."""
    return _accepts(problem, ("x", "grad"), ("mean", "var", "weight"))
