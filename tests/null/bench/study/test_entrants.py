"""The entrants: each convolves or says why it can't; none leaves the study's device."""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest
import torch

from nxcore import session as sessions
from nxcore.bench.study import entrants as found
from nxcore.bench.study.shapes import Shape, shapes
from nxcore.errors import InvalidInputError
from nxcore.registry import inductor
from nxcore.spec.kernel import no
from tests.null import fakes

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def able(label: str, device: torch.device = CPU) -> str:
    """Return why an entrant can't run, empty if it can."""
    (entrant,) = (e for e in found.ENTRANTS if e.label == label)
    verdict = entrant.able(device)
    return "" if verdict else verdict.reason


@pytest.mark.parametrize("shape", shapes([32]), ids=str)
@pytest.mark.parametrize("label", ["im2col", "torch-conv2d"])
def test_eager_entrants_convolve(label, shape):
    (entrant,) = (e for e in found.ENTRANTS if e.label == label)
    x, weight = shape.tensors(CPU)
    bound = entrant.bind(x, weight, shape.padding)
    wanted = torch.nn.functional.conv2d(x.double(), weight.double(), padding=shape.padding)
    torch.testing.assert_close(bound.tensor(bound.call()).double(), wanted, rtol=1e-5, atol=1e-5)


def test_the_baseline_always_takes_part():
    assert [e.label for e in found.entrants(["jax", "nxcore"])] == ["im2col", "jax", "nxcore"]
    assert found.entrants() == list(found.ENTRANTS)


def test_an_unknown_entrant_is_named_with_the_nearest():
    with pytest.raises(InvalidInputError, match=r"entrants must be one of im2col, .*did you mean 'jax'"):
        found.entrants(["jaxx"])


def test_without_jax_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert able("jax") == "jax is not installed"


def test_jax_on_another_device_does_not_stand_in(monkeypatch):
    def devices(kind):
        raise RuntimeError(f"Unknown backend {kind}\nmore")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(devices=devices))
    assert able("jax", CUDA) == "JAX has no cuda device: RuntimeError: Unknown backend cuda"


@pytest.mark.parametrize("label", ["inductor-im2col", "inductor-conv2d"])
def test_without_a_compiler_the_reason_is_said(label, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert able(label) == "needs a compiler, but there is no g++"
    monkeypatch.setattr(inductor, "probe_cuda", lambda: no("triton is not installed"))
    assert able(label, CUDA) == "triton is not installed"


def test_tf32_needs_a_gpu():
    assert "the study's device is cpu" in able("cudnn-tf32")


def test_without_the_operator_nxcore_is_absent(monkeypatch):
    found = fakes.session()
    monkeypatch.setattr(sessions, "_default", found)
    monkeypatch.delitem(found.registry.ops, "conv2d")
    assert able("nxcore") == "nxcore has no operator conv2d in this version"


def test_nxcore_says_which_kernel_runs(monkeypatch):
    """By an operator that stands in for the real one."""
    shape, calls = Shape(32, 3, 1), []

    class Stand:
        registry = types.SimpleNamespace(ops={"conv2d": None})

        def op(self, name):
            return lambda x, weight, padding: calls.append((name, padding)) or x

        def explain(self, name, x, weight, *, padding, decide):
            assert (name, padding, decide) == ("conv2d", 1, False)
            return types.SimpleNamespace(decision=types.SimpleNamespace(chosen="numba"))

    monkeypatch.setattr(sessions, "_default", Stand())
    assert able("nxcore") == ""
    (entrant,) = (e for e in found.ENTRANTS if e.label == "nxcore")
    bound = entrant.bind(*shape.tensors(CPU), shape.padding)
    bound.call()
    assert calls == [("conv2d", 1)]
    assert bound.kernel() == "numba"
