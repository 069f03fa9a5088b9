"""The gate: a kernel serves no call before it agrees with the float64 reference on this machine.

A kernel is verified on its operator's smoke samples and, for a call with another layout, on samples of that
layout. A passed verdict is kept on disk with the kernel's identity, so that the next process needs no new
check. A wrong result puts the kernel into quarantine; a kernel that ends the process is found by the journal
at the next start.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from nxcore.context import as_eager
from nxcore.errors import DeviceLostError, VerificationError
from nxcore.registry.registry import Registry
from nxcore.spec import tally
from nxcore.spec.compiling import UncompiledError, compiling
from nxcore.spec.composed import proofs_for
from nxcore.spec.device import current, synchronize
from nxcore.spec.exits import RAISED, ExitError, blamed
from nxcore.spec.kernel import Backend, Code, Kernel, Refusal
from nxcore.spec.layout import layout_class
from nxcore.spec.planning import PLANNING
from nxcore.spec.precision import coarser, precision_class
from nxcore.spec.problem import Problem
from nxcore.spec.sample import Sample
from nxcore.spec.shortage import shortage
from nxcore.store.files import Store
from nxcore.trust import fingerprint, trial
from nxcore.trust.conditions import moved, unheld, whole
from nxcore.trust.identity import Identities, Identity
from nxcore.trust.quarantine import Quarantine, Quarantined
from nxcore.trust.samples import ALIKE, alike, built, named_in, proofs, sampled, what_first
from nxcore.trust.state import UNCHANGED, State, disturbance
from nxcore.trust.suspect import Suspect
from nxcore.trust.truth import agreement

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """The result of a kernel's verification: its ``refusal``, None if it passed.

    ``error`` is the worst relative one in the 2-norm, None if it raised or accepted no sample; ``layouts``
    are the layout classes of the samples that it accepted.
    """

    refusal: Refusal | None
    error: float | None = None
    layouts: tuple[str, ...] = ()


class Gate:
    """Verifies the kernels of a registry, once per dtype, layout class and device."""

    def __init__(self, registry: Registry, store: Store) -> None:
        self.registry, self.store, self.quarantine = registry, store, Quarantine(store)
        self._identities = Identities(store)
        self._held: dict[tuple[Any, ...], Held] = {}
        self._suspects: dict[tuple[Any, ...], Suspect] = {}

    def identity(self, backend: Backend, kernel: Kernel) -> Identity:
        """Return a kernel's identity."""
        return self._identities.of(backend, kernel, self.registry.spec(kernel.op))

    def suspect(self, backend: Backend, kernel: Kernel, device: torch.device, dtype: torch.dtype) -> Suspect:
        """Return a kernel with its identity, and the versions that verdicts depend on."""
        key = (backend.name, kernel.op, kernel.variant, device, dtype)
        if key not in self._suspects:
            distribution = self.registry.sources[backend.name].distribution.partition(" ")[0]
            made_of = {
                "identity": self.identity(backend, kernel).verified,
                "versions": fingerprint.toolkits(distribution) | _toolkit(backend),
                "simulated": self.registry.probe(backend, kernel).simulated,
            }
            facts = fingerprint.device(device.type, device.index)
            self._suspects[key] = Suspect(kernel.op, backend.label(kernel), short(dtype), facts, made_of)
        return self._suspects[key]

    def refusal(self, backend: Backend, kernel: Kernel, problem: Problem) -> Refusal | None:
        """Return why the quarantine rejects a kernel for ``problem``; None if it doesn't."""
        if not self.quarantine.knows(kernel.op, backend.label(kernel)):
            return None  # without reading its sources
        return self.quarantine.refusal(self.suspect(backend, kernel, problem.device, problem.dtype))

    def quarantined(self) -> list[Quarantined]:
        """Return the entries in force; an entry whose kernel has changed is lifted."""
        owned = {(k.op, b.label(k)): (b, k) for b in self.registry.backends.values() for k in b.kernels}
        for entry in list(self.quarantine):
            if (found := owned.get((entry.op, entry.kernel))) is None:
                continue  # not installed now, but may be unchanged when it is installed again
            kind = torch.device(str(entry.facts["device"].get("type")))
            if kind.type == "cuda" and not torch.cuda.is_available():
                continue
            if not self.quarantine.refusal(self.suspect(*found, kind, getattr(torch, entry.dtype))):
                self.quarantine.lift(entry)
        return list(self.quarantine)

    def verify(self, backend: Backend, kernel: Kernel, problem: Problem) -> Held:
        """Compare a kernel with the float64 reference for calls like ``problem``, once.

        Raises
        ------
        DeviceLostError
            If it ended the CUDA context.
        """
        layout = layout_class(problem.tensors)
        found = self._ask(backend, kernel, problem, what_first(kernel))
        alike = () if layout in found.layouts else ((kernel, problem, layout),)
        for own, part, what in (*alike, *proofs_for(kernel, problem)):
            if not found.refusal:
                other = self._ask(backend, own, part, what)
                found = (
                    other if other.refusal else replace(other, error=max(found.error or 0, other.error or 0))
                )
        return found

    def tried(self, backend: Backend, kernel: Kernel, problem: Problem) -> Refusal | None:
        """Try a kernel in a process of its own if one ended in it before; return why it is rejected.

        None if there is no doubt about it, or none any more.

        Raises
        ------
        UncompiledError
            Within ``on_disk_alone``, where a call can't wait for a trial.
        """
        if not self.quarantine.doubts:
            return None
        suspect = self.suspect(backend, kernel, problem.device, problem.dtype)
        doubt = self.quarantine.doubt(suspect)
        if doubt is None:
            return None
        compiling(f"a trial of {suspect.kernel}")
        found = trial.held(doubt, self.store)
        if found.crashed or found.impossible:
            return self.quarantine.add(suspect, "crashed", f"{doubt.reason}, and {found.why}").refusal
        if found.passed:
            self.quarantine.acquit(suspect)
        else:
            return Refusal(Code.MEMORY, f"{doubt.reason}, and {found.why}")
        return None

    @contextlib.contextmanager
    def watched(self, suspect: Suspect, device: torch.device, what: str, problem: Problem) -> Iterator[None]:
        """Record the first launches of a kernel in the journal until they have completed.

        Raises
        ------
        DeviceLostError, VerificationError
            If they ended the CUDA context, or changed a setting of the thread: it's in quarantine then.
        """
        with self.quarantine.watched(suspect, what, trial.call(problem)):
            before = State.own(device)
            try:
                yield
                synchronize(device)
            except Exception as error:
                if reason := lost(device):
                    self.quarantine.add(suspect, "crashed", f"{what} ended the CUDA context: {reason}")
                    raise DeviceLostError(reason, op=suspect.op, kernel=suspect.kernel, sure=True) from error
                raise
            if why := before.left(device):
                why = f"{UNCHANGED}: after {what} {why}"
                self.quarantine.add(suspect, "wrong", why)
                raise VerificationError(why)

    def knows(self, backend: Backend, kernel: Kernel, problem: Problem) -> bool:
        """Return whether a kernel was verified before, so that it need not be compiled for samples."""
        wanted = ((kernel, problem, what_first(kernel)), *proofs_for(kernel, problem))
        where = problem.device, problem.dtype
        return all(self._kept(self.suspect(backend, own, *where), *where, what) for own, _, what in wanted)

    def samples(self, backend: Backend, kernel: Kernel, problem: Problem) -> list[str]:
        """Return the names of samples on which a kernel is to be verified before a call like ``problem``.

        Samples of a layout are among them, whether or not a smoke sample will turn out to have it.
        """
        if self.knows(backend, kernel, problem):
            return []
        return [sample.name for sample in sampled(kernel, problem, self.registry)]

    def _kept(self, suspect: Suspect, device: torch.device, dtype: torch.dtype, what: str) -> Held | None:
        """Return the verdict on the samples called ``what``, from memory or from disk."""
        if found := self._held.get((suspect.kernel, suspect.op, device, dtype, what)):
            return found
        return _verdict(self.store.read("verdicts", suspect.key | {"samples": what}), _make(suspect))

    def _ask(self, backend: Backend, kernel: Kernel, problem: Problem, what: str) -> Held:
        """Return the verdict on the samples called ``what``, recorded or new."""
        device, dtype = problem.device, problem.dtype
        suspect = self.suspect(backend, kernel, device, dtype)
        found = self._kept(suspect, device, dtype, what)
        if found is None:
            with tally.spent("gate"), as_eager(), torch.inference_mode(False):
                found = self._run(suspect, kernel, problem, what)
            if found.refusal and found.error is not None and backend.name != "torch":
                self.quarantine.add(suspect, "wrong", found.refusal.reason)
            # Without a source, changes can't be detected: such a verdict holds for this process alone.
            elif not found.refusal and suspect.made_of["identity"]:
                verdict = {"error": found.error, "layouts": list(found.layouts)}
                self.store.write("verdicts", suspect.key | {"samples": what}, verdict | _make(suspect))
        if found.refusal and found.error is None:
            return found  # it raised: the machine's state may be the cause, so verify again next time
        self._held[suspect.kernel, suspect.op, device, dtype, what] = found
        _log.debug(
            "verdict: %s of %s, samples %s: %s", suspect.kernel, suspect.op, what, found.refusal or "agrees"
        )
        return found

    def _run(self, suspect: Suspect, kernel: Kernel, of: Problem, what: str) -> Held:
        spec, device, dtype = self.registry.spec(kernel.op), of.device, of.dtype
        errors: list[float] = []
        layouts: list[str] = []
        varied, first = False, what == what_first(kernel)
        named = proofs(kernel, spec.samples) if first else named_in(what, spec.samples)
        with self.watched(suspect, device, "its verification", of), current(device):
            for sample in named or alike(spec.name, dtype, what, self.registry):
                PLANNING.get().pause()
                try:
                    case = built(spec.name, sample.name, device, dtype, self.registry)
                    problem = Problem.of(spec, case.args)
                    if not (kernel.suits(problem) and kernel.takes(problem)):
                        continue
                    before = State.now(device)
                    call = kernel.plan(problem)
                    if why := disturbance(before, device, partial(kernel.plan, problem), lambda: None):
                        return _wrong(sample, f"{UNCHANGED}: {why}", float("inf"))
                    found = agreement(call, spec, case.args, case.truth)
                    if not found.ok:
                        return _wrong(sample, found.reason, found.error)
                    if first and whole(spec, case.args):
                        # batch_norm in float16 ends the context at an odd address, in torch 2.11
                        odd = device.type != "cuda" or suspect.kernel.split("-")[0] != "torch"
                        if why := moved(call, case, odd) if varied else unheld(call, case, odd):
                            return _wrong(sample, why, found.error)
                        varied = True
                except UncompiledError:
                    raise
                except RAISED as raised:
                    failure = blamed(raised)
                    if isinstance(failure, ExitError):
                        return _wrong(sample, str(failure), float("inf"))
                    if lost(device):
                        raise
                    if shortage(failure):
                        return Held(lacked(failure))
                    return Held(Refusal(Code.RAISED, f"raised on sample {sample.name!r}: {brief(failure)}"))
                errors.append(found.error)
                layouts.append(layout_class(problem.tensors))
                if not named and len(errors) == ALIKE:
                    break
        if not errors:
            wanted = "none of the smoke samples" if first else f"no sample with layout {what}"
            why = f"can't be verified: it accepts {wanted} in {suspect.dtype}"
            return Held(Refusal(Code.UNVERIFIED, why))
        if dtype is torch.float32 and (why := _overclaims(kernel, errors)):
            return Held(Refusal(Code.WRONG, why), max(errors))
        return Held(None, max(errors), tuple(dict.fromkeys(layouts)))


