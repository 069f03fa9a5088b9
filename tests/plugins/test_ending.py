"""A process ends in order while daemon threads call, learn, verify and differentiate."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.paths import PATHS

CALLING = """
import random, sys, threading, time
import torch, nxcore

torch.set_num_threads(2)
kind, seed = sys.argv[1], int(sys.argv[2])
x = torch.randn(64, 4096)
begun = threading.Barrier(3)
total = nxcore.op("sum")

def call():
    total(x, dim=(0,))

def learn():
    total(x[: random.randint(1, 64)], dim=(0,))

def verify():
    nxcore.Session().op("add", backend="numba")(x, x)

def differentiate():
    w = x.clone().requires_grad_()
    nxcore.op("softmax_sum")(w[None], torch.zeros(1)).sum().backward()

def graph():
    step(x)

step = nxcore.graphed(lambda x: total(x, dim=(0,)))
work = {"call": call, "learn": learn, "verify": verify, "differentiate": differentiate, "graph": graph}[kind]

def loop():
    begun.wait()
    while True:
        work()

if kind != "verify":
    work()
for _ in range(2):
    threading.Thread(target=loop, daemon=True).start()
begun.wait()
time.sleep(random.Random(seed).random() * 0.05)
print("ends")
"""


def ends(kind: str, seed: int, cache: Path) -> None:
    """Hold that such a process ends by itself, without a signal."""
    env = os.environ | {"NXCORE_CACHE": str(cache), "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CALLING, kind, str(seed)],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), f"{done.stderr} after {time.monotonic() - began}"
    assert "terminate" not in done.stderr
    assert "Traceback" not in done.stderr


KINDS = ("call", "learn", "verify", "differentiate", "graph")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_ends_in_order_while_threads_are_at_work(kind: str, tmp_path: Path) -> None:
    if kind == "verify":
        pytest.importorskip("numba")
    ends(kind, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS[-1:], indirect=True)  # what could end late is of the compiled one
def test_ten_processes_end_in_order(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    for seed in range(1, 11):  # 0 is the test above
        ends(KINDS[seed % len(KINDS)], seed, tmp_path)
