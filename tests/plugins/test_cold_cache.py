"""Programs that start at once on one empty cache disturb neither each other nor a later one."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("nxcore_numba")

PROGRAM = """
import torch, nxcore
from nxcore.spec.tally import tally
torch.manual_seed(0)
x = torch.randn(4, 16, 32, 32)
for _ in range(3):
    pooled, means = nxcore.ops.max_pool2d(x, 3, 2, 1), nxcore.ops.mean(x, dim=(2, 3))
    torch.testing.assert_close(pooled, torch.nn.functional.max_pool2d(x, 3, 2, 1))
    torch.testing.assert_close(means, x.mean((2, 3)))
print(tally().compilations)
"""


def start(cache):
    environment = os.environ | {"NXCORE_CACHE": str(cache), "NXCORE_POLICY": "measure"}
    environment["NXCORE_BACKENDS"] = "numba"  # interpreters keep no files
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """Return what a program printed, which has neither failed nor complained."""
    out, err = process.communicate(timeout=300)
    complaints = [line for line in err.splitlines() if not line.startswith("nxcore: measures ")]
    assert (process.returncode, complaints) == (0, [])
    return out.split()


def contents(cache):
    return {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}


def test_two_programs_on_an_empty_cache_leave_whole_files_and_no_suspects(tmp_path):
    for process in [start(tmp_path), start(tmp_path)]:
        ended(process)
    found = contents(tmp_path)
    documents = [path for path in found if path.suffix == ".json"]
    assert documents
    for path in documents:
        json.loads(found[path])
    assert not [path for path in found if {"journal", "quarantine"} & set(path.parts)]
    assert not [path for path in found if "tmp" in path.suffix]
    assert ended(start(tmp_path)) == ["0"]  # a third one compiles nothing
