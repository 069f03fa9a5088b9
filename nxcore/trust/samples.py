"""The samples on which a kernel is verified before a call, and what is built from them once."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

from nxcore.registry.registry import Registry
from nxcore.spec.composed import proofs_for
from nxcore.spec.kernel import Kernel
from nxcore.spec.layout import layout_class
from nxcore.spec.problem import Problem, leaves
from nxcore.spec.sample import EXACT, Sample
from nxcore.spec.spec import OpSpec
from nxcore.trust.conditions import Case
from nxcore.trust.truth import Truth, require_telling, without_out

OPERATORS = "nxcore.ops."
"""The beginning of the modules of the package's operators."""

HALVES = (torch.float16, torch.bfloat16)

ALIKE = 3
"""The number of samples to verify for a layout that no smoke sample has."""


def what_first(kernel: Kernel) -> str:
    """Return what the samples are called on which a kernel is verified first."""
    return ", ".join(("smoke", *kernel.verified_on))


def named_in(what: str, samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Return the samples of ``own, NAMES``; none of a layout's name."""
    own, *names = what.split(", ")
    return tuple(s for s in samples if s.name in names) if own == "own" else ()


def proofs(kernel: Kernel, samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Return those of its operator's samples on which a kernel is verified first."""
    return tuple(s for s in samples if "smoke" in s.tags or s.name in kernel.verified_on)


def sampled(kernel: Kernel, problem: Problem, registry: Registry) -> list[Sample]:
    """Return the samples that may verify a kernel for ``problem``; see ``Gate.samples``."""
    op, dtype, layout = problem.op, problem.dtype, layout_class(problem.tensors)
    first = proofs(kernel, registry.spec(op).samples)
    others = alike(op, dtype, layout, registry)[:ALIKE] if layout != "contiguous" else ()
    whats = (what for of, _, what in proofs_for(kernel, problem) if of is kernel)
    own = (s for what in whats for s in named_in(what, registry.spec(op).samples))
    return list({sample.name: sample for sample in (*first, *others, *own)}.values())


@functools.lru_cache(maxsize=256)
def alike(op: str, dtype: torch.dtype, layout: str, registry: Registry) -> tuple[Sample, ...]:
    """Return all small and discriminating samples with a layout."""
    spec = registry.spec(op)
    small = (s for s in spec.samples if not s.tags & {"bench", "degenerate", "huge"})
    return tuple(
        s for s in small if layout_class(Problem.of(spec, s.build(spec, "cpu", dtype)).tensors) == layout
    )


@functools.lru_cache(maxsize=256)
def built(op: str, name: str, device: torch.device, dtype: torch.dtype, registry: Registry) -> Case:
    """Build a sample and its truth, shared by an operator's kernels.

    Raises
    ------
    VerificationError
        If a kernel that does nothing would pass the sample.
    """
    spec = registry.spec(op)
    sample = next(s for s in spec.samples if s.name == name)
    args = sample.build(spec, device, dtype)
    renumbered = Sample(f"{sample.name}, other numbers", sample.args, sample.kwargs)
    build = functools.partial(renumbered.build, spec, device, dtype)
    case = Case(spec, args, Truth.of(spec, args, exactly=EXACT in sample.tags), build)
    if case.truth.share or not _tried(spec, sample, dtype):
        with torch.no_grad():
            earlier = tuple(leaves(spec.reference(*without_out(spec, case.others))))
        require_telling(case.truth, args, name, previous=earlier)
    return case


def _tried(spec: OpSpec, sample: Sample, dtype: torch.dtype) -> bool:
    """Return whether the package's suite tries a sample of its own with wrong results.

    Its numbers are the same on every device. To try it takes as long as its truth, and these are a process's
    first seconds.
    """
    own = spec.expression is None and getattr(spec.reference, "__module__", "").startswith(OPERATORS)
    return own and (dtype is torch.float32 or (dtype in HALVES and "smoke" in sample.tags))
