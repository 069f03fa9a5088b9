"""A process ends in order while daemon threads call, learn, verify and differentiate."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import PATHS

CALLING = """
import os, random, sys, threading, time
import torch, nxcore

sys.stdout.reconfigure(line_buffering=True)

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

kinds = {"call": call, "learn": learn, "verify": verify, "differentiate": differentiate, "graph": graph}

def loop():
    begun.wait()
    while True:
        work()

def of_children():
    for seed in range(int(sys.argv[1])):
        for kind in kinds:
            child = os.fork()  # in which nothing has run yet, so that it ends as a process of its own does
            if not child:
                return kind, seed
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(kind, "ended with", status)
    return None

if of := of_children():
    torch.set_num_threads(2)
    x, total = torch.randn(64, 4096), nxcore.op("sum")
    step = nxcore.graphed(lambda x: total(x, dim=(0,)))
    work, begun = kinds[of[0]], threading.Barrier(3)
    if of[0] != "verify":
        work()
    for _ in range(2):
        threading.Thread(target=loop, daemon=True).start()
    begun.wait()
    time.sleep(random.Random(of[1]).random() * 0.05)
    print("ends")
"""

KINDS = ("call", "learn", "verify", "differentiate", "graph")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_end_in_order_while_threads_are_at_work(path: str, tmp_path: Path) -> None:
    """None is ended by a signal; what could end late is of the compiled path: three of each kind."""
    pytest.importorskip("numba")
    times = 3 if path == PATHS[-1] else 1
    done = subprocess.run(
        [sys.executable, "-c", CALLING, str(times)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NXCORE_CACHE": str(tmp_path), "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"},
        timeout=300,
    )
    said = [line for kind in KINDS for line in ("ends", f"{kind} ended with 0")] * times
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr
    assert "terminate" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
