"""Break a copy of a plugin, hold it to the conformance kit, and tell which rule refused it on which sample.

    python -m tests.hostile.mutants BACKEND first|rest|all [PART OF A NAME...]

One process imports torch and the toolkit once and forks for each mutation: there the broken copy is imported
in place of the plugin, and may crash. The installed files are left alone.
"""

import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch

from nxcore.ops import nxcore_ops
from nxcore.registry import reference
from nxcore.registry.registry import Registry, Source
from nxcore.spec.sample import Sample
from nxcore.testing import rules
from nxcore.testing.cell import Broken, Cell, Declined, Inapplicable, cells, modest
from tests.hostile import (
    cross_entropy,
    embedding,
    lines,
    norms,
    of_cuda,
    of_cuda_norm,
    of_cuda_planes,
    of_folds,
    of_numba,
    of_numba_cuda,
    of_products,
    of_triton,
    rope,
    scans,
    softmaxes,
)
from tests.hostile.mutations import BITS, MASK, NAN, STRIDE, TOP, Mutation
from tests.interpreter import keep_bookkeeping
from tests.simulator import take_turns

PATIENCE = 100
"""Seconds for one mutation."""

TRIES = 3
"""Processes for a mutation that writes beside its output: it may overwrite what is the interpreter's."""

LIKELY = {
    MASK: ("last_block", "prime", "plus_one", "padding"),
    BITS: ("drift", "overflow", "long", "many", "seven"),
    STRIDE: ("transposed", "layouts", "gaps", "broadcast", "rectangle"),
    TOP: ("exp_overflow",),
    NAN: ("nan",),
}
"""Parts of the names of the samples that are tried first for a kind: all are, in the end."""


@dataclass(frozen=True)
class Plugin:
    """Whose sources are broken.

    Attributes
    ----------
    package : str
        Of the plugin.
    label : str
        Of the kernels, as tables have it.
    toolkit : str
        What is imported once, before any fork.
    mutations : tuple of Mutation
    """

    package: str
    label: str
    toolkit: str
    mutations: tuple[Mutation, ...]

    @property
    def folder(self) -> Path:
        """Where the plugin is installed; found without importing it."""
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:
            raise LookupError(f"{self.package} is not installed")
        return Path(spec.origin).parent


NUMBA = (
    *(*of_numba.MUTATIONS, *of_products.NUMBA, *lines.NUMBA, *norms.NUMBA),
    *(*softmaxes.NUMBA, *cross_entropy.NUMBA, *rope.NUMBA),
)
TRITON = (
    *(*of_triton.MUTATIONS, *of_products.TRITON, *scans.TRITON),
    *(
        *lines.TRITON,
        *norms.TRITON,
        *softmaxes.TRITON,
        *cross_entropy.TRITON,
        *rope.TRITON,
        *embedding.TRITON,
    ),
)
PLUGINS = {
    "numba": Plugin("nxcore_numba", "numba", "numba", NUMBA),
    "triton": Plugin("nxcore_triton", "triton", "triton.runtime.interpreter", TRITON),
    "cuda": Plugin(
        "nxcore_cuda",
        "cuda",
        "ctypes",
        (
            *(*of_cuda.MUTATIONS, *of_products.CUDA, *of_folds.CUDA, *of_cuda_norm.MUTATIONS),
            *(*of_cuda_planes.MUTATIONS, *scans.CUDA, *lines.CUDA, *norms.CUDA),
            *(*softmaxes.CUDA, *cross_entropy.CUDA, *rope.CUDA, *embedding.CUDA),
        ),
    ),
    "numba-cuda": Plugin("nxcore_numba", "numba-cuda", "numba.cuda", of_numba_cuda.MUTATIONS),
}


CONTROL = Mutation("nothing", "__init__.py", ("add",), ())
"""Breaks nothing: or what is refused might be refused for having been copied."""


@dataclass(frozen=True)
class Result:
    """How a mutation ended for one operator.

    Attributes
    ----------
    name, op : str
        Which.
    rule, sample : str
        What refused it, and where; both empty if it survived.
    message : str
        What was found.
    seconds : float
        What it took.
    """

    name: str
    op: str
    rule: str
    sample: str
    message: str
    seconds: float


def edited(mutation: Mutation, source: Path) -> str:
    """Return the text of a mutation's file with its edits.

    Raises
    ------
    ValueError
        If a text that it replaces isn't there as often as it says.
    """
    text = (source / mutation.file).read_text(encoding="utf-8")
    for edit in mutation.edits:
        if (count := text.count(edit.find)) != edit.count:
            raise ValueError(f"{mutation.name}: expected {edit.count} of {edit.find!r}, got {count}")
        text = text.replace(edit.find, edit.replace)
    return text


