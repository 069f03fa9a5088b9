"""Entrants of the study: each is a way to convolve, with what it needs and how its result is awaited."""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from nxcore import session as sessions
from nxcore.errors import FOREIGN
from nxcore.registry import inductor
from nxcore.spec.kernel import YES, Verdict, no
from nxcore.spec.precision import Precision

BASELINE = "im2col"
Toolkit = Literal["torch", "inductor", "jax", "nxcore"]


@dataclass(frozen=True, slots=True)
class Bound:
    """An entrant on one shape.

    Attributes
    ----------
    call : callable
        Starts one convolution.
    wait : callable
        Takes what ``call`` returned and waits for it; torch's own work is awaited besides.
    tensor : callable
        Takes what ``call`` returned and returns it as a tensor.
    kernel : callable
        What runs, if the label doesn't say.
    """

    call: Callable[[], Any]
    wait: Callable[[Any], Any] = lambda _: None
    tensor: Callable[[Any], Tensor] = lambda found: found
    kernel: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A way to convolve.

    Attributes
    ----------
    label : str
        Its name in tables.
    what : str
        What it is, in a few words.
    toolkit : str
        What compiles it; entrants of one toolkit are compiled by one process.
    able : callable
        Takes a device; returns whether it can run there, or why not.
    bind : callable
        Takes images, filters and padding.
    promised : str
        The precision class that its result must reach.
    """

    label: str
    what: str
    toolkit: Toolkit
    able: Callable[[torch.device], Verdict]
    bind: Callable[[Tensor, Tensor, int], Bound]
    promised: Precision = "ieee32"


def im2col(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Convolve by a matrix of all windows and one product."""
    out, taps = weight.shape[0], weight.shape[-1]
    height, width = (n + 2 * padding - taps + 1 for n in x.shape[-2:])
    columns = functional.unfold(x, taps, padding=padding)
    return (weight.reshape(out, -1) @ columns).reshape(x.shape[0], out, height, width)


def conv2d(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Convolve as torch does."""
    return functional.conv2d(x, weight, padding=padding)


def _anywhere(_: torch.device) -> Verdict:
    return YES


def _eager(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor, int], Bound]:
    return lambda x, weight, padding: Bound(lambda: function(x, weight, padding))


def _compiled(function: Any) -> Callable[[Tensor, Tensor, int], Bound]:
    def bind(x: Tensor, weight: Tensor, padding: int) -> Bound:
        # Dynamo counts recompilations per code object: each shape has its own.
        own = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
        compiled = torch.compile(own, dynamic=False, fullgraph=True)
        return Bound(lambda: compiled(x, weight, padding))

    return bind


def _compiles(device: torch.device) -> Verdict:
    return inductor.probe_cpu() if device.type == "cpu" else inductor.probe_cuda()


def _cudnn(device: torch.device) -> Verdict:
    if device.type != "cuda":
        return no(f"TF32 is a format of NVIDIA's GPUs, and the study's device is {device.type}")
    return YES if torch.backends.cudnn.is_available() else no("torch has no cuDNN here")


def _tf32(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    ones, around = [1, 1], [padding, padding]
    return torch.cudnn_convolution(
        x, weight, around, ones, ones, 1, benchmark=True, deterministic=False, allow_tf32=True
    )


def _jax(device: torch.device) -> Verdict:
    if importlib.util.find_spec("jax") is None:
        return no("jax is not installed", hint="pip install jax")
    try:
        import jax

        jax.devices(device.type)
    except FOREIGN as error:  # never another device than the study's
        why = str(error).partition("\n")[0]
        return no(f"JAX has no {device.type} device: {type(error).__name__}: {why}")
    return YES


def _by_jax(x: Tensor, weight: Tensor, padding: int) -> Bound:
    import jax

    place = jax.devices(x.device.type)[0]
    args = [jax.device_put(t.cpu().numpy(), place) for t in (x, weight)]

    def convolve(image: Any, filters: Any) -> Any:
        return jax.lax.conv_general_dilated(
            image,
            filters,
            window_strides=(1, 1),
            padding=[(padding, padding)] * 2,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
            precision=jax.lax.Precision.HIGHEST,
        )

    jitted = jax.jit(convolve)

    def tensor(found: Any) -> Tensor:
        return torch.tensor(jax.device_get(found))

    return Bound(lambda: jitted(*args), jax.block_until_ready, tensor)


def _ours(_: torch.device) -> Verdict:
    if "conv2d" not in sessions.default().registry.ops:
        return no("nxcore has no operator conv2d in this version")
    return YES


def _by_nxcore(x: Tensor, weight: Tensor, padding: int) -> Bound:
    session = sessions.default()
    operator = session.op("conv2d")

    def kernel() -> str:
        return str(session.explain("conv2d", x, weight, padding=padding, decide=False).decision.chosen)

    return Bound(lambda: operator(x, weight, padding=padding), kernel=kernel)


ENTRANTS = (
    Entrant(BASELINE, "unfold and matmul in eager torch", "torch", _anywhere, _eager(im2col)),
    Entrant("inductor-im2col", "the same, by torch.compile", "inductor", _compiles, _compiled(im2col)),
    Entrant("inductor-conv2d", "torch's conv2d, by torch.compile", "inductor", _compiles, _compiled(conv2d)),
    Entrant("jax", "jax.lax.conv_general_dilated, by XLA", "jax", _jax, _by_jax),
    Entrant("torch-conv2d", "torch's conv2d: cuDNN or oneDNN", "torch", _anywhere, _eager(conv2d)),
    Entrant("cudnn-tf32", "cuDNN in TF32", "torch", _cudnn, _eager(_tf32), "tf32"),
    Entrant("nxcore", "nxcore's conv2d", "nxcore", _ours, _by_nxcore),
)
