"""The problems of whole models in ``benchmarks/workloads``, and the record that is made of them."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import served
from nxcore.registry.discovery import discover
from nxcore.store import problems
from tests.table import for_each

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FILES = sorted((BENCHMARKS / "workloads").glob("*.jsonl"))
REGISTRY = discover()


@pytest.fixture(scope="module")
def workloads() -> ModuleType:
    found = importlib.util.spec_from_file_location("workloads", BENCHMARKS / "workloads.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_model_has_a_file(workloads: ModuleType) -> None:
    assert {file.stem for file in FILES} == set(workloads.MODELS)


@for_each("file", FILES, ids=lambda file: file.stem)
def test_the_problems_of_a_model_are_its_operators_with_both_ways(file: Path, workloads: ModuleType) -> None:
    _, batch, _ = workloads.MODELS[file.stem]
    ops: Counter[str] = Counter()
    for _, line in problems.read(file):
        problem = problems.described(REGISTRY.spec(line["op"]), line)
        ops[problem.op] += 1
        images = [t for t in problem.tensors if len(t.shape) == 4 and t.shape[2] > 1 and t.shape[1] > 1]
        assert all(t.shape[0] == batch for t in images if t.shape[2] not in (3, 5, 7)), line
        assert line["count"] >= 1
    assert {torch.float32, torch.bfloat16} <= {
        problems.described(REGISTRY.spec(line["op"]), line).dtype for _, line in problems.read(file)
    }
    forward = {op for op in ops if not op.endswith("_backward")}
    backward = {op.replace("_with_offsets", "") + "_backward" for op in forward}
    assert backward == set(ops) - forward
    assert len(ops) >= 4


def test_a_step_is_recorded_in_both_dtypes_and_layouts(
    workloads: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network() -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.AvgPool2d(2))
        nxcore.accelerate(model)
        return model

    monkeypatch.setattr(workloads, "MODELS", {"tiny": (network, 64, 10)})
    lines = list(workloads.recorded("tiny"))
    pools = [line for line in lines if line["op"] == "avg_pool2d"]
    assert [tuple(line["x"]["shape"]) for line in pools] == [(64, 3, 8, 8)] * 4
    assert {line["x"]["dtype"] for line in pools} == {"float32", "bfloat16"}
    assert len({tuple(line["x"]["strides"]) for line in pools}) == 2
    assert "add" in {line["op"] for line in lines}, "what adds the bias, though torch serves the convolution"
    sizes = [line["size"] for line in lines if line["op"] == "avg_pool2d_backward"]
    assert sizes == [[64, 3, 8, 8]] * len(sizes)
    assert sizes


def test_no_module_asks_who_serves_while_a_step_is_recorded(workloads: ModuleType) -> None:
    asking = [
        m for name, m in sys.modules.items() if name.startswith("nxcore.nn.") and hasattr(m, "by_kernel")
    ]
    asking.remove(served)
    assert asking
    with workloads.by_operators():
        assert all(module.by_kernel is not served.by_kernel for module in asking)
    assert all(module.by_kernel is served.by_kernel for module in asking)


@pytest.mark.slow
def test_a_record_is_a_file_that_can_be_imported(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--budget", "0", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "record.py"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("cpu-*.json")
    assert f"0 problems written to {file}" in done.stdout.replace("\n", "")
    assert json.loads(file.read_text())["format"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", ["signal", "budget"])
def test_a_record_that_is_ended_early_is_written_all_the_same(tmp_path: Path, end: str) -> None:
    words = ["found", "--device", "cpu", "--output", str(tmp_path)]
    words += ["--budget", "1"] if end == "budget" else []
    command = [sys.executable, str(BENCHMARKS / "record.py"), *words]
    env = os.environ | {"NXCORE_BACKENDS": "none", "NXCORE_WORKERS": "0"}  # torch's idioms alone
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        if end == "signal":
            assert process.stderr is not None
            first = next(line for line in process.stderr if line.startswith("tune "))
            assert re.match(r"tune 1/\d+: \w+ found \d+; .* s a problem: compile wait ", first)
            process.terminate()
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "left (the budget is spent); run the same command again to continue" in " ".join(said.split())
    assert len(list(tmp_path.glob("cpu-*.json"))) == 1
