"""What Numba compiled lies in nxcore's own folder, and nowhere else."""

import logging
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

import nxcore_numba
from nxcore_numba import cache

CALL = """
import torch
from nxcore.ops import nxcore_ops
from nxcore.spec.problem import Problem
from nxcore_numba import cache, entropy
spec = next(s for s in nxcore_ops() if s.name == "entropy")
args = spec.bind(torch.randn(6, 5))
entropy.plan(Problem.of(spec, args))(*args)
print(sum(entropy.serial.stats.cache_misses.values()), cache.FOLDER)
"""


def call(**variables: str) -> list[str]:
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | variables
    done = subprocess.run(
        [sys.executable, "-c", CALL], capture_output=True, text=True, check=False, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def compiled(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc")}


@pytest.mark.slow
def test_compiled_kernels_lie_in_a_folder_of_the_users_alone(tmp_path: Path) -> None:
    beside = compiled(Path(nxcore_numba.__file__).parent)
    folder = tmp_path / "cache"
    assert call(NXCORE_CACHE=str(folder)) == ["1", str(folder / "numba")]
    assert compiled(folder / "numba")
    assert compiled(Path(nxcore_numba.__file__).parent) == beside
    for path in (folder, folder / "numba", *(p for p in (folder / "numba").iterdir())):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert call(NXCORE_CACHE=str(folder))[0] == "0"  # the next process finds it


@pytest.mark.slow
def test_nothing_is_kept_where_the_cache_is_in_memory_alone_or_others_may_write(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert call(NXCORE_CACHE="0", **home) == ["1", "None"]
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert call(NXCORE_CACHE=str(shared), **home) == ["1", "None"]
    assert compiled(tmp_path) == set()


@pytest.mark.slow
def test_a_folder_that_the_program_names_for_numba_stands(tmp_path: Path) -> None:
    own = tmp_path / "own"
    call(NXCORE_CACHE=str(tmp_path / "cache"), NUMBA_CACHE_DIR=str(own))
    assert compiled(own)
    assert compiled(tmp_path / "cache") == set()


class Planted:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def test_what_another_user_may_have_written_is_not_unpickled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, ran = cache._Owned(str(tmp_path), "f", "stamp"), tmp_path / "ran"
    index = tmp_path / "f.nbi"
    index.write_bytes(pickle.dumps(files._version) + pickle.dumps(Planted(ran)))
    index.chmod(0o666)
    (tmp_path / "f.1.nbc").write_bytes(pickle.dumps(Planted(ran)))
    with caplog.at_level(logging.WARNING, "nxcore.numba"):
        assert files._load_index() == {}
    assert "can be written by other users (mode 666" in caplog.text
    with pytest.raises(FileNotFoundError):
        files._load_data("f.1.nbc")
    assert not ran.exists()


def test_a_broken_index_is_a_miss_and_what_was_kept_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = cache._Owned(str(tmp_path), "f", "stamp")
    files.save("key", {"code": b"machine"})
    assert files.load("key") == {"code": b"machine"}
    assert cache._Owned(str(tmp_path), "f", "another stamp").load("key") is None
    (tmp_path / "f.nbi").write_bytes(b"broken")
    with caplog.at_level(logging.WARNING, "nxcore.numba"):
        assert files.load("key") is None
    assert "f.nbi is ignored" in caplog.text


def test_a_full_disk_keeps_nothing_and_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.caching.FunctionCache, "_save_overload", full)
    with caplog.at_level(logging.WARNING, "nxcore.numba"):
        cache._Cache._save_overload(object.__new__(cache._Cache), "signature", None)
    assert "signature isn't kept: [Errno 28] No space left on device" in caplog.text
