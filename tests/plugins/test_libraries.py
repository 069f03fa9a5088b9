"""Adapters of installed libraries, with a stand-in of each library on the CPU: its functions are torch's."""

import importlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nxcore.plugin import Code, Problem, foreign
from nxcore.testing import examine
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

ROOT = Path(__file__).parents[2]

THE_PROCESS = "leaves_the_process_alone"
FLAGGEMS = {
    "sum": "def sum_dim(x, dim, keepdim): return x.sum(dim, keepdim)",
    "mean": "def mean_dim(x, dim, keepdim): return x.mean(dim, keepdim)",
    "amax": "def amax(x, dim, keepdim): return x.amax(dim, keepdim)",
    "cumsum": "def cumsum(x, dim, *, dtype): return x.cumsum(dim, dtype=dtype)",
    "softmax": "def softmax(x, dim): return x.softmax(dim)",
    "log_softmax": "def log_softmax(x, dim): return x.log_softmax(dim)",
    "argmax": "def argmax(x, dim, keepdim): return x.argmax(dim, keepdim)",
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a stand-in: its files, and the metadata that pip writes."""

    def install(name, version, files, needs=()):
        for each in (name, *needs):
            about = tmp_path / f"{each.replace('-', '_')}-{version}.dist-info"
            about.mkdir(exist_ok=True)
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {each}\nVersion: {version}\n")
            (about / "RECORD").write_text(f"{each}/a.py,sha256=one,3\n{each}/__pycache__/a.pyc,,\n")
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            for folder in file.relative_to(tmp_path).parents:
                if folder != Path():
                    (tmp_path / folder / "__init__.py").touch()
            file.write_text(f"import torch\n{text}\n")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        return tmp_path

    yield install
    forget()


@pytest.fixture
def flaggems(monkeypatch):
    """The backend of the adapter."""
    monkeypatch.syspath_prepend(ROOT / "plugins" / "flaggems" / "src")
    return importlib.import_module("nxcore_flaggems").nxcore_backend()


def forget():
    """Import stand-ins anew."""
    for module in [m for m in sys.modules if m.partition(".")[0] in ("flag_gems", "a_library")]:
        sys.modules.pop(module)


def stand_in(installed, **changed):
    """Install a stand-in of FlagGems, with some of its functions changed."""
    forget()
    files = {f"flag_gems/ops/{op}.py": text for op, text in (FLAGGEMS | changed).items()}
    return installed("flag-gems", "5.0.2", files, ("sqlalchemy", "pyyaml", "packaging"))


def test_absence_is_a_refusal_with_the_command(flaggems):
    found = flaggems.probe()
    assert not found
    assert found.code is Code.MACHINE
    assert found.hint == "pip install --no-deps flag-gems==5.0.2"


def test_another_version_and_a_missing_need_are_refusals(installed):
    library = foreign.Library("a-library", "2.0", needs=("no-such-need",))
    old = installed("a-library", "1.9", {}) / "a_library-1.9.dist-info"
    assert library.probe().reason == "needs a-library==2.0, found 1.9"
    shutil.rmtree(old)
    installed("a-library", "2.0", {})
    assert library.probe().hint == "pip install no-such-need"
    assert foreign.Library("a-library", "2.0").probe().simulated


def test_the_identity_is_the_version_and_what_the_wheel_records(installed):
    folder = installed("a-library", "2.0", {})
    library = foreign.Library("a-library", "2.0")
    (name, was) = next(iter(library.toolkit().items()))
    assert name == "a-library"
    assert was.startswith("2.0 ")
    record = folder / "a_library-2.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + "a/__pycache__/b.pyc,,\n")
    assert library.toolkit()[name] == was
    record.write_text(record.read_text().replace("sha256=one", "sha256=two"))
    assert library.toolkit()[name] != was
    assert foreign.Library("no-such-library", "1").toolkit() == {}


@for_each("op", FLAGGEMS)
def test_a_right_library_passes_the_kit(op, installed, flaggems):
    stand_in(installed)
    (kernel,) = [k for k in flaggems.kernels if k.op == op]
    rows = examine(fakes.registry(fakes.backend("flaggems", kernel)), dtypes=["float32"])
    assert [row.outcome for row in rows] == ["verified"], rows[0].reason
    assert rows[0].samples > 3


@for_each(
    "text, rule",
    (
        ("def sum_dim(x, dim, keepdim): return x.half().sum(dim, keepdim).float()", "agrees_with_float64"),
        ("def sum_dim(x, dim, keepdim): return x.mul_(1.5).sum(dim, keepdim)", "leaves_inputs_alone"),
        ("def sum_dim(x, dim, keepdim): torch.set_num_threads(9); return x.sum(dim, keepdim)", THE_PROCESS),
    ),
)
def test_a_wrong_library_is_refused_by_the_kit(text, rule, installed, flaggems):
    stand_in(installed, sum=text)
    (kernel,) = [replace(k, variant=rule) for k in flaggems.kernels if k.op == "sum"]
    (row,) = examine(fakes.registry(fakes.backend("flaggems", kernel)), dtypes=["float32"])
    assert row.outcome == "wrong"
    assert rule in row.rules


def test_what_its_checks_do_not_cover_is_refused():
    library = foreign.Library("a-library", "2.0")
    accepts = library.accepts(dtypes=(torch.float32,), ranks=(1, 2))

    def here(*shape, dtype=torch.float32):
        x = torch.ones((), dtype=dtype).expand(shape)
        return accepts(Problem.of(SPECS["sum"], (x, 0, False)))

    assert here(3, 4)
    assert here(3, 4, 5).reason == "takes 1 to 2 dimensions, got 3"
    assert here(3, dtype=torch.float16).code is Code.DTYPE
    assert here(2**16, 2**15).reason == "takes fewer than 2**31 elements, got 2147483648"
    above = library.accepts(ranks=(1, 2), above=True)
    assert above(Problem.of(SPECS["sum"], (torch.ones(()).expand(2**16, 2**15), 0, False)))
    nowhere = accepts(Problem.of(SPECS["sum"], (torch.empty(3, device="meta"), 0, False)))
    assert nowhere.code is Code.DEVICE


def test_what_the_library_writes_into_is_cloned(installed):
    installed("a-library", "2.0", {"a_library/own.py": "def add(x, y): return x.add_(y)"})
    library = foreign.Library("a-library", "2.0")
    x, y = torch.ones(3), torch.ones(3)
    problem = Problem.of(SPECS["add"], (x, y, 1, None))

    def spell(function, x, y, alpha, out):
        return function(x, y)

    result = library.plan(problem, "a_library.own:add", spell, writes=("x",))(x, y, 1, None)
    assert result.tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]
    library.plan(problem, "a_library.own:add", spell)(x, y, 1, None)
    assert x.tolist() == [2, 2, 2]


@pytest.fixture
def cce(monkeypatch, installed):
    """The backend of the adapter, with a stand-in of its library."""
    text = """
def linear_cross_entropy(e, c, targets, ignore_index=-100, reduction="mean"):
    logits = e.float() @ c.float().mT
    found = torch.nn.functional.cross_entropy(logits, targets, ignore_index=ignore_index, reduction=reduction)
    return found.to(e.dtype)
"""
    folder = installed("cut-cross-entropy", "25.1.1", {"cut_cross_entropy/own.py": text})
    (folder / "cut_cross_entropy" / "__init__.py").write_text("from .own import linear_cross_entropy\n")
    monkeypatch.syspath_prepend(ROOT / "plugins" / "cce" / "src")
    yield importlib.import_module("nxcore_cce").nxcore_backend()
    for module in [m for m in sys.modules if m.startswith("cut_cross_entropy")]:
        sys.modules.pop(module)


def test_the_loss_without_logits_passes_the_kit(cce):
    (row,) = examine(fakes.registry(fakes.backend("cce", *cce.kernels)), dtypes=["bfloat16"])
    assert row.outcome == "verified", row.broken
    assert row.samples > 2
    assert any("takes no" in why for why in row.declined)


def test_the_softmax_of_rows_passes_the_kit(installed, monkeypatch):
    text = "def _softmax_forward(x): return x.softmax(-1), 1, 1, False"
    installed("liger-kernel", "0.8.5", {"liger_kernel/ops/softmax.py": text})
    monkeypatch.syspath_prepend(ROOT / "plugins" / "liger" / "src")
    backend = importlib.import_module("nxcore_liger").nxcore_backend()
    (row,) = examine(fakes.registry(fakes.backend("liger", *backend.kernels)), dtypes=["float32"])
    assert row.outcome == "verified", row.broken
    assert {"needs the last axis, got 0", "takes 1 to 5 dimensions, got 0"} <= set(row.declined)
