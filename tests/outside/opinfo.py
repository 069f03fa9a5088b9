"""Torch's own test samples of the operators that torch has, run on nxcore's; prints what came of it as JSON.

Run in a process of its own: importing the database freezes cudnn's flags and takes seconds. The
database is private to torch, and a floor only: its samples are small.
"""

import contextlib
import importlib
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

if not torch.cuda.is_available():  # both are read when the plugins are imported
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("NXCORE_CUDA_EMULATOR", "1")

from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.measure.race import Effort
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import leaves
from nxcore.trust.gate import Held
from nxcore.trust.truth import agreement
from tests.interpreter import keep_bookkeeping

try:
    from torch.testing._internal.common_methods_invocations import op_db
except ImportError as error:  # private, and in need of what torch's tests need
    sys.exit(f"torch {torch.__version__} has no OpInfo database that can be imported: {error}")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LIMITS: dict[str | None, int] = {None: 8, "numba": 20, "triton": 10, "cuda": 10}
"""How many samples of one dtype a backend is given, spread over all; None is the default choice."""
EXPRESSED: dict[str | None, int] = {"torch": 20}
"""The same for activations: their kernels are printed, and the printers are held to float64 elsewhere."""
SIMULATED = 2000
"""The most elements of a tensor that an interpreter is given, in float32 alone."""


class LeftOutError(Exception):
    """This sample isn't a call of the operator; the message says why."""


def _add(x: Any, y: Any, *, alpha: Any = 1) -> tuple[Any, ...]:
    if not isinstance(x, Tensor):
        raise LeftOutError("the first operand is a number")
    return x, y, alpha, None


def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> tuple[Any, ...]:
    if dtype is not None:
        raise LeftOutError("dtype= is torch's alone")
    return x, dim, keepdim


def _sum_to_size(x: Tensor, *size: Any) -> tuple[Any, ...]:
    return x, tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size


def _matmul(a: Tensor, b: Tensor) -> tuple[Any, ...]:
    return a, b, None


def _max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Any, ...]:
    return x, kernel_size, stride, padding, dilation, ceil_mode, return_indices


def _avg_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> tuple[Any, ...]:
    return x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override


def _global_max_pool2d(x: Tensor, output_size: Any, return_indices: bool = False) -> tuple[Any, ...]:
    if output_size != (1, 1):
        raise LeftOutError("more than one output a channel")
    if return_indices:
        raise LeftOutError("return_indices= is torch's alone")
    return (x,)


def _batch_norm(
    x: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, ...]:
    if not training:
        raise LeftOutError("in evaluation it is torch's alone")
    if (weight is None) != (bias is None):
        raise LeftOutError("weight without bias, or bias without weight, is torch's alone")
    if not x.numel():
        raise LeftOutError("there are no values to normalise by")
    return x, weight, bias, eps


def _depthwise_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...]:
    assert bias is None
    if not groups == x.shape[-3] == weight.shape[0]:
        raise LeftOutError("groups, channels and filters differ: it isn't depthwise")
    return x, weight, stride, padding, dilation


def _along(x: Tensor, dim: Any = None, dtype: Any = None) -> tuple[Any, ...]:
    if dtype is not None and not dtype.is_floating_point:
        raise LeftOutError("a complex dtype= is torch's alone")
    return x, dim, dtype


def _last(x: Tensor, size: Any, weight: Any = None, eps: Any = None) -> tuple[Any, ...]:
    return x, tuple(size), weight, torch.finfo(torch.float32).eps if eps is None else eps


