"""CUDA C++ kernels for nxcore: the backend, and its requirements on the machine and on a call.

Importing this module compiles, loads and looks for nothing; each kernel's own file does, on first use.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from nxcore.plugin import FLOATS, Backend, Check, Kernel, Problem, hookimpl, kernels
from nxcore_cuda import accepts
from nxcore_cuda.accepts import TOOLKIT, probe
from nxcore_cuda.machine import toolkit
from nxcore_cuda.machine.compile import shipped

API = 1

PLANES = (
    "square_planes",
    "square_planes_dilated",
    "square_planes_of_16_channels",
    "square_planes_of_36_channels",
    "square_planes_of_144_channels",
    "square_planes_strided",
    "square_planes_strided_of_32_channels",
    "square_planes_strided_of_72_channels",
)
"""Samples of shapes that have kernels of their own, one of each way through the code."""

POINTS = ("square_planes", "many_channels", "square_reduction")
"""Samples of whole vectors, and of channels that several warps share."""

SUM = {"target": "sum:plan", "branch": "nxcore_cuda.sum:branch"}

SCAN = {"target": "scans:plan", "branch": "nxcore_cuda.scans:branch"}

FOLD = {"target": "fold:plan", "branch": "nxcore_cuda.fold:branch"}

EVERY = {
    "dtypes": FLOATS,
    "deterministic": True,
    "graph_safe": True,
    "uses": ("nxcore_cuda.machine.compile:NVCC_FLAGS",),
    "replay": "nxcore_cuda.machine.replay:replay",
    "announces": True,
}

SUMMED = {"accepts": accepts.summed, "replay": "", "graph_safe": False}
"""Of kernels that call torch too: its sort is no launch that is repeated, and no capture of it was tried."""

KERNELS = kernels(
    "nxcore_cuda",
    {
        "softmax_sum": accepts.blend,
        "softmax_sum_backward": {"accepts": accepts.blend, "target": "softmax_sum:plan_backward"},
        "weighted_sum": {"accepts": accepts.blend, "target": "softmax_sum:plan"},
        "weighted_sum_backward": {"accepts": accepts.blend, "target": "softmax_sum:plan_backward"},
        "add": {"accepts": accepts.add, "in_place_safe": True},
        "add_backward": accepts.sums,
        "sum": {**SUM, "accepts": accepts.sums},
        "sum_to_size": {**SUM, "accepts": accepts.sums},
        "mean": {**SUM, "accepts": accepts.sums},
        **{op: {**FOLD, "accepts": accepts.sums} for op in ("amax", "amin", "any", "all")},
        **{op: {**FOLD, "accepts": accepts.numbered} for op in ("max", "min", "argmax", "argmin")},
        "matmul": {
            "accepts": accepts.product,
            "dtypes": (torch.float32,),
            "branch": "nxcore_cuda.matmul:branch",
            "verified_for": "nxcore_cuda.matmul:proofs",
        },
        "max_pool2d": accepts.images,
        "max_pool2d_with_offsets": {"accepts": accepts.images, "target": "max_pool2d:plan"},
        "max_pool2d_backward": {"accepts": accepts.offsets, "target": "max_pool2d:plan_backward"},
        "avg_pool2d": accepts.images,
        "avg_pool2d_backward": accepts.images,
        "global_avg_pool2d": {**SUM, "accepts": accepts.planes},
        "global_max_pool2d": accepts.planes,
        "global_max_pool2d_with_offsets": {"accepts": accepts.planes, "target": "global_max_pool2d:plan"},
        "global_max_pool2d_backward": {
            "accepts": accepts.offsets,
            "target": "global_max_pool2d:plan_backward",
        },
        **{
            f"{op}{back}": {"accepts": need, "target": f"{op}:plan{back}"}
            for op, need in (
                *(("batch_norm", accepts.norm), ("batch_norm_sum", accepts.norms)),
                *(("cross_entropy", accepts.losses), ("group_norm", accepts.groups)),
                *((op, accepts.rows) for op in ("entropy", "gumbel_softmax")),
            )
            for back in ("", "_backward")
        },
        "column_sums": accepts.matrices,
        "conv2d": accepts.direct_convolution,
        "conv2d_backward": accepts.direct_convolution,
        "depthwise_conv2d": accepts.convolution,
        "depthwise_conv2d_backward": accepts.convolution,
        "foreach_sep_conv2d_batch_norm": {
            "accepts": accepts.convolutions,
            "dtypes": (torch.float32,),
            "verified_on": PLANES,
        },
        "foreach_sep_conv2d_batch_norm_backward": {
            "accepts": accepts.convolutions,
            "dtypes": (torch.float32,),
            "verified_on": PLANES,
        },
        "index_add": {**SUMMED, "target": "scatters:plan_add"},
        "embedding": accepts.summed,
        "embedding_dense_backward": {**SUMMED, "target": "scatters:plan_embedding"},
        **{op: {**SCAN, "accepts": accepts.axis} for op in ("cumsum", "cumsum_backward")},
        **{op: {"accepts": accepts.turned, "target": "rope:plan"} for op in ("rope", "rope_backward")},
        **{
            f"{op}{back}": {"accepts": accepts.last, "target": f"norms:plan{back}"}
            for op in ("rms_norm", "layer_norm")
            for back in ("", "_backward")
        },
        **{
            f"{op}{back}": {"accepts": accepts.axis, "target": "softmaxes:plan"}
            for op in ("softmax", "log_softmax")
            for back in ("", "_backward")
        },
        "pointwise_conv2d": {"accepts": accepts.points, "verified_on": POINTS},
        "pointwise_conv2d_backward": {"accepts": accepts.points, "verified_on": POINTS},
        "sep_conv2d": {"accepts": accepts.separable_convolution, "verified_on": PLANES},
        "sep_conv2d_backward": {"accepts": accepts.separable_convolution, "verified_on": PLANES},
        "sep_conv2d_batch_norm": {
            "accepts": accepts.block,
            "dtypes": (torch.float32,),
            "verified_on": PLANES,
        },
    },
    **EVERY,
)

FAST = kernels(
    "nxcore_cuda",
    {"index_add": {**SUMMED, "target": "scatters:plan_add_fast"}},
    variant="fast",
    **EVERY | {"dtypes": (torch.float32,), "deterministic": False},
)
"""Kernels that add up in any order."""

SPLIT = kernels(
    "nxcore_cuda",
    {
        "matmul": {
            "accepts": accepts.split_product,
            "target": "matmul_split:plan",
            "branch": "nxcore_cuda.matmul_split:branch",
        },
    },
    variant="fp32x",
    precision="fp32x",
    **EVERY | {"dtypes": (torch.float32,)},
)
"""Kernels of a coarser precision class, which only calls that allow it get."""

PRINTERS = kernels(
    "nxcore_cuda", {"pointwise": {"accepts": accepts.expressions, "in_place_safe": True}}, **EVERY
)

RUNTIME = (
    "nxcore_cuda.emulator",
    *(
        f"nxcore_cuda.machine.{name}"
        for name in ["absent", "compile", "handle", "host", "launch", "load", "native", "replay", "toolkit"]
    ),
)
"""The modules that load and launch kernels; ``machine.instance`` spells what is compiled."""


def compiler() -> dict[str, str]:
    """Return the compiler and its version; kernels of another compiler count as other kernels."""
    found = toolkit.host_compiler() if toolkit.EMULATED else toolkit.nvcc()
    return {"compiler": toolkit.version(found)} if found else {}


@hookimpl
def nxcore_backend() -> Backend:
    """Return this backend."""
    return Backend(
        "cuda",
        probe,
        (*KERNELS, *FAST, *SPLIT),
        api=API,
        toolkit=compiler,
        runtime=RUNTIME,
        printers=PRINTERS,
        ahead=_ahead,
    )


def _ahead(kernel: Kernel, problem: Problem, capability: tuple[int, int]) -> None:
    from nxcore_cuda.machine.absent import ahead

    ahead(kernel, problem, capability)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Return checks of the device, the compiler, the kernels in the wheel, and the launcher."""
    machine = probe()
    device = torch.cuda.get_device_name() if machine and not machine.simulated else machine.reason
    yield Check("cuda device", True, device, machine.hint)  # to have none is no fault
    compiler = toolkit.host_compiler() if toolkit.EMULATED else toolkit.nvcc()
    # Not sum(): a kernel's module of that name becomes this package's attribute.
    count = len([symbol for image in shipped().values() for symbol in image["symbols"]])
    archs = sorted({arch for image in shipped().values() for arch in image["archs"]})
    needed = machine and not count
    missing = f"no nvcc {toolkit.PLACES}"
    yield Check(
        "cuda compiler", bool(compiler) or not needed, compiler or missing, "" if compiler else TOOLKIT
    )
    yield Check(
        "cuda images", True, f"{count} kernels for {', '.join(archs)}" if count else "none in the wheel"
    )
    if machine and not machine.simulated:
        from nxcore_cuda.machine.native import launcher

        in_c = launcher.startswith("C")
        fix = "" if in_c else "install a C compiler and Python.h"
        yield Check("cuda launcher", in_c, launcher, fix)
