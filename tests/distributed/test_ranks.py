"""DTensor, DDP and FSDP2 on two ranks: gloo on the CPU, NCCL where there are two CUDA devices.

All cases are one test: most of its time is the start of two processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
RANKS = 2
SIMULATORS = {"TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM", "NXCORE_CUDA_EMULATOR"}
CASES = ["ddp", "replayed", "fsdp", "calls", "whole", "partial", "strict", "explained", "architecture"]


def failures(kind: str, folder: Path) -> dict[str, str]:
    """Run every case on both ranks; return what failed -> how."""
    command = [sys.executable, "-m", "tests.distributed.ranks", kind, str(folder), *CASES]
    # A network that chooses for itself would ask every simulator, for a minute.
    env = {k: v for k, v in os.environ.items() if k not in SIMULATORS}
    ranks = [
        subprocess.Popen([*command, str(rank)], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    try:
        said = [rank.communicate(timeout=300)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    found: dict[str, str] = {}
    for rank, errors in enumerate(said):
        told = folder / f"{rank}.json"
        assert told.exists(), errors[-3000:]
        for case, how in json.loads(told.read_text(encoding="utf-8")).items():
            found[f"{case} on rank {rank}"] = how
    return found


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_on_two_ranks(tmp_path: Path) -> None:
    found = failures("cpu", tmp_path)
    assert not found, "\n".join([*found, *found.values()])


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two CUDA devices")
def test_on_two_devices(tmp_path: Path) -> None:
    found = failures("cuda", tmp_path)
    assert not found, "\n".join([*found, *found.values()])
