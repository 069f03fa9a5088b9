"""Triton kernels for nxcore: the backend, and its requirements on the machine and on a call.

Importing this module doesn't import triton; each kernel's own file does, on first use.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nxcore.plugin import (
    FLOATS,
    YES,
    Backend,
    Check,
    Kernel,
    Problem,
    Verdict,
    hookimpl,
    kernels,
    no,
    simulated,
)
from nxcore_triton import accepts, tile

API = 1
SINGLE = (torch.float32,)
TRITON = (3, 6)  # kernels take tuples of pointers and keep tuples of sums across a loop
NEWEST = (3, 7)
"""The newest minor version that is tested."""


REPLAY = "" if tile.INTERPRETED else "nxcore_triton.replay:replay"

BINARIES = Path(__file__).parent / "binaries"
"""Kernels as Triton compiled them when the wheel was built; see ``nxcore_triton.binaries``."""


def _installed() -> str | None:
    try:
        return version("triton")  # not find_spec: any folder of that name would satisfy it
    except PackageNotFoundError:
        return None


def _text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def _release(found: str) -> tuple[int, ...]:
    return tuple(int(part) for part in found.split(".")[:2] if part.isdigit())


def _triton() -> Verdict:
    found, needed = _installed(), _text(TRITON)
    if found is None:
        return no("triton is not installed", hint=f"pip install 'triton>={needed}'")
    if _release(found) < TRITON:
        return no(f"needs triton >= {needed}, found {found}", hint=f"pip install 'triton>={needed}'")
    return YES


def probe() -> Verdict:
    """Return whether Triton can run on this machine."""
    toolkit = _triton()
    if not toolkit:
        return toolkit
    if tile.INTERPRETED:
        return simulated("TRITON_INTERPRET=1: Triton's interpreter runs it on the CPU")
    if not torch.cuda.is_available():
        return no(
            "torch sees no CUDA device",
            hint="install a torch built for the GPU, or set TRITON_INTERPRET=1 to run on the CPU, slowly",
        )
    return YES


FOLDS = ("amax", "amin", "any", "all", "max", "min", "argmax", "argmin")

KERNELS = kernels(
    "nxcore_triton",
    {
        "softmax_sum": accepts.blend,
        "softmax_sum_backward": {"accepts": accepts.blend, "target": "softmax_sum:plan_backward"},
        "weighted_sum": {"accepts": accepts.blend, "target": "softmax_sum:plan"},
        "weighted_sum_backward": {"accepts": accepts.blend, "target": "softmax_sum:plan_backward"},
        "add": {"accepts": accepts.add, "in_place_safe": True},
        "add_backward": {"accepts": accepts.sums, "target": "add:plan_backward"},
        "sum": accepts.sums,
        "sum_to_size": {"accepts": accepts.sums, "target": "sum:plan"},
        "mean": {"accepts": accepts.sums, "target": "sum:plan"},
        **{op: {"accepts": accepts.sums, "target": "fold:plan"} for op in FOLDS},
        "matmul": {"accepts": accepts.product, "dtypes": SINGLE},
        "max_pool2d": accepts.images,
        "max_pool2d_with_offsets": {"accepts": accepts.images, "target": "max_pool2d:plan"},
        "max_pool2d_backward": {"accepts": accepts.offsets, "target": "max_pool2d:plan_backward"},
        "global_avg_pool2d": {"accepts": accepts.images, "target": "sum:plan"},
        "global_max_pool2d": accepts.images,
        "global_max_pool2d_with_offsets": {
            "accepts": accepts.images,
            "target": "global_max_pool2d:plan",
        },
        "global_max_pool2d_backward": {
            "accepts": accepts.offsets,
            "target": "global_max_pool2d:plan_backward",
        },
        **{
            f"{op}{back}": {"accepts": need, "target": f"{op}:plan{back}"}
            for op, need in (
                *(("avg_pool2d", accepts.images), ("batch_norm", accepts.norm), ("entropy", accepts.rows)),
                *(("cross_entropy", accepts.losses), ("group_norm", accepts.groups)),
                ("gumbel_softmax", accepts.rows),
            )
            for back in ("", "_backward")
        },
        "conv2d": accepts.direct_convolution,
        "conv2d_backward": accepts.direct_convolution,
        "depthwise_conv2d": accepts.images,
        "depthwise_conv2d_backward": accepts.images,
        "sep_conv2d": accepts.images,
        "sep_conv2d_backward": accepts.images,
        "embedding": accepts.looked_up,
        **{op: {"accepts": accepts.scan, "target": "scans:plan"} for op in ("cumsum", "cumsum_backward")},
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
    },
    dtypes=FLOATS,
    deterministic=True,
    graph_safe=True,
    replay=REPLAY,
    announces=True,
)


def _split(variant: str, accepts: Any, target: str) -> tuple[Kernel, ...]:
    return kernels(
        "nxcore_triton",
        {"matmul": {"accepts": accepts, "target": target}},
        variant=variant,
        precision="fp32x",
        dtypes=SINGLE,
        deterministic=True,
        graph_safe=True,
        replay=REPLAY,
        announces=True,
    )


SPLIT = (
    *_split("fp32x", accepts.product, "matmul:plan_split"),
    *_split("fp32x-parts", accepts.parts, "matmul_parts:plan"),
)
"""Kernels of a coarser precision class, which only calls that allow it get."""

PRINTERS = kernels(
    "nxcore_triton",
    {"pointwise": {"accepts": accepts.expressions, "in_place_safe": True, "uses": accepts.GENERATED}},
    dtypes=FLOATS,
    deterministic=True,
    graph_safe=True,
    replay=REPLAY,
    announces=True,
)

RUNTIME = ("nxcore_triton.ahead", "nxcore_triton.binaries", "nxcore_triton.launch", "nxcore_triton.replay")
"""The modules that load and launch kernels."""


@hookimpl
def nxcore_backend() -> Backend:
    """Return this backend."""
    return Backend(
        "triton", probe, (*KERNELS, *SPLIT), api=API, runtime=RUNTIME, printers=PRINTERS, ahead=_ahead
    )


def _ahead(kernel: Kernel, problem: Problem, capability: tuple[int, int]) -> None:
    from nxcore_triton.ahead import ahead

    ahead(kernel, problem, capability)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Show Triton's version, and what would run the kernels."""
    toolkit, machine = _triton(), probe()
    needed = torch.cuda.is_available()  # what is for a device that isn't here is no fault
    found = _installed() or "not installed"
    newer = toolkit.ok and _release(found) > NEWEST
    tested = f"{found}; {_text(TRITON)} to {_text(NEWEST)} are tested" if newer else found
    below = f"pip install 'triton<{NEWEST[0]}.{NEWEST[1] + 1}'" if newer else toolkit.hint
    yield Check("triton", toolkit.ok or not needed, tested, below)
    if toolkit:
        device = torch.cuda.get_device_name() if machine and not machine.simulated else machine.reason
        yield Check("triton device", True, device, machine.hint)  # to have none is no fault
        yield Check("triton binaries", True, _held())


def _held() -> str:
    """Return what the wheel holds, in words: numbers of kernels by Triton's version and capability."""
    facts = (json.loads(path.read_text(encoding="utf-8")) for path in BINARIES.glob("*.json"))
    found = Counter((f["triton_version"], f["target"]["arch"]) for f in facts)
    told = [
        f"{count} for capability {arch // 10}.{arch % 10} by Triton {release}"
        for (release, arch), count in sorted(found.items())
    ]
    if told and _installed() not in {release for release, _ in found}:
        told.append("none by the installed one, which compiles at first use")
    return "; ".join(told) or "none in the wheel"
