"""Identities: what a kernel is made of, as digests. A changed kernel counts as new and unverified.

An identity covers what runs: the planner and all that it reaches by names inside nxcore and its plugins, the
device code that it names with its headers, and what the operator's spec says is right. Comments, formatting
and other kernels don't change it. No GPU and no compiler is needed, so it is the same on every machine.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from nxcore.measure.collection import no_collection
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.launched import repeats
from nxcore.spec.spec import OpSpec
from nxcore.store.files import Document, Store
from nxcore.trust import fingerprint
from nxcore.trust.closure import Sources, digest
from nxcore.trust.syntax import APART

FORMAT = 1
"""The version of these rules: under another one, all kernels are new."""

KEPT = 2
"""The version of what a store keeps: identities that another one left are computed again."""

CONTRACT = (
    "nxcore.context",
    "nxcore.errors",
    "nxcore.settings",
    "nxcore.spec.backward",
    "nxcore.spec.checks",
    "nxcore.spec.device",
    "nxcore.spec.kernel",
    "nxcore.spec.problem",
    "nxcore.spec.process",
    "nxcore.spec.sample",
    "nxcore.spec.spec",
    "nxcore.store",
)
"""The modules of the core that kernels use by contract: the names used count, not what is behind them."""

SAMPLES = frozenset({"given", "samples"})
"""The arguments of a spec that give samples."""

JUDGE = "nxcore.trust.truth:agreement"
"""The rules by which a result is right."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A kernel's digests; empty where a module has no source, so that changes can't be detected.

    Attributes
    ----------
    kernel : str
        Of what it computes and what it launches: recorded times count for it.
    verified : str
        Of that, and of how it is loaded, the calls that it takes, the samples and the tolerance: verdicts
        count for it.
    """

    kernel: str
    verified: str


class Identities:
    """The identities of kernels. A store keeps them as long as the files that were read don't change.

    Parameters
    ----------
    store : Store
        Holds them for the next process.
    sources : Sources, optional
        Replaces the installed sources.
    """

    def __init__(self, store: Store, sources: Sources | None = None) -> None:
        self._store, self._sources = store, sources or installed()
        self._known: dict[tuple[str, str], Identity] = {}
        # A file is read once for all kernels, and asked about once: most of them are in every identity.
        self._state = functools.cache(_state)
        self._lock = threading.Lock()

    def of(self, backend: Backend, kernel: Kernel, spec: OpSpec) -> Identity:
        """Return the identity of a backend's kernel for an operator."""
        name = backend.label(kernel), kernel.op
        with self._lock:
            if name not in self._known:
                self._known[name] = self._found(backend, kernel, spec)
            return self._known[name]

    def _found(self, backend: Backend, kernel: Kernel, spec: OpSpec) -> Identity:
        targets = [*_targets(kernel)]
        tops = sorted({target.partition(".")[0].partition(":")[0] for target in ("nxcore", *targets)})
        roots = {top: str(self._sources.root(top)) for top in tops}  # two installations may share a store
        key = {"kernel": backend.label(kernel), "op": kernel.op, "targets": targets, "roots": roots}
        state = self._state
        if (found := _kept(self._store.read("identities", key), state)) is None:
            with no_collection():  # parsing makes so many objects that half of its time would go there
                found, files = self._computed(backend, kernel, spec, targets)
            states = {str(path): state(str(path)) for path in files}
            value = {"format": KEPT, "files": states, "kernel": found.kernel, "verified": found.verified}
            self._store.write("identities", key, value)
        return _on_this_path(found, kernel)

    def _computed(
        self, backend: Backend, kernel: Kernel, spec: OpSpec, targets: list[str]
    ) -> tuple[Identity, list[Path]]:
        made_of = [*targets, *_address(spec)]
        runtime = (*CONTRACT, *backend.runtime)
        launched = self._sources.closure(_followed(made_of), halts=runtime, apart=APART | SAMPLES)
        judged = [*made_of, JUDGE, *_parts(kernel.accepts), *([kernel.replay] if kernel.replay else [])]
        checked = self._sources.closure(_followed(judged), halts=CONTRACT, apart=APART)
        if not (launched.digest and checked.digest):
            return Identity("", ""), []
        names = digest([str(FORMAT), launched.digest, *_constants(made_of)])
        found = Identity(names, digest([names, checked.digest, *_constants(judged)]))
        return found, sorted({*launched.files, *checked.files})


def _on_this_path(found: Identity, kernel: Kernel) -> Identity:
    """Return the identity for this path of calls: where launches are repeated, verdicts are others.

    Times count on both: a kernel takes as long as before, and the host no longer.
    """
    if not (repeats() and kernel.replay and found.verified):
        return found
    return Identity(found.kernel, digest([found.verified, "compiled"]))


@functools.cache
def installed() -> Sources:
    """Return the installed sources, in which names are followed into the core and its plugins."""
    return Sources(followed=_packages)


@functools.cache
def _packages() -> frozenset[str]:
    return frozenset({"nxcore", *(module.partition(".")[0] for _, module in fingerprint.plugins())})


def _targets(kernel: Kernel) -> Iterator[str]:
    """Yield what a kernel is made of: the planner, the device code of its operator's name, and its parts."""
    yield kernel.target
    yield f"{kernel.target.partition(':')[0]}:{kernel.op}.cu"
    yield from kernel.uses
    for half in getattr(kernel, "halves", ()):
        yield from _targets(half)


def _followed(targets: list[str]) -> list[str]:
    """Return those of targets that are in sources; torch's count by its version."""
    return [target for target in targets if ":" in target and target.partition(".")[0] != "torch"]


def _constants(targets: list[str]) -> list[str]:
    return [target for target in targets if target not in _followed([target])]


def _address(spec: OpSpec) -> list[str]:
    """Return where a spec is defined; of one that no module names, what it is made of.

    All of a spec that is made of an expression follows from its trees.
    """
    if spec.expression is not None:
        return ["nxcore.expression.operator:specs", f"={spec.expression.key}"]
    module = getattr(spec.reference, "__module__", "")
    for name, value in vars(sys.modules.get(module, sys)).items():
        if value is spec:
            return [f"{module}:{name}"]
    deciding = (spec.reference, spec.magnitude, spec.terms, spec.outputs, spec.exact, spec.dtypes)
    return [part for value in (*deciding, spec.parts, spec.params) for part in _parts(value)]


def _parts(value: Any) -> Iterator[str]:
    """Yield the targets and the constants that an object is made of."""
    if isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield from _parts(part)
    elif isinstance(value, FunctionType):
        yield f"{value.__module__}:{value.__qualname__}"
        for cell in value.__closure__ or ():
            yield from _parts(cell.cell_contents)
    elif isinstance(value, Mapping):
        yield from (part for item in value.items() for part in _parts(item))
    elif isinstance(value, tuple | list):
        yield from (part for item in value for part in _parts(item))
    elif value is None or isinstance(value, bool | int | float | str | torch.dtype):
        yield f"={value!r}"
    else:
        yield f"{type(value).__module__}:{type(value).__qualname__}"


def _kept(document: Document | None, state: Callable[[str], list[int]]) -> Identity | None:
    """Return the identity of a document, unless a file has changed since it was written."""
    try:
        if document is None or document["format"] != KEPT or not document["files"]:
            return None
        if any(state(path) != then for path, then in document["files"].items()):
            return None
        return Identity(str(document["kernel"]), str(document["verified"]))
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def _state(path: str) -> list[int]:
    """Return a file's times, size and number; a file put in its place has others, whatever its date says."""
    try:
        found = Path(path).stat()
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino]
