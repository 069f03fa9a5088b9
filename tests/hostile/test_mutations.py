"""Our own kernels, broken in five ways: the conformance kit refuses every one of them.

One operator a mutation in every run of the tests; the others, mutations of a kind and file that has one
already, and all of Numba's where NXCORE_TEST_MUTATIONS=all (`make mutations`): minutes more. JAX and
inductor have no kernel to break, only calls of XLA's and torch's own operators; CuPy launches the sources of
``cuda``.
"""

import importlib
import json
import os
import subprocess
import sys

import pytest

from nxcore.plugin import composed
from tests.hostile.mutants import CONTROL, PLUGINS, edited
from tests.hostile.mutations import ALIKE, KINDS, NONE_SUCH, NONE_SUCH_IN, NOT_IN, OPS, TORCHS, VIEWS
from tests.null.fakes import SPECS, one_shape
from tests.table import for_each

SIMULATED = {
    "TRITON_INTERPRET": "1",
    "NUMBA_ENABLE_CUDASIM": "1",
    "NXCORE_CUDA_EMULATOR": "1",
    "CUDA_VISIBLE_DEVICES": "",  # on a device a mask that is gone would end more than one process
}
FAST = {"NUMBA_OPT": "0", "PYTHONWARNINGS": "ignore"}
"""What is compiled runs once: LLVM needs longer to make it fast than it takes. Numba warns of that."""

MAY_CRASH = ("mask", "stride")
"""What may write where it must not: to die of it is to be found out, as an isolated run does."""

ALL = pytest.mark.skipif(
    os.environ.get("NXCORE_TEST_MUTATIONS") != "all",
    reason="minutes; NXCORE_TEST_MUTATIONS=all asks for them",
)


def examined(backend: str, which: str) -> list[dict[str, object]]:
    """Return the results of the mutations of a backend."""
    command = [sys.executable, "-m", "tests.hostile.mutants", backend, which]
    done = subprocess.run(
        command, env=os.environ | SIMULATED | FAST, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def hold(backend: str, which: str) -> None:
    """Require that everything is refused, and print by what."""
    results = examined(backend, which)
    if which == "first":
        control = results.pop(0)
        assert (control["name"], control["rule"]) == (CONTROL.name, ""), control["message"]
    assert results
    for found in results:
        where = f" on {found['sample']}" if found["sample"] else ""
        print(f"{found['op']:25} {found['name']:40} {found['rule'] or 'SURVIVED'}{where}")
    survivors = [(f["name"], f["op"]) for f in results if not f["rule"] or f["rule"] == "hangs"]
    assert survivors == []
    crashed = [f["name"] for f in results if f["rule"] == "crashes"]
    assert [name for name in crashed if not any(kind in name for kind in MAY_CRASH)] == []


@pytest.mark.slow
# Most of the time is LLVM's, which compiles Numba's kernels anew, and the simulator's.
@pytest.mark.parametrize("backend", [pytest.param(b, marks=[ALL] * ("numba" in b)) for b in PLUGINS])
def test_every_mutation_is_refused(backend):
    hold(backend, "first")


@ALL
@pytest.mark.slow
@pytest.mark.parametrize("backend", PLUGINS)
def test_every_other_mutation_is_refused(backend):
    hold(backend, "rest")


@pytest.mark.parametrize("backend", PLUGINS)
def test_every_mutation_finds_its_text(backend):
    plugin = PLUGINS[backend]
    for mutation in plugin.mutations:
        before = (plugin.folder / mutation.file).read_text(encoding="utf-8")
        assert edited(mutation, plugin.folder) != before


@for_each("op", OPS)
@pytest.mark.parametrize("backend", PLUGINS)
def test_every_operator_is_broken_in_every_way_that_there_is(backend, op):
    reasons = NONE_SUCH | NONE_SUCH_IN.get(backend, {})
    for kind in KINDS:
        there = any(m.kind == kind and op in m.ops for m in PLUGINS[backend].mutations)
        why = reasons.get((op, kind), "it isn't broken in that way")
        assert there != ((op, kind) in reasons), f"{kind}: {why}"


@pytest.mark.parametrize("backend", PLUGINS)
def test_all_operators_of_a_backend_are_there(backend):
    plugin = PLUGINS[backend]
    kernels = importlib.import_module(plugin.package).KERNELS
    variant = plugin.label.partition("-")[2]
    made = {k.op for k in (*kernels, *composed(kernels, SPECS.values())) if k.variant == variant}
    assert made == set(SPECS) - {*VIEWS, *TORCHS, *NOT_IN.get(backend, ())}
    assert made - {*OPS, *ALIKE} <= {name for name, spec in SPECS.items() if one_shape(spec)}


def test_a_text_that_is_gone_is_told(tmp_path):
    plugin = PLUGINS["triton"]
    mutation = plugin.mutations[0]
    (tmp_path / mutation.file).write_text("nothing")
    with pytest.raises(ValueError, match=r"add\.py: mask, add: expected 1 of 'mask = at < n', got 0"):
        edited(mutation, tmp_path)
