"""Torch's OpInfo samples, run on every operator that torch has; a second source beside our own samples."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.table import for_each

ROOT = Path(__file__).parents[2]

LEAST = {
    "add": 300,
    "avg_pool2d": 20,
    "batch_norm": 10,
    "cross_entropy": 40,
    "cumsum": 10,
    "depthwise_conv2d": 80,
    "elu": 60,
    "embedding": 10,
    "gelu": 20,
    "gelu_tanh": 20,
    "global_max_pool2d": 40,
    "group_norm": 40,
    "hardsigmoid": 60,
    "hardswish": 10,
    "index_add": 40,
    "layer_norm": 10,
    "leaky_relu": 20,
    "log_softmax": 10,
    "matmul": 30,
    "max_pool2d": 4000,
    "mish": 60,
    "relu": 60,
    "sigmoid": 60,
    "silu": 60,
    "rms_norm": 4,
    "softmax": 10,
    "softplus": 60,
    "sum": 50,
    "sum_to_size": 40,
    "tanh": 60,
}
"""Samples that torch 2.13 has, and some fewer: a database that shrinks must not go unseen."""

WITHOUT = {("index_add", "triton"), *((op, "numba") for op in ("cumsum", "embedding", "index_add", "matmul"))}
"""An operator, and a backend that has no kernel of it."""


@pytest.fixture(scope="module")
def tallies() -> dict[str, Any]:
    """What came of the samples: operator -> backend -> counts, reasons and failures."""
    # Numba's simulator of CUDA takes seconds a call; its kernels are held to the spec's own samples.
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.outside.opinfo"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=env,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
@for_each("op", LEAST)
def test_every_sample_agrees(
    op: str, tallies: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    found = tallies[op]
    for backend, tally in found.items():
        record_property(f"{op} on {backend}", json.dumps({k: tally[k] for k in ("seen", "used", "left_out")}))
        print(f"{op} on {backend}: {tally['used']} of {tally['seen']} used; left out: {tally['left_out']}")
        assert tally["seen"] >= LEAST[op], f"torch had {LEAST[op]} samples and more"
        assert tally["used"] + sum(tally["left_out"].values()) == tally["seen"], "each has a reason"
        if (op, backend) not in WITHOUT:
            assert tally["used"] >= min(LEAST[op] // 20, 4), "some are used on every backend"
    failures = [f"{backend}: {f}" for backend, tally in found.items() for f in tally["failures"]]
    assert not failures, "\n".join(failures)


@pytest.mark.slow
def test_every_operator_of_the_database_is_asked(tallies: dict[str, Any]) -> None:
    assert set(tallies) == set(LEAST)
