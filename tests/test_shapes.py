"""``benchmarks/shapes.py``: the benchmark of ever new shapes has arguments for every operator."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from nxcore.ops import nxcore_ops
from nxcore.spec.problem import tensors_of
from nxcore.spec.spec import OpSpec
from tests.table import for_each

FILE = Path(__file__).parents[1] / "benchmarks" / "shapes.py"


@pytest.fixture(scope="module")
def shapes() -> ModuleType:
    found = importlib.util.spec_from_file_location("shapes", FILE)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@for_each("spec", nxcore_ops(), ids=lambda spec: spec.name)
def test_every_operator_has_arguments_of_ever_new_shapes(spec: OpSpec, shapes: ModuleType) -> None:
    seen = set()
    for n in (0, 1, 20):
        args = shapes.arguments(spec, n)
        spec.check(*args)
        sizes = tuple(p for p, param in zip(args, spec.params, strict=True) if param.kind == "size")
        seen.add((sizes, *(t.shape for t in tensors_of(args))))
    assert len(seen) == 3
