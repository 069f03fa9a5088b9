"""The identity of every kernel, on copies of this tree in which one thing is edited."""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nxcore_cuda.emulator import emulate
from nxcore_cuda.machine import toolkit

import nxcore
from nxcore import session
from nxcore.spec.problem import Problem
from nxcore.store.files import Store
from nxcore.trust import identity
from nxcore.trust.closure import Sources
from nxcore.trust.identity import Identities, Identity, _targets, installed

ROOT = Path(__file__).parents[1]
PACKAGES = {"nxcore": ROOT / "nxcore", **{p.name: p for p in sorted(ROOT.glob("plugins/*/src/nxcore_*"))}}

KERNELS = (
    ("torch", "add"),
    ("torch", "softmax_sum"),
    ("torch-einsum", "softmax_sum"),
    ("torch", "entropy"),
    ("cuda", "add"),
    ("cuda", "softmax_sum"),
    ("cuda", "entropy"),
    ("cuda", "depthwise_conv2d"),
    ("cuda", "sep_conv2d_batch_norm"),
    ("cupy", "add"),
    ("cupy", "entropy"),
    ("triton", "entropy"),
    ("triton", "sep_conv2d_batch_norm"),
    ("numba", "entropy"),
    ("numba-cuda", "sum"),
    ("jax", "softmax_sum"),
)


@dataclass
class Tree:
    """A copy of the packages."""

    folder: Path
    edited: dict[tuple[str, Any], dict[tuple[str, str], Identity]] = field(default_factory=dict)

    def identities(self) -> dict[tuple[str, str], Identity]:
        """Return the identities of some kernels, as a new process determines them."""
        roots = {name: self.folder / name for name in PACKAGES}
        found = Identities(Store(), Sources(roots, followed=lambda: frozenset(roots)))
        registry = session.default().registry
        owned = {(b.label(k), k.op): (b, k) for b in registry.backends.values() for k in b.kernels}
        return {name: found.of(*owned[name], registry.spec(name[1])) for name in KERNELS}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    for name, package in PACKAGES.items():
        shutil.copytree(
            package, folder / name, ignore=shutil.ignore_patterns("__pycache__", "images", "*.so")
        )
    tree = Tree(folder)
    return tree, tree.identities()


def names(changed):
    return sorted(" ".join(name) for name in changed)


def changed(copy, file, edit, what="kernel"):
    """Return the kernels with another identity after an edit, which is undone."""
    tree, before = copy
    if (file, edit) not in tree.edited:
        path = tree.folder / file
        text = path.read_text()
        path.write_text(edit(text))
        assert path.read_text() != text
        try:
            tree.edited[file, edit] = tree.identities()
        finally:
            path.write_text(text)
    after = tree.edited[file, edit]
    assert all(i.kernel and i.verified for i in after.values())
    return names(n for n in KERNELS if getattr(after[n], what) != getattr(before[n], what))


def replaced(was, now):
    def edit(text):
        assert was in text, f"{was!r} is there no more"
        return text.replace(was, now, 1)

    return edit