def _normed(x: Tensor, of: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> tuple[Any, ...]:
    return x, of, weight, bias, eps


def _lookup(weight: Tensor, index: Tensor, padding_idx: Any = None, **how: Any) -> tuple[Any, ...]:
    if how.get("max_norm") is not None or how.get("sparse"):
        raise LeftOutError("max_norm= and sparse= are torch's alone")
    return index, weight, padding_idx, None, 2.0, how.get("scale_grad_by_freq", False), False


def _loss(x: Tensor, target: Tensor, weight: Any = None, **how: Any) -> tuple[Any, ...]:
    if target.is_floating_point():
        raise LeftOutError("classes' probabilities are torch's alone")
    ignored, smoothing = how.get("ignore_index", -100), how.get("label_smoothing", 0.0)
    return x, target, weight, ignored, how.get("reduction", "mean"), smoothing


def _one(x: Tensor) -> tuple[Any, ...]:
    return x, None


def _gelu(x: Tensor, *, approximate: str = "none") -> tuple[Any, ...]:
    if approximate != "none":
        raise LeftOutError("it is a call of another operator, gelu_tanh")
    return x, None


def _gelu_tanh(x: Tensor, *, approximate: str = "none") -> tuple[Any, ...]:
    if approximate != "tanh":
        raise LeftOutError("it is a call of another operator, gelu")
    return x, None


def _leaky_relu(x: Tensor, negative_slope: float = 0.01) -> tuple[Any, ...]:
    return x, negative_slope, None


def _elu(x: Tensor, alpha: float = 1.0) -> tuple[Any, ...]:
    return x, alpha, None


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> tuple[Any, ...]:
    return x, beta, threshold, None


ACTIVATIONS: dict[str, tuple[str, Callable[..., tuple[Any, ...]]]] = {
    **{f"nn.functional.{n}": (n, _one) for n in ("relu", "silu", "mish", "hardswish", "hardsigmoid")},
    **{name: (name, _one) for name in ("sigmoid", "tanh")},
    "nn.functional.gelu": ("gelu", _gelu),
    "nn.functional.leaky_relu": ("leaky_relu", _leaky_relu),
    "nn.functional.elu": ("elu", _elu),
    "nn.functional.softplus": ("softplus", _softplus),
}
"""The same as below, of the operators that are made of an expression."""

SECOND = {"nn.functional.gelu": ("gelu_tanh", _gelu_tanh)}
"""The same, of functions whose arguments name one of two operators."""

TABLE: dict[str, tuple[str, Callable[..., tuple[Any, ...]]]] = {
    "add": ("add", _add),
    "sum": ("sum", _sum),
    "sum_to_size": ("sum_to_size", _sum_to_size),
    "matmul": ("matmul", _matmul),
    "nn.functional.max_pool2d": ("max_pool2d", _max_pool2d),
    "nn.functional.avg_pool2d": ("avg_pool2d", _avg_pool2d),
    # Its samples of adaptive_avg_pool2d have none of one output.
    "nn.functional.adaptive_max_pool2d": ("global_max_pool2d", _global_max_pool2d),
    "nn.functional.batch_norm": ("batch_norm", _batch_norm),
    "nn.functional.conv2d": ("depthwise_conv2d", _depthwise_conv2d),
    "index_add": ("index_add", lambda x, dim, index, source, alpha=1: (x, dim, index, source, alpha)),
    "cumsum": ("cumsum", lambda x, dim, dtype=None: (x, dim, dtype)),
    "softmax": ("softmax", _along),
    "nn.functional.rms_norm": ("rms_norm", _last),
    "nn.functional.layer_norm": ("layer_norm", _normed),
    "nn.functional.group_norm": ("group_norm", _normed),
    "log_softmax": ("log_softmax", _along),
    "nn.functional.cross_entropy": ("cross_entropy", _loss),
    "nn.functional.embedding": ("embedding", _lookup),
    **ACTIVATIONS,
}
"""By torch's name in the database: the operator, and its arguments from those of a sample."""


def _samples(info: Any, dtype: torch.dtype, device: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the samples, and the reference inputs where they are others; of a convolution, no bias."""
    found = list(info.sample_inputs(device, dtype, requires_grad=False))
    if info.reference_inputs_func is not None:
        found += info.reference_inputs(device, dtype, requires_grad=False)
    calls = [((s.input, *s.args), dict(s.kwargs)) for s in found]
    if info.name == "nn.functional.conv2d":
        calls = [((x, weight, None), named) for (x, weight, *_), named in calls]
    return calls


def _judge(op: Any, args: tuple[Any, ...], torchs: Any) -> str:
    """Return what is wrong with a call: against torch's own function, and against the float64 truth."""
    spec, results = op.spec, []
    named = {p.name for p in spec.params if p.keyword}

    def call(*given: Any) -> Any:
        pairs = list(zip(spec.params, given, strict=True))
        by_name = {p.name: a for p, a in pairs if p.name in named}
        results.append(op(*(a for p, a in pairs if p.name not in named), **by_name))
        return results[-1]

    found = agreement(call, spec, args)
    if not found.ok:
        return f"against float64: {found.reason}"
    if not spec.exact and args[0].dtype in (torch.float16, torch.bfloat16):
        return ""  # torch rounds on the way; the normwise gate above has asked for no more than its error
    ours = results[0][:1] if spec.gradient and spec.gradient.keeps else results[0]  # torch keeps the others
    for got, wanted in zip(leaves(ours), leaves(torchs), strict=True):
        tolerance = {"rtol": 0.0, "atol": 0.0} if spec.exact else {}
        try:
            torch.testing.assert_close(got, wanted, equal_nan=True, **tolerance)
        except AssertionError as error:
            return f"against torch: {' '.join(str(error).split())}"
    return ""


def _tally(
    session: Session,
    info: Any,
    name: str,
    adapt: Callable[..., tuple[Any, ...]],
    backend: str | None,
    made: dict[Any, Any],
) -> dict[str, Any]:
    """Run an operator's samples on one backend; ``made`` has those of other backends."""
    op = session.op(name, backend=backend)
    machine = session.registry.probe(session.registry.backend(backend)) if backend else None
    device = "cuda" if torch.cuda.is_available() and backend in ("triton", "cuda") else "cpu"
    seen = used = 0
    left_out: Counter[str] = Counter()
    failures = []
    for dtype in DTYPES:
        simulated = bool(machine and machine.simulated)
        if (dtype, device) not in made:
            made[dtype, device] = _samples(info, dtype, device)
        calls = made[dtype, device]
        seen += len(calls)
        if simulated and dtype is not torch.float32:
            left_out["an interpreter is given float32 alone"] += len(calls)
            continue
        right = []
        for given, named in calls:
            try:
                right.append((adapt(*given, **named), given, named))
            except LeftOutError as why:
                left_out[str(why)] += 1
        if simulated:
            small = [c for c in right if all(t.numel() < SIMULATED for t in leaves(c[0]))]
            left_out["too large for an interpreter"] += len(right) - len(small)
            right = small
        step = max(-(-len(right) // _limits(info)[backend]), 1)
        left_out[f"one in {step} is run"] += len(right) - len(right[::step]) if step > 1 else 0
        for args, given, named in right[::step]:
            try:
                wrong = _judge(op, args, info.op(*given, **named))
            except UnsupportedProblemError as error:
                left_out[f"declined: {'; '.join(error.reasons)}"] += 1
                continue
            except InvalidInputError as error:
                wrong = f"refused: {error}"
            used += 1
            if wrong:
                failures.append(
                    f"{dtype} {[tuple(a.shape) if isinstance(a, Tensor) else a for a in args]}: {wrong}"
                )
    return {"seen": seen, "used": used, "left_out": +left_out, "failures": failures}


def _limits(info: Any) -> dict[str | None, int]:
    return EXPRESSED if info.name in ACTIVATIONS else LIMITS


def main() -> None:
    """Run the samples on the default choice and on each backend that is ready; print the tallies."""
    warnings.simplefilter("ignore")  # torch's, of even kernels with padding="same"
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        importlib.import_module("triton.runtime.interpreter")
    keep_bookkeeping()
    # A choice among simulated backends would verify each of them, for kernels that it never chooses.
    quick = Effort(looks=(12,), warm_s=1e-4, budget_s=0.05)
    choosing = Session(Settings(backends=frozenset({"numba"}), policy="measure"), effort=quick)
    session = Session(Settings())
    for each in (
        choosing,
        session,
    ):  # their results are compared here, and the kit has the spec's own samples
        each.gate.verify = lambda *_: Held(None)
    ready = [name for name, status in session.backends().items() if status.status == "ready"]
    rows = [(info, *of[info.name]) for of in (TABLE, SECOND) for info in op_db if info.name in of]
    found = {}
    for info, name, adapt in rows:
        made: dict[Any, Any] = {}
        found[name] = {
            b or "chosen": _tally(session if b else choosing, info, name, adapt, b, made)
            for b in _limits(info)
            if b is None or b in ready
        }
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
