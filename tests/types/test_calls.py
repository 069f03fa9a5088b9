"""A type checker knows what ``nxcore.ops.add`` takes and returns, by a stub made of the specs."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import nxcore
from nxcore import ops
from nxcore.cli import app, stub
from nxcore.expression.activations import ACTIVATIONS
from tests.null import fakes

ROOT = Path(__file__).parents[2]
STUB = ROOT / "nxcore" / "ops" / "__init__.pyi"


def parsed(text: str) -> str:
    return ast.dump(ast.parse(text), indent=1)


def test_the_stub_is_that_of_the_specs():
    done = CliRunner().invoke(app, ["ops", "--stub"])
    assert done.exit_code == 0
    assert "add: _Add" in done.stdout
    assert parsed(STUB.read_text(encoding="utf-8")) == parsed(done.stdout), "make generated writes it"


def test_the_stub_has_each_operator_that_users_call_and_each_parameter_in_its_place():
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    typed = {n.target.id: classes[n.annotation.id] for n in tree.body if isinstance(n, ast.AnnAssign)}
    specs = {spec.name: spec for spec in ops.nxcore_ops()}
    gradients = [spec.gradient for spec in specs.values() if spec.gradient]
    assert set(typed) == {*specs, *ACTIVATIONS} - {n for g in gradients for n in (g.op, g.forward)}
    assert "add" in typed
    assert not {"add_backward", "max_pool2d_with_offsets"} & set(typed)
    for name, node in typed.items():
        taken = node.body[0].args
        names = [a.arg for a in (*taken.args[1:], *taken.kwonlyargs)]
        spec = nxcore.op(name).spec
        own = ["generator", spec.selector.name if spec.selector else ""]
        assert [n for n in names if n not in own] == [p.name for p in spec.params]


def blend(x: Tensor, ratio: Any = 1, size: tuple[int, ...] = (), form: Any = torch.strided) -> Tensor:
    raise NotImplementedError


blend.__annotations__ |= {"ratio": "int | float", "form": "torch.layout"}


def test_annotations_become_types_that_a_caller_may_give():
    params = (
        stub.Param("x", "tensor"),
        stub.Param("ratio", "scalar", 1),
        stub.Param("size", "size", ()),
        stub.Param("form", "static", torch.strided, keyword=True),
    )
    text = stub.stub([fakes.replace(fakes.SPECS["add"], name="my_blend", params=params, reference=blend)])
    wanted = "self, x: Tensor, ratio: float = 1, size: Sequence[int] = (), *, form: torch.layout = ..."
    assert f"class _MyBlend(Operator):\n    def __call__({wanted}) -> Tensor: ...\n" in text
    assert text.endswith("\nmy_blend: _MyBlend\n")


@pytest.mark.slow
def test_mypy_knows_the_types_of_calls():
    """As ``make lint`` does; ``calls.py`` also holds calls that must be errors."""
    pytest.importorskip("mypy", reason="of the extra `lint`")
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "tests/types/calls.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout
