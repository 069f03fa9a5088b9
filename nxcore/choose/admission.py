"""Admission: why a kernel is rejected for a problem before it is verified, planned or timed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from nxcore.errors import MeasurementError
from nxcore.registry.registry import Registry
from nxcore.spec.compiling import UncompiledError, on_disk_alone
from nxcore.spec.exits import RAISED, ExitError, blamed
from nxcore.spec.kernel import Backend, Code, Kernel, Refusal
from nxcore.spec.problem import Problem
from nxcore.spec.shortage import shortage
from nxcore.trust.gate import Gate, brief, lacked, short

_log = logging.getLogger(__name__)

AGAIN = "unset NXCORE_NO_JIT"

SILENT = Refusal(
    Code.UNCOMPILED, "NXCORE_NO_JIT is set, and its plugin doesn't announce what it compiles", AGAIN
)


def refusal(
    registry: Registry, gate: Gate, backend: Backend, kernel: Kernel, problem: Problem, *, jit: bool = True
) -> Refusal | None:
    """Return why a kernel is rejected for ``problem``: by the machine, then by the call.

    Without ``jit``, a kernel is rejected if it doesn't announce that it compiles.
    """
    machine = registry.probe(backend, kernel)
    if not machine:
        code = Code.MEMORY if machine.code is Code.MEMORY else Code.MACHINE
        return Refusal(code, machine.reason, machine.hint)
    native = backend.name == "torch"
    if not native and problem.dtype not in kernel.dtypes:
        needed = " or ".join(short(d) for d in kernel.dtypes)
        return Refusal(Code.DTYPE, f"needs {needed}, got {short(problem.dtype)}")
    if not (suits := kernel.suits(problem)):
        return suits.refusal
    if not native and problem.writes and problem["out"].dtype != problem.outputs.dtype:
        return Refusal(Code.DTYPE, f"needs an out of the result's dtype, {short(problem.outputs.dtype)}")
    if problem.aliased and not kernel.in_place_safe:
        return Refusal(Code.CLAIM, "doesn't claim to be in_place_safe, and out is an input")
    if torch.are_deterministic_algorithms_enabled() and not (native or kernel.deterministic):
        return Refusal(Code.CLAIM, "doesn't claim to be deterministic")
    try:
        with registry.waiting(backend, "accepts"):
            verdict = kernel.takes(problem)
    except RAISED as raised:
        error = blamed(raised)
        if shortage(error):
            return lacked(error)
        return Refusal(Code.BROKEN, f"accepts raised {type(error).__name__}: {error}")
    if not verdict:
        return verdict.refusal
    if not (native or jit or kernel.announces):
        return SILENT
    return None if native else gate.refusal(backend, kernel, problem)


def refusals(
    registry: Registry, gate: Gate, kernels: Iterable[tuple[Backend, Kernel]], problem: Problem, *, jit: bool
) -> list[Refusal | None]:
    """Return why each of several kernels is rejected for ``problem``."""
    return [refusal(registry, gate, backend, kernel, problem, jit=jit) for backend, kernel in kernels]


def struck(gate: Gate, backend: Backend, kernel: Kernel, problem: Problem, error: Exception) -> Refusal:
    """Count a kernel's exception; return it as a refusal.

    A shortage, such as of memory, and work on a stream other than the current one, are no strikes.
    """
    if shortage(error):
        return lacked(error)
    if isinstance(error, MeasurementError):
        return Refusal(Code.UNMEASURED, f"not measured: {error}")
    reason = f"raised {brief(error)}"
    suspect = gate.suspect(backend, kernel, problem.device, problem.dtype)
    if isinstance(error, ExitError):
        return gate.quarantine.add(suspect, "wrong", str(error)).refusal
    entry = gate.quarantine.strike(suspect, problem, reason)
    return entry.refusal if entry else Refusal(Code.RAISED, reason)


def uncompiled(missing: UncompiledError) -> Refusal:
    """Return the refusal of a kernel whose code isn't on disk, where nothing may be compiled."""
    return Refusal(
        Code.UNCOMPILED, f"it would have to be compiled, and NXCORE_NO_JIT is set: {missing}", AGAIN
    )


def from_disk(call: Callable[..., Any], label: str, problem: Problem) -> Callable[..., Any]:
    """Return a plan that compiles nothing: torch serves the calls for which the kernel isn't on disk.

    Some toolkits compile a kernel again for a call that differs from the first one in what a
    problem leaves out, such as the alignment of memory. A plan that writes into an argument is left as it is.
    """
    if problem.writes:
        return call

    def from_disk(*args: Any) -> Any:
        try:
            with on_disk_alone():
                return call(*args)
        except UncompiledError as missing:
            _log.info(
                "plan: torch serves a call of %s: %s isn't compiled for it (%s)", problem, label, missing
            )
            return problem.spec.reference(*args)

    return from_disk
