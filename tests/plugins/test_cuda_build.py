"""What the CUDA plugin compiles ahead of time, and what its wheel holds."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("nxcore_cuda")

from nxcore_cuda.machine import ahead, toolkit
from nxcore_cuda.machine.compile import NVCC_FLAGS, SOURCES, compiled, emulated, run
from nxcore_cuda.machine.instance import Instance, unit

from tests.stand_ins import stand_in

toolkit_has = stand_in(toolkit)
ahead_has = stand_in(ahead)

PLUGIN = Path(__file__).parents[2] / "plugins" / "cuda"
SHARED = 49152
"""Bytes of shared memory that a block may declare."""
needs_nvcc = pytest.mark.skipif(toolkit.nvcc() is None, reason=f"no nvcc {toolkit.PLACES}")
needs_emulator = pytest.mark.skipif(not toolkit.EMULATED, reason="NXCORE_CUDA_EMULATOR=1 was not set")


@pytest.fixture(scope="module")
def instances():
    return ahead.instances()


@needs_emulator
class TestAhead:
    def test_every_source_has_instances(self, instances):
        assert set(instances) == {path.stem for path in SOURCES.glob("*.cu")}

    def test_symbols_differ(self, instances):
        found = [instance for each in instances.values() for instance in each]
        assert len({instance.symbol for instance in found}) == len(found)

    def test_what_shipped_records_ask_for_is_held(self, instances):
        asked = set(ahead._of_records())
        assert asked
        assert asked <= {instance for each in instances.values() for instance in each}

    def test_devices_from_7_5_to_12_0_have_images(self, toolkit_has):
        every = [(int(arch[:-1]), int(arch[-1])) for arch in ahead.ARCHITECTURES]
        toolkit_has(architectures=lambda _: tuple(every))
        archs = ahead.architectures("nvcc")
        assert (archs[0], archs[-2:]) == ("sm_75", ["sm_120", "compute_120"])
        for capability in [*every, (8, 7), (10, 3), (12, 1), (13, 0)]:
            assert toolkit.runs_on(archs, capability)

    @needs_nvcc
    @pytest.mark.slow
    @pytest.mark.parametrize("source", sorted({path.stem for path in SOURCES.glob("*.cu")}))
    def test_nvcc_compiles_every_instance(self, instances, source, monkeypatch, toolkit_has):
        """Kept from another time where nothing changed; PTX without an optimizer, since nothing runs it."""
        toolkit_has(target=lambda *_: ("compute_90", "ptx"))
        monkeypatch.setattr("nxcore_cuda.machine.compile.NVCC_FLAGS", (*NVCC_FLAGS, "-Xcicc", "-O0"))
        image = compiled(unit(instances[source]), (9, 0), source).decode()
        entries = set(re.findall(r"^\.visible \.entry (\w+)\(", image, re.MULTILINE))
        assert entries == {instance.symbol for instance in instances[source]}
        # The assembler would refuse more.
        arrays = re.findall(r"^\s*\.shared .*\[(\d+)\];", image, re.MULTILINE)
        assert all(int(size) <= SHARED for size in arrays)

    def test_architectures(self, toolkit_has):
        toolkit_has(architectures=lambda _: ((7, 5), (8, 0), (9, 0), (10, 0)))
        assert ahead.architectures("nvcc", ("80", "86", "90")) == ["sm_80", "sm_90", "compute_90"]
        assert ahead.architectures("nvcc", ("75", "100")) == ["sm_75", "sm_100", "compute_100"]
        with pytest.raises(RuntimeError, match="nvcc compiles for 75, 80, 90, 100, and none of 70"):
            ahead.architectures("nvcc", ("70",))

    @needs_nvcc
    def test_images_and_their_index(self, ahead_has, tmp_path):
        source = tmp_path / "probe.cu"
        source.write_text("struct probe_args { float* x; };\n")
        text = "template <int N> __device__ void probe(const probe_args& a) { a.x[0] = N; }\n"
        source.write_text(source.read_text() + text)
        wanted = [Instance("probe", (1,)), Instance("probe", (2,))]
        ahead_has(instances=lambda: {"probe": wanted}, SOURCES=tmp_path)
        said = ahead.build(tmp_path / "images", ("90",))
        assert said == "2 kernels of 1 sources for sm_90, compute_90"
        index = json.loads((tmp_path / "images" / "index.json").read_text())
        assert index["probe.fatbin"]["symbols"] == ["probe__1", "probe__2"]
        assert index["probe.fatbin"]["archs"] == ["sm_90", "compute_90"]
        assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["index.json", "probe.fatbin"]
        # The same again compiles nothing, and another kernel of the source does.
        made, run = [], ahead.run
        ahead_has(run=lambda command, what: made.append(what) or run(command, what))
        assert ahead.build(tmp_path / "images", ("90",)) == said
        assert made == []
        wanted.append(Instance("probe", (3,)))
        assert ahead.build(tmp_path / "images", ("90",)).startswith("3 kernels")
        assert made == ["probe"]


@needs_nvcc
class TestNvcc:
    def test_its_options_are_known(self):
        assert toolkit.knows(toolkit.nvcc(), "--std=c++17")
        assert not toolkit.knows(toolkit.nvcc(), "--make-it-fast=yes")

    def test_headers_compile_for_the_oldest_device(self, tmp_path):
        (tmp_path / "probe.cu").write_text(
            '#include "element.cuh"\n'
            "struct probe_args { const void* x; void* y; };\n"
            "template <typename T, int N> __device__ void probe(const probe_args& a) {\n"
            "  Vector<T, N> v = load_streaming<N>((const T*)a.x + threadIdx.x * N);\n"
            "  for (int i = 0; i < N; ++i) v[i] = narrow<T>(block_sum<256>(widen(v[i])));\n"
            "  store_streaming<N>((T*)a.y + threadIdx.x * N, v);\n"
            "}\n"
        )
        kinds = ("float", "float16", "bfloat16")
        found = [Instance("probe", (kind, n)) for kind in kinds for n in (1, 4, 8)]
        oldest = toolkit.architectures(toolkit.nvcc())[0]
        assert b"probe__bfloat16_8" in compiled(unit(found), oldest, "probe", tmp_path)


@pytest.mark.skipif(toolkit.host_compiler() is None, reason="no C++ compiler on PATH")
def test_kernels_of_the_emulator_share_what_was_read_of_its_headers(monkeypatch, tmp_path):
    monkeypatch.setenv("NXCORE_CUDA_CACHE", str(tmp_path))
    commands = []
    monkeypatch.setattr(
        "nxcore_cuda.machine.compile.run",
        lambda command, what: commands.append(command) or run(command, what),
    )
    for size in (128, 256):
        emulated(Instance("entropy", (8, 1), source="entropy", args="entropy_args", threads=size))
    assert sum("c++-header" in command for command in commands) == 1
    assert len(commands) == 3
    if "Free Software Foundation" not in toolkit.version(toolkit.host_compiler()):
        return  # others read the headers
    (read,) = tmp_path.rglob("headers-*.gch")
    done = subprocess.run(
        [*commands[-1][:-3], "-H", "-fsyntax-only", "-"],
        input='#include "emulator.h"',
        capture_output=True,
        text=True,
        check=True,
    )
    mark, _, used = done.stderr.splitlines()[0].partition(" ")
    assert (mark, Path(used).resolve()) == ("!", read.resolve())


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["", "0"])
def test_wheel(tmp_path, switch):
    """In pip's isolated build there is no torch, so no image; the launcher is built where C is."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, PLUGIN]
    if switch and importlib.util.find_spec("hatchling"):  # where nothing is compiled, torch changes nothing
        command.append("--no-build-isolation")
    environment = os.environ | {"NXCORE_CUDA_BUILD": switch}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    launcher = "nxcore_cuda/_launch.abi3.so" in names
    assert launcher == (switch != "0" and bool(shutil.which("cc") or shutil.which("gcc")))
    assert re.search("cp311-abi3-manylinux_2_[0-9]+_" if launcher else "py3-none-any", wheel.name)
    sources = ("element.cuh", "emulator/emulator.h", "machine/launcher.c")
    assert {f"nxcore_cuda/{source}" for source in sources} <= set(names)
    assert not [name for name in names if name.endswith((".fatbin", ".cubin"))]
