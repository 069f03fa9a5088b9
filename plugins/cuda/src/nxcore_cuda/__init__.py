"""CUDA C++ kernels for nxcore: what this machine and each call must be like for them.

Importing this module compiles, loads and looks for nothing; each kernel's own file does, on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from nxcore.plugin import FLOATS, Backend, Check, Kernel, Problem, Verdict, hookimpl
from nxcore_cuda import toolkit
from nxcore_cuda.accepts import TOOLKIT, probe
from nxcore_cuda.accepts_block import (
    accepts_sep_conv2d_batch_norm,
    accepts_sep_conv2d_batch_norm_backward,
    accepts_sep_conv2d_with_stats,
)
from nxcore_cuda.accepts_depthwise import accepts_depthwise_conv2d, accepts_depthwise_conv2d_backward
from nxcore_cuda.accepts_elementwise import (
    accepts_add,
    accepts_add_backward,
    accepts_softmax_sum,
    accepts_softmax_sum_backward,
    accepts_sum,
    accepts_sum_to_size,
)
from nxcore_cuda.accepts_norm import accepts_batch_norm, accepts_batch_norm_backward
from nxcore_cuda.accepts_pool import (
    accepts_avg_pool2d,
    accepts_avg_pool2d_backward,
    accepts_global_pool2d,
    accepts_max_pool2d,
    accepts_max_pool2d_backward,
    accepts_max_pool2d_with_offsets,
)
from nxcore_cuda.accepts_rows import accepts_rows
from nxcore_cuda.accepts_separable import accepts_sep_conv2d, accepts_sep_conv2d_backward
from nxcore_cuda.compile import shipped

API = 1
SINGLE = (torch.float32,)


def _kernel(
    op: str,
    accepts: Callable[[Problem], Verdict],
    *,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
    in_place_safe: bool = False,
    branches: bool = False,
) -> Kernel:
    target = f"nxcore_cuda.{op}:plan"
    return Kernel(
        op,
        target,
        accepts,
        dtypes=dtypes,
        deterministic=True,
        graph_safe=True,
        in_place_safe=in_place_safe,
        branch=f"nxcore_cuda.{op}:branch" if branches else "",
    )


KERNELS = (
    _kernel("softmax_sum", accepts_softmax_sum),
    _kernel("softmax_sum_backward", accepts_softmax_sum_backward),
    _kernel("weighted_sum", accepts_softmax_sum),
    _kernel("weighted_sum_backward", accepts_softmax_sum_backward),
    _kernel("add", accepts_add, in_place_safe=True),
    _kernel("add_backward", accepts_add_backward),
    _kernel("sum", accepts_sum, branches=True),
    _kernel("sum_to_size", accepts_sum_to_size, branches=True),
    _kernel("max_pool2d", accepts_max_pool2d),
    _kernel("max_pool2d_with_offsets", accepts_max_pool2d_with_offsets),
    _kernel("max_pool2d_backward", accepts_max_pool2d_backward),
    _kernel("avg_pool2d", accepts_avg_pool2d),
    _kernel("avg_pool2d_backward", accepts_avg_pool2d_backward),
    _kernel("global_avg_pool2d", accepts_global_pool2d, branches=True),
    _kernel("global_max_pool2d", accepts_global_pool2d),
    _kernel("global_max_pool2d_with_offsets", accepts_global_pool2d),
    _kernel("global_max_pool2d_backward", accepts_max_pool2d_backward),
    _kernel("batch_norm", accepts_batch_norm),
    _kernel("batch_norm_backward", accepts_batch_norm_backward),
    _kernel("depthwise_conv2d", accepts_depthwise_conv2d),
    _kernel("depthwise_conv2d_backward", accepts_depthwise_conv2d_backward),
    _kernel("entropy", accepts_rows),
    _kernel("entropy_backward", accepts_rows),
    _kernel("gumbel_softmax", accepts_rows),
    _kernel("gumbel_softmax_backward", accepts_rows),
    _kernel("sep_conv2d", accepts_sep_conv2d),
    _kernel("sep_conv2d_backward", accepts_sep_conv2d_backward),
    _kernel("sep_conv2d_with_stats", accepts_sep_conv2d_with_stats, dtypes=SINGLE),
    _kernel("sep_conv2d_batch_norm", accepts_sep_conv2d_batch_norm, dtypes=SINGLE),
    _kernel("sep_conv2d_batch_norm_backward", accepts_sep_conv2d_batch_norm_backward, dtypes=SINGLE),
)


def compiler() -> dict[str, str]:
    """Return what compiles kernels here, which pip doesn't know: by another compiler, they are others."""
    found = toolkit.host_compiler() if toolkit.EMULATED else toolkit.nvcc()
    return {"compiler": toolkit.version(found)} if found else {}


@hookimpl
def nxcore_backend() -> Backend:
    """Hand over this backend."""
    return Backend("cuda", probe, KERNELS, api=API, toolkit=compiler)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Show the device, what compiles kernels, which ones the wheel brought, and what launches them."""
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
        from nxcore_cuda.native import launcher

        in_c = launcher.startswith("C")
        fix = "" if in_c else "install a C compiler and Python.h"
        yield Check("cuda launcher", in_c, launcher, fix)