NOTHING = {
    "comments in the core": (
        "nxcore/spec/layout.py",
        lambda t: "# A comment.\n" + t.replace("\ndef ", "\n# One.\ndef "),
    ),
    "docstrings of the core": ("nxcore/spec/window.py", lambda t: re.sub('"""Return ', '"""Give back ', t)),
    "the command line": ("nxcore/cli/machine.py", lambda t: t + "\nNEW = 1\n"),
    "the report": ("nxcore/report/page.py", lambda t: t + "\nNEW = 1\n"),
    "the gate": ("nxcore/trust/gate.py", lambda t: t + "\nNEW = 1\n"),
    "the session": ("nxcore/session.py", lambda t: t + "\nNEW = 1\n"),
    "the kernel's table": ("nxcore_cuda/__init__.py", lambda t: t + "\nNEW = 1\n"),
    "another kernel": ("nxcore_cuda/global_max_pool2d.py", lambda t: t.replace("//", "%")),
    "another kernel's device code": ("nxcore_cuda/global_max_pool2d.cu", lambda t: t.replace("+", "-")),
    "another operator": ("nxcore/ops/sum.py", lambda t: t.replace("+", "-") + "\nNEW = 1\n"),
    "comments of device code": (
        "nxcore_cuda/softmax.cuh",
        lambda t: "// One.\n/* Two. */\n" + t.replace(";\n", ";  // three\n"),
    ),
    "formatting": (
        "nxcore_cuda/add.py",
        replaced("return Tile(threads, 1)", "return Tile(\n        threads,\n        1,\n    )"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("edited", NOTHING.values(), ids=NOTHING)
def test_an_edit_of_something_else_makes_nothing_stale(copy, edited):
    assert changed(copy, *edited) == []
    if "trust" not in edited[0]:
        assert changed(copy, *edited, what="verified") == []


ENTROPIES = [
    "cuda entropy",
    "cupy entropy",
    "numba entropy",
    "torch entropy",
]

SOMETHING = {
    "the arithmetic in device code": (
        "nxcore_cuda/entropy.cu",
        lambda t: t.replace("+", "-"),
        ["cuda entropy", "cupy entropy"],
    ),
    "a header": (
        "nxcore_cuda/rows.cuh",
        lambda t: t + "\n__device__ int more;\n",
        ["cuda entropy", "cupy entropy"],
    ),
    "a table of blocks": (
        "nxcore_cuda/add.py",
        replaced("((1 << 16, 256), (1 << 14, 128))", "((1 << 16, 256), (1 << 14, 64))"),
        ["cuda add", "cupy add"],
    ),
    "compiler flags": (
        "nxcore_cuda/machine/compile.py",
        replaced('"-O3"', '"-O2"'),
        [
            f"cuda {op}"
            for op in ("add", "depthwise_conv2d", "entropy", "sep_conv2d_batch_norm", "softmax_sum")
        ],
    ),
    "Numba's arithmetic": ("nxcore_numba/entropy.py", lambda t: t.replace(" * ", " + "), ["numba entropy"]),
    "Triton's arithmetic": (
        "nxcore_triton/entropy.py",
        lambda t: t.replace(" * ", " + "),
        ["triton entropy"],
    ),
    "JAX's arithmetic": (
        "nxcore_jax/softmax_sum.py",
        lambda t: t.replace(" * ", " + "),
        ["jax softmax_sum"],
    ),
    "a reference": (
        "nxcore/ops/entropy.py",
        replaced("found = -(log_p.exp()", "found = -(2 * log_p.exp()"),
        [*ENTROPIES, "triton entropy"],
    ),
    "a tolerance": (
        "nxcore/ops/entropy.py",
        replaced("terms=lambda logits: logits.shape[-1]", "terms=lambda logits: 9"),
        [*ENTROPIES, "triton entropy"],
    ),
    "an idiom": (
        "nxcore/ops/softmax_sum.py",
        replaced("torch.einsum(", "torch.einsum(*()) or torch.einsum("),
        ["torch-einsum softmax_sum"],
    ),
    "the core's arithmetic": (
        "nxcore/spec/layout.py",
        replaced("def collapse(", "NEW = 1\n\n\ndef collapse(*_, new=NEW):\n    pass\n\n\ndef collapse("),
        None,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("edited", SOMETHING.values(), ids=SOMETHING)
def test_an_edit_makes_the_kernels_stale_that_it_changes(copy, edited):
    file, edit, expected = edited
    found = changed(copy, file, edit)
    if expected is None:
        assert "cuda add" in found
        assert "torch entropy" not in found
    else:
        assert found == sorted(expected)
    assert set(found) <= set(changed(copy, file, edit, what="verified"))


def test_what_loads_kernels_makes_verdicts_stale_and_no_times(copy):
    edited = "nxcore_cuda/machine/load.py", replaced("LEAST_DRIVER = 12000", "LEAST_DRIVER = 12010")
    assert changed(copy, *edited) == []
    assert "cuda add" in changed(copy, *edited, what="verified")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "was", "now"),
    [
        ("nxcore/ops/entropy.py", "(rand(3, 7, 7),)", "(rand(3, 7, 8),)"),
        ("nxcore_numba/accepts.py", 'return Place("cpu")\n', 'return Place("cuda")\n'),
    ],
)
def test_samples_and_needs_count_for_verdicts(copy, file, was, now):
    edit = replaced(was, now)
    assert changed(copy, file, edit) == []
    assert "numba entropy" in changed(copy, file, edit, what="verified")


def test_every_kernel_has_an_identity_of_its_own():
    registry, found = session.default().registry, Identities(Store())
    every = [(b, k) for b in registry.backends.values() for k in b.kernels]
    # Those of expressions differ by the tree, which is in the operator's name.
    kernels = [(b, k) for b, k in every if registry.spec(k.op).expression is None]
    known = {(b.label(k), k.op): found.of(b, k, registry.spec(k.op)) for b, k in kernels}
    assert all(i.kernel and i.verified for i in known.values())
    assert len({i.verified for i in known.values()}) == len(known)


def test_device_code_that_a_plan_launches_counts(monkeypatch):
    if not toolkit.EMULATED:
        pytest.skip("plans are made for the emulator, and NXCORE_CUDA_EMULATOR isn't set")
    nxcore.pointwise("relu(x) * y")  # an operator whose kernel is printed, and includes a header
    registry, launched = session.default().registry, []
    backend = registry.backend("cuda")
    with monkeypatch.context() as patch:
        patch.setattr(
            emulate.EmulatedHandle, "__init__", lambda _, instance, *__: launched.append(instance.source)
        )
        for kernel in backend.kernels:
            launched.clear()
            for sample in registry.spec(kernel.op).tagged("smoke"):
                spec = registry.spec(kernel.op)
                problem = Problem.of(spec, sample.build(spec, "cpu", kernel.dtypes[0]))
                if kernel.takes(problem):
                    kernel.plan(problem)
            names = {name for _, name in installed().closure(_targets(kernel)).places}
            assert launched, kernel.op
            for source in launched:
                assert names & {f"{source}.cu", f"{source}.cuh"}, kernel.op


def test_the_next_process_reads_an_identity_while_no_file_has_changed(tmp_path, monkeypatch):
    store, registry = Store(tmp_path), session.default().registry
    owned = next((b, k) for b, k in registry.kernels("add") if b.name == "torch")
    first = Identities(store).of(*owned, registry.spec("add"))
    with monkeypatch.context() as patch:
        patch.setattr(Sources, "closure", lambda *_, **__: pytest.fail("computed again"))
        assert Identities(store).of(*owned, registry.spec("add")) == first
    ((key, document),) = store.items("identities")
    states = {path: [0, *state[1:]] for path, state in document["files"].items()}
    store.write("identities", key, document | {"files": states, "kernel": "another"})
    assert Identities(store).of(*owned, registry.spec("add")) == first


@pytest.mark.parametrize("computed", [True, False])
def test_a_file_is_asked_about_once_for_all_kernels(computed, tmp_path, monkeypatch):
    asked, state, registry, store = [], identity._state, session.default().registry, Store(tmp_path)
    monkeypatch.setattr(identity, "_state", lambda path: asked.append(path) or state(path))
    for _ in range(1 if computed else 2):
        asked.clear()
        found = Identities(store)
        for op in ("add", "sum"):
            for backend, kernel in registry.kernels(op):
                found.of(backend, kernel, registry.spec(op))
    assert len(asked) == len(set(asked)) > 0
