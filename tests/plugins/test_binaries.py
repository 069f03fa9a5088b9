"""Binaries of Triton kernels in a wheel: they are loaded, and nothing is compiled, where the key agrees."""

import json
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import nxcore_triton
import pytest

from tests import fresh
from tests.stand_ins import stand_in

nxcore_triton_has = stand_in(nxcore_triton)

# Triton's interpreter compiles nothing, and these tests' process has it where there is no GPU.
BUILD = """
import json, os, sys
from pathlib import Path
import torch
from nxcore_triton import KERNELS, binaries, release
from nxcore_triton.ahead import ahead
from nxcore.offline.release import Wanted
from nxcore.spec.compiling import UncompiledError, on_disk_alone
from nxcore.spec.tally import tally
from tests.plugins.test_ahead import FACTS, problems
from triton import knobs

folder, found = Path(sys.argv[1]), {}
kernel = next(kernel for kernel in KERNELS if kernel.op == "add")
problem = next(problems(kernel))
facts = FACTS | {"major": 9, "minor": 0}
found["said"] = release.build(folder, [Wanted(kernel, problem, facts)], 1)
found["files"] = sorted(path.name for path in folder.iterdir())
found["texts"] = [path.read_text() for path in folder.glob("*.json")]

def compiles(capability=(9, 0)):
    knobs.cache.dir = str(folder.parent / "cache")
    launched.device_caches.clear()  # what this process has compiled
    try:
        with on_disk_alone():
            ahead(kernel, problem, capability)
    except UncompiledError as error:
        return str(error)
    return ""

knobs.compilation.disable_line_info = False
kernel.plan  # imports the module
launched = sys.modules["nxcore_triton.add"].add_flat
found["without"] = compiles()
binaries.BINARIES = folder
binaries._any.cache_clear()
found["with"] = compiles()
found["elsewhere"] = compiles((8, 0))
os.environ["DISABLE_PTXAS_OPT"] = "1"
found["other environment"] = compiles()
del os.environ["DISABLE_PTXAS_OPT"]
knobs.compilation.always_compile = True
found["asked to compile"] = compiles()
knobs.compilation.always_compile = False
version, binaries.triton.__version__ = binaries.triton.__version__, "0.0"
found["other Triton"] = compiles()
binaries.triton.__version__ = version
launched._unsafe_update_src(launched.src.replace("mask = ", "mask =  "))
found["other source"] = compiles()
before = tally().compilations
ahead(kernel, problem, (9, 0))
found["compiled"] = tally().compilations - before
found["then"] = compiles()
print(json.dumps(found))
"""


def alone(code, *args):
    """Return what a program prints, run where Triton has its own settings."""
    root = str(Path(__file__).parents[2])
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    env["PYTHONPATH"] = os.pathsep.join([root, *sys.path])
    ran = fresh.run("-c", code, *map(str, args), env=env, timeout=570)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a process without a GPU found that built the binaries of one call, and then made it."""
    folder = tmp_path_factory.mktemp("wheel") / "binaries"
    return json.loads(alone(BUILD, folder).splitlines()[-1])


@pytest.mark.slow
def test_a_binary_and_its_facts_are_written_and_nothing_of_the_machine(found):
    assert found["said"].startswith("1 binaries by Triton ")
    assert found["said"].endswith(" for 9.0")
    assert [Path(name).suffix for name in found["files"]] == [".cubin", ".json"]
    assert not [text for text in found["texts"] if "/" in text]
    assert all('"arch": 90' in text for text in found["texts"])


@pytest.mark.slow
def test_a_call_with_a_binary_compiles_nothing(found):
    assert found["without"] == "add_flat"
    assert found["with"] == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", ["elsewhere", "other environment", "asked to compile", "other Triton", "other source"]
)
def test_another_device_compiler_or_source_has_no_binary(found, changed):
    assert found[changed] == found["without"]


@pytest.mark.slow
def test_what_is_compiled_is_announced_and_then_on_disk(found):
    assert found["compiled"] == 1
    assert found["then"] == ""


def test_a_kernel_is_attached_once_and_an_interpreted_one_not_at_all(monkeypatch):
    from nxcore_triton import binaries

    monkeypatch.setattr(binaries, "digested", lambda kernel: None)
    kernel = types.SimpleNamespace(compile=None, device_caches=None)
    binaries.attach(kernel)
    assert kernel.device_caches is None
    kernel.device_caches = types.SimpleNamespace(default_factory=lambda: "made")
    binaries.attach(kernel)
    once = kernel.device_caches.default_factory
    binaries.attach(kernel)
    assert kernel.device_caches.default_factory is once
    assert once() == "made"
    assert kernel.compile.func is binaries._compiled


DIGESTS = """
import importlib, json, pkgutil
from nxcore_triton import __path__ as PATH
from nxcore_triton.binaries import digested
from triton.language import constexpr
from triton.runtime.jit import JITCallable