def _wrong(sample: Sample, why: str, error: float) -> Held:
    built.cache_clear()  # it may have written into samples that other kernels are verified on
    return Held(Refusal(Code.WRONG, f"wrong on sample {sample.name!r}: {why}"), error)


def _toolkit(backend: Backend) -> dict[str, str]:
    return dict(backend.toolkit()) if backend.toolkit else {}


def lost(device: torch.device) -> str:
    """Return why the CUDA context of ``device`` was lost; empty if it works, or for other devices."""
    if device.type != "cuda":
        return ""
    try:
        if not torch.cuda.is_current_stream_capturing():  # where waiting is forbidden
            synchronize(device)
    except Exception as error:  # noqa: BLE001  torch's type for it changed with its versions
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""


def brief(error: BaseException) -> str:
    """Return an exception in one line: its type, the first line of its text, and where it was raised."""
    text = str(error).strip().splitlines()
    where = traceback.extract_tb(error.__traceback__)[-1:] or None
    at = f" ({where[0].name}, line {where[0].lineno})" if where else ""
    return f"{type(error).__name__}: {text[0] if text else ''}{at}"


def lacked(error: BaseException) -> Refusal:
    """Return the refusal of a kernel that met a shortage of the machine, for the moment."""
    memory = isinstance(error, torch.OutOfMemoryError)
    what = "out of memory" if memory else f"a shortage of the machine: {brief(error)}"
    return Refusal(Code.MEMORY, f"{what}; it is tried again later")


def short(dtype: torch.dtype) -> str:
    """Return a dtype's name without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def _make(suspect: Suspect) -> dict[str, Any]:
    return {"device": dict(suspect.device), "made_of": dict(suspect.made_of)}


def _overclaims(kernel: Kernel, errors: Sequence[float]) -> str:
    """Return why a kernel's precision class differs from its claim; empty if it doesn't."""
    rounded = [e for e in errors if e > 0]
    if not rounded:
        return ""
    middle = statistics.median(rounded)  # one sum may cancel to nearly zero, but not half of all
    reached = precision_class(middle)
    if not coarser(reached, kernel.precision):
        return ""
    return f"wrong about its precision: claims {kernel.precision}, reaches {reached} (error {middle:.1e})"


def _verdict(document: dict[str, Any] | None, make: dict[str, Any]) -> Held | None:
    """Return the verdict in a document, or None if there is none, or it is of another kernel."""
    if document is None or {name: document.get(name) for name in make} != make:
        return None
    error, layouts = document.get("error"), document.get("layouts")
    if not isinstance(error, int | float) or not error >= 0 or not isinstance(layouts, list):
        return None
    return Held(None, float(error), tuple(map(str, layouts)))
