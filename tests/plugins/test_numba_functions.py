"""Numba's functions of float32 on the CPU: exact at the ends, right to a few units elsewhere, vector code."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

import numba
from nxcore_numba import functions, pointwise

import nxcore
from nxcore.plugin import Elementwise
from nxcore.spec.problem import Problem

UNITS = {"exp": 2, "expm1": 2, "log": 2, "log1p": 2, "tanh": 3, "sigmoid": 2, "erf": 7, "sign": 0}
"""The most units in the last place that each function is off."""

ENDS = (0.0, 1e-45, 1e-38, 88.0, 88.72, 88.73, 89.0, 89.1, 89.2, 90.0, 103.9, 104.0, 3.4e38, np.inf, np.nan)
LEAST = 1.2e-38
"""Results below it count as 0: float32 has fewer digits there."""


@numba.njit(error_model="numpy", fastmath={"contract"})
def every(x, out):
    for i in range(x.size):
        out[0, i] = functions.exp(x[i])
        out[1, i] = functions.expm1(x[i])
        out[2, i] = functions.log(x[i])
        out[3, i] = functions.log1p(x[i])
        out[4, i] = functions.tanh(x[i])
        out[5, i] = functions.sigmoid(x[i])
        out[6, i] = functions.erf(x[i])
        out[7, i] = functions.sign(x[i])


def test_functions_are_right_to_units_in_the_last_place() -> None:
    anything = np.arange(0, 2**32, 20_011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dice = np.random.default_rng(0)
    usual = np.concatenate([dice.normal(size=1 << 16) * scale for scale in (0.1, 3, 50)]).astype(np.float32)
    ends = np.array([*ENDS, *(-x for x in ENDS)], np.float32)
    x = np.concatenate([ends, anything[np.isfinite(anything)], usual])
    out = np.empty((len(UNITS), x.size), np.float32)
    every(x, out)
    for (name, units), found in zip(UNITS.items(), out, strict=True):
        true = getattr(torch, name)(torch.from_numpy(x).double()).numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = true.astype(np.float32)
            odd = ~np.isfinite(wanted)
            np.testing.assert_array_equal(found[odd], wanted[odd], err_msg=name)
            assert np.isfinite(found[~odd]).all(), name
            np.testing.assert_array_equal(np.signbit(found[~odd]), np.signbit(true[~odd]), err_msg=name)
            size = np.maximum(np.abs(wanted[~odd]), np.float32(LEAST))
            off = np.abs(found[~odd] - true[~odd]) / np.spacing(size)
        assert off[np.abs(true[~odd]) > LEAST].max() <= units, name
        assert np.abs(found[~odd][np.abs(true[~odd]) <= LEAST]).max(initial=0) <= 2 * LEAST, name


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf"])
def test_a_loop_of_a_function_is_vector_code(name: str) -> None:
    """A conversion by way of int64 makes it take twice as long, or single elements, as a call does."""
    function = getattr(functions, name)

    @numba.njit(error_model="numpy", fastmath={"contract"})
    def loop(x, out):
        for i in range(x.size):
            out[i] = function(x[i])

    kind = numba.types.Array(numba.float32, 1, "C")
    loop.compile((kind, kind))
    (text,) = loop.inspect_llvm().values()
    lines = [line for line in text.splitlines() if " x float>" in line]
    assert any("fmul" in line for line in lines)
    assert not [
        line for line in text.splitlines() if "fptosi" in line or ("i64> " in line and "sitofp" in line)
    ]


def test_generated_code_is_new_where_a_function_is(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Numba's cache knows the generated file alone, and would keep machine code of the function before."""
    spec = nxcore.pointwise("exp(x) + y").spec
    problem = Problem.of(spec, (torch.ones(8), torch.ones(8), None))
    before = pointwise.text(Elementwise.of(problem), (1, 1, 1))
    other = tmp_path / "functions.py"
    other.write_text("CHANGED = True\n", encoding="utf-8")
    monkeypatch.setattr(pointwise, "CALLS", (SimpleNamespace(__file__=str(other)),))
    pointwise._digest.cache_clear()
    try:
        assert pointwise.text(Elementwise.of(problem), (1, 1, 1)) != before
    finally:
        pointwise._digest.cache_clear()
