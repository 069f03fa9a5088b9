"""The content of a wheel by the shipped records: winners, for their problems and the samples of the gate."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nxcore.offline.shipped import files
from nxcore.ops import nxcore_ops
from nxcore.registry.registry import Registry, Source
from nxcore.spec.composed import proofs_for, taken_apart
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem
from nxcore.store.owner import packaged
from nxcore.store.problems import described, moved
from nxcore.store.transfer import read_json
from nxcore.store.wisdom import is_pair
from nxcore.trust.samples import named_in, sampled

SHARED = {"7.5": 65536, "8.0": 166912, "8.7": 166912, "9.0": 232448, "10.0": 232448}
"""Bytes of shared memory that a block may have, by capability, as a CUDA device reports it."""

LEAST_SHARED = 101376
"""These bytes on devices of any other capability from 8.0 on."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kernel that a wheel holds for a problem.

    Attributes
    ----------
    kernel : Kernel
        Of the backend; of a composed one each part is by itself.
    problem : Problem
        On a CUDA device.
    facts : Mapping
        The device's properties, as far as planners read them, by torch's names.
    """

    kernel: Kernel
    problem: Problem
    facts: Mapping[str, Any]

    @property
    def capability(self) -> tuple[int, int]:
        """The device's capability."""
        return self.facts["major"], self.facts["minor"]


def wanted(backend: Backend, paths: Iterable[Path] | None = None) -> Iterator[Wanted]:
    """Yield what a backend's wheel holds: per problem the winners of both regimes, and what verifies them.

    Parameters
    ----------
    backend : Backend
        The plugin need not be installed.
    paths : iterable of Path, optional
        Records; the shipped ones by default.
    """
    registry, core = Registry(), Source("core", "nxcore-kernels")
    registry.add_ops(nxcore_ops(), core)
    registry.add_backend(backend, core)
    seen = set[tuple[str, str, str, Problem]]()
    sample = functools.cache(functools.partial(of_sample, registry))
    for facts, problem, winners in _recorded(registry, paths or files()):
        for owner, kernel in registry.kernels(problem.op):
            if owner.label(kernel) not in winners:
                continue
            names = (s.name for s in sampled(kernel, problem, registry))
            samples = (sample(problem.op, name, problem.dtype) for name in names)
            alone = (pair for each in (problem, *samples) for pair in taken_apart(kernel, each))
            own = (
                (half, sample(half.op, one.name, part.dtype))  # on which a part of a composed one is verified
                for half, part, what in proofs_for(kernel, problem)
                for one in named_in(what, registry.spec(half.op).samples)
            )
            for half, each in (*alone, *own):
                place = facts["name"], half.op, half.variant, each
                if place not in seen:
                    seen.add(place)
                    yield Wanted(half, each, facts)


def _recorded(
    registry: Registry, paths: Iterable[Path]
) -> Iterator[tuple[dict[str, Any], Problem, set[str]]]:
    """Yield each recorded problem of a CUDA device, with the device's properties and the winners."""
    for part in (part for path in paths for part in read_json(path, packaged)["environments"]):
        if part["facts"].get("type") != "cuda":
            continue
        for entry in part["entries"]:
            of, decision = entry["key"], entry["page"]["decision"]
            if of["op"] in registry.ops and not is_pair(of):
                winners = {decision["chosen"], (decision.get("captured") or decision)["chosen"]}
                yield properties(part["facts"]), described(registry.spec(of["op"]), of), winners


def properties(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a recorded device, as torch names them."""
    capability = str(facts["capability"])
    major, _, minor = capability.partition(".")
    return {
        "name": facts["name"],
        "major": int(major),
        "minor": int(minor),
        "multi_processor_count": facts["units"],
        "total_memory": facts["memory"],
        "L2_cache_size": facts["l2"],
        "shared_memory_per_block_optin": SHARED.get(capability, LEAST_SHARED),
    }


def of_sample(registry: Registry, op: str, name: str, dtype: torch.dtype, device: str = "cuda") -> Problem:
    """Return the problem of a sample on a device that need not be here."""
    spec = registry.spec(op)
    sample = next(s for s in spec.samples if s.name == name)
    return moved(Problem.of(spec, sample.build(spec, "cpu", dtype)), torch.device(device))