def mutated(mutation: Mutation, source: Path, target: Path) -> None:
    """Write a copy of a plugin's folder with one mutation in it."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "images"))
    (target / mutation.file).write_text(edited(mutation, source), encoding="utf-8")


def registry(package: str) -> Registry:
    """Return a registry of torch and of one plugin, imported now."""
    specs, found = nxcore_ops(), Registry()
    core = Source("core", "nxcore-kernels")
    found.add_ops(specs, core)
    found.add_backend(reference.backend(specs), core)
    backend = importlib.import_module(package).nxcore_backend()
    found.add_backend(backend, Source(backend.name, package.replace("_", "-")))
    return found


def by_likelihood(cell: Cell, mutation: Mutation) -> list[Sample]:
    """Return the kit's samples, those first whose name promises something; few where nothing is broken."""
    if not mutation.edits:
        return list(cell.spec.tagged("smoke"))
    words = (mutation.likely,) if mutation.likely else LIKELY[mutation.kind]
    return sorted(modest(cell.spec, cell.kernel), key=lambda s: not any(word in s.name for word in words))


def refusal(cell: Cell, mutation: Mutation) -> tuple[str, str, str]:
    """Return the rule, the sample and the message of what refuses a kernel; empty ones if nothing does."""
    for one in (cell, *(cell.on(s) for s in by_likelihood(cell, mutation))):
        # What the kit holds once a kernel it chooses the sample for.
        asked = (rules.agrees_with_float64,)
        if one.sample is None:
            asked = (rules.stays_within_its_output, rules.reads_no_further) if mutation.kind == MASK else ()
        for rule in asked:
            try:
                rule(one)
            except Broken as error:
                if error.rule != "raises_nothing" or (mutation.raises and mutation.raises in error.message):
                    return error.rule, one.sample.name if one.sample else "", error.message
                raise
            except (Declined, Inapplicable):
                continue
    return "", "", ""


def examine(plugin: Plugin, mutation: Mutation, folder: Path) -> Iterator[Result]:
    """Import the broken copy and yield a result an operator."""
    mutated(mutation, plugin.folder, folder / plugin.package)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    found = registry(plugin.package)
    home = sys.modules[plugin.package].__file__
    if not (home and Path(home).is_relative_to(folder)):
        raise RuntimeError(f"{plugin.package} was imported from {home}, not from {folder}")
    for op in mutation.ops:
        start = time.monotonic()
        asked = {c.dtype: c for c in cells(found, ops=[op]) if c.label == plugin.label}
        cell = asked[torch.float32]
        if mutation.kind == BITS:
            cell = asked.get(torch.float16, cell)
        refused = refusal(cell, mutation)
        yield Result(mutation.name, op, *refused, time.monotonic() - start)


def forked(plugin: Plugin, mutation: Mutation) -> Iterator[Result]:
    """Examine one mutation in children of this process: in another where one died, and how is its result."""
    left, tries = list(mutation.ops), TRIES if mutation.kind in (MASK, STRIDE) else 1
    while left:
        start, status = time.monotonic(), 0
        reading, writing = os.pipe()
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            if child == 0:
                os.close(reading)
                _in_the_child(plugin, replace(mutation, ops=tuple(left)), Path(folder), writing)
            os.close(writing)
            with os.fdopen(reading, encoding="utf-8") as channel:
                for line in channel:
                    result = Result(**json.loads(line))
                    left.remove(result.op)
                    yield replace(result, name=mutation.name)
            _, status = os.waitpid(child, 0)
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
        if tries > 1 and status and how in ("", "SIGALRM"):
            tries -= 1
        elif how:
            rule, took = "hangs" if how == "SIGALRM" else "crashes", time.monotonic() - start
            yield Result(mutation.name, left.pop(0), rule, "", f"its process died of {how}", took)
        elif status:
            raise RuntimeError(f"{mutation.name}: its process failed; it printed why")


def _in_the_child(plugin: Plugin, mutation: Mutation, folder: Path, writing: int) -> None:
    status = 1
    try:
        signal.alarm(PATIENCE)
        os.environ["NUMBA_CACHE_DIR"] = str(folder / "cache")
        with os.fdopen(writing, "w", encoding="utf-8") as channel:
            for result in examine(plugin, mutation, folder):
                channel.write(json.dumps(asdict(result)) + "\n")
                channel.flush()
        status = 0
    except BaseException:  # noqa: BLE001  a forked child must end here, whatever happened
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def chosen(mutations: Iterable[Mutation], which: str) -> Iterator[Mutation]:
    """Yield mutations for the ``first`` of their operators, the ``rest`` or ``all`` of them."""
    if which == "first":
        yield CONTROL
    for mutation in mutations:
        first = () if mutation.slow else mutation.ops[:1]
        ops = {"first": first, "rest": mutation.ops[len(first) :], "all": mutation.ops}[which]
        if ops:
            yield replace(mutation, ops=ops)


def main() -> None:
    """Write a line of JSON a result."""
    name, which, *parts = sys.argv[1:]
    plugin = PLUGINS[name]
    torch.set_num_threads(1)  # threads of OpenMP don't live through a fork
    importlib.import_module(plugin.toolkit)
    keep_bookkeeping()
    take_turns()
    nxcore_ops()
    torch.empty(1, device="meta").add(1)  # imports torch's compiler, once for all children
    with tempfile.TemporaryDirectory() as folder:
        # One for all children: its files are named by their sources, most of which are as installed.
        os.environ["NXCORE_CUDA_CACHE"] = folder
        for mutation in chosen(plugin.mutations, which):
            if not parts or any(part in mutation.name for part in parts):
                for result in forked(plugin, mutation):
                    print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
