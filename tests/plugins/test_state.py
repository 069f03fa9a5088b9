"""A backend leaves the process's state as it found it."""

import json
import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from nxcore.spec.process import preserved

SCRIPT = Path(__file__).with_name("state.py")

LATER = ("setuptools/_vendor: None -> True",)
"""setuptools, which Inductor imports, looks on that path whenever it imports more of itself."""


def run(*arguments: str, **variables: str) -> str:
    """Return what a process of its own prints, with one thread and no folder for a cache."""
    env = os.environ | {"NXCORE_CACHE": "0", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"} | variables
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("backend", "device"),
    [
        ("torch", "cpu"),
        *(
            pytest.param(name, "cpu", marks=pytest.mark.slow)
            for name in ("numba", "jax", "triton", "inductor")
        ),
        *(
            pytest.param(backend, "cuda", marks=pytest.mark.gpu)
            for backend in ("torch", "cuda", "cupy", "triton", "numba", "inductor")
        ),
    ],
)
def test_a_first_kernel_changes_no_state_of_the_process(backend: str, device: str) -> None:
    if backend in ("cupy", "jax", "numba", "triton") and find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    interpreted = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    changed = json.loads(run(str(SCRIPT), backend, device, **interpreted))
    assert [line for line in changed if not line.endswith(LATER)] == []


ONE_THREAD = """
import sys, torch, nxcore
from pathlib import Path
from nxcore.session import default
assert torch.get_num_threads() == 1
x = torch.randn(64, 1024)
nxcore.op("sum")(x, dim=(1,))
print(torch.get_num_threads(), len(list(default().wisdom.pages(x.device))))
"""


@pytest.mark.slow
def test_what_one_thread_measures_is_found_by_the_next_process(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    how = {"NXCORE_CACHE": str(tmp_path / "cache"), "NXCORE_POLICY": "measure", "NXCORE_BACKENDS": "numba"}
    assert run("-c", ONE_THREAD, **how).split() == ["1", "1"]
    how["NXCORE_POLICY"] = "frozen"  # measures nothing, so what it finds was measured before
    assert run("-c", ONE_THREAD, **how).split() == ["1", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("own", [1, 2])
def test_the_numbers_of_threads_that_the_program_set_stay(own: int) -> None:
    pytest.importorskip("numba")
    code = (
        "import numba, torch, nxcore\n"
        f"torch.set_num_threads(2); numba.set_num_threads({own}); torch.set_num_threads(2)\n"
        "nxcore.op('sum', backend='numba')(torch.randn(64, 4096), dim=(0,))\n"
        "print(torch.get_num_threads(), numba.get_num_threads())"
    )
    assert run("-c", code).split() == ["2", str(own)]


def test_preserved_puts_back_what_a_toolkit_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("OwnWarning", (UserWarning,), {"__module__": "sympy.warnings"})
    monkeypatch.delenv("TPU_NEW", raising=False)
    filters, limit, threads = list(warnings.filters), sys.getrecursionlimit(), torch.get_num_threads()
    with preserved():
        os.environ["TPU_NEW"] = "1"
        warnings.simplefilter("once", own)
        sys.setrecursionlimit(limit + 1000)
        torch.set_num_threads(threads + 1)
        torch.set_default_dtype(torch.float64)
        np.random.seed(3)
        drawn = np.random.get_state()[1].copy()
    assert "TPU_NEW" not in os.environ
    assert warnings.filters == filters
    assert sys.getrecursionlimit() == limit
    assert torch.get_num_threads() == threads
    assert torch.get_default_dtype() is torch.float32
    assert not np.array_equal(np.random.get_state()[1], drawn)


def test_preserved_leaves_alone_what_is_not_a_toolkits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--before")
    monkeypatch.delenv("OURS", raising=False)
    with warnings.catch_warnings(), preserved():
        os.environ["OURS"] = os.environ["XLA_FLAGS"] = "meanwhile"
        warnings.simplefilter("ignore", UserWarning)
    assert os.environ["XLA_FLAGS"] == "meanwhile"
    assert os.environ.pop("OURS") == "meanwhile"


def test_preserved_puts_back_an_address_that_another_process_left(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"  # Inductor writes it before it reads it
    monkeypatch.setenv(name, "1")
    with preserved():
        os.environ[name] = "2"
    assert os.environ[name] == "1"


def test_preserved_puts_back_the_start_method() -> None:
    code = (
        "import multiprocessing as m\n"
        "from nxcore.spec.process import preserved\n"
        "with preserved(): m.RLock()\n"
        "m.set_start_method('spawn')\n"
        "with preserved(): pass\n"
        "print(m.get_start_method())"
    )
    assert run("-c", code).strip() == "spawn"


def test_preserved_removes_the_filters_and_variables_of_toolkits(monkeypatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with warnings.catch_warnings():
        before = list(warnings.filters)
        with preserved():
            warnings.filterwarnings("ignore", "the matrix subclass is not the recommended way")
            os.environ["TRITON_CACHE_DIR"] = "somewhere"
        assert list(warnings.filters) == before
    assert "TRITON_CACHE_DIR" not in os.environ