modules = [importlib.import_module(f"nxcore_triton.{m.name}") for m in pkgutil.iter_modules(PATH)]
values = [item for module in modules for item in vars(module).items()]
functions = list({id(v): v for _, v in values if isinstance(v, JITCallable)}.values())

names = [function.fn.__name__ for function in functions]

def digests(order, digest):
    for function in functions:
        function.hash, function.used_global_vals = None, {}
    for function in order:
        digest(function)
    return [function.cache_key for function in functions]

def ambiguous(function):
    used = {}
    for (name, _), (value, _) in function.used_global_vals.items():
        if isinstance(value, constexpr):
            used.setdefault(name, set()).add(repr(value))
    return any(len(values) > 1 for values in used.values())

given, other = functions, functions[::-1]
print(json.dumps({
    "functions": len(functions),
    "differ": [n for n, a, b in zip(names, digests(given, digested), digests(other, digested)) if a != b],
    "ambiguous": [n for n, function in zip(names, functions) if ambiguous(function)],
}))
"""


@pytest.mark.slow
def test_the_digest_of_a_kernel_is_the_same_whatever_was_compiled_before():
    """Else what a worker or the wheel's build compiled is compiled once more."""
    found = json.loads(alone(DIGESTS))
    assert found["functions"] > 50
    assert found["differ"] == []
    assert found["ambiguous"] == [], "Triton sorts constants of one name by their modules' addresses"


def test_doctor_tells_what_the_wheel_holds(tmp_path, nxcore_triton_has):
    nxcore_triton_has(BINARIES=tmp_path)
    assert nxcore_triton._held() == "none in the wheel"
    for name, release, arch in (("a", "3.6.0", 90), ("b", "3.6.0", 90), ("c", "3.7.1", 120)):
        facts = {"triton_version": release, "target": {"arch": arch}}
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    nxcore_triton_has(_installed=lambda: "3.6.0")
    assert (
        nxcore_triton._held() == "2 for capability 9.0 by Triton 3.6.0; 1 for capability 12.0 by Triton 3.7.1"
    )
    nxcore_triton_has(_installed=lambda: "3.8.0")
    assert nxcore_triton._held().endswith("none by the installed one, which compiles at first use")


@pytest.mark.slow
def test_a_wheel_that_is_built_in_isolation_has_no_binaries(tmp_path):
    """In pip's isolated build there is no torch; Triton then compiles at first use."""
    plugin = Path(__file__).parents[2] / "plugins" / "triton"
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(plugin)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "nxcore_triton/binaries.py" in names
    assert not [name for name in names if name.endswith(".cubin")]


FACTS_OF_GPU = """
import json
import torch
from nxcore.spec.device import properties

print(json.dumps(properties(torch.device("cuda"))))
"""

# Its workers are forked, and CUDA doesn't work in a child if its parent has used it.
BUILD_FOR_GPU = """
import json, sys
from pathlib import Path
from nxcore_triton import KERNELS, release
from nxcore.offline.release import Wanted
from tests.plugins.test_ahead import problems

kernel = next(k for k in KERNELS if k.op == sys.argv[2])
release.build(Path(sys.argv[1]), [Wanted(kernel, next(problems(kernel)), json.loads(sys.argv[3]))], 1)
"""

ON_GPU = """
import sys
from pathlib import Path
import torch
from nxcore_triton import KERNELS, binaries
from nxcore.plugin import Problem
from nxcore.spec.compiling import on_disk_alone
from nxcore.trust.truth import Truth, agreement
from tests.plugins.test_ahead import SPECS
from triton import knobs

folder, cache, op = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
kernel, spec = next(k for k in KERNELS if k.op == op), SPECS[op]
knobs.cache.dir = str(cache)
binaries.BINARIES = folder
args = spec.tagged("smoke")[0].build(spec, "cuda", torch.float32)
with on_disk_alone():
    found = agreement(kernel.plan(Problem.of(spec, args)), spec, args, Truth.of(spec, args))
assert found.ok, found
assert not list(cache.rglob("*.cubin"))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["add", "sum", "softmax_sum", "batch_norm_backward"])
def test_a_binary_is_right_and_nothing_is_compiled_for_it(op, tmp_path):
    alone(BUILD_FOR_GPU, tmp_path / "binaries", op, alone(FACTS_OF_GPU).splitlines()[-1])
    alone(ON_GPU, tmp_path / "binaries", tmp_path / "cache", op)
