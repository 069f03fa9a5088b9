"""Faults of installed libraries from public reports, each in a few lines without nxcore.

``python benchmarks/wall.py`` runs each case in a process of its own on the CUDA device, and prints ``wrong``,
``right``, ``raised`` or ``absent`` with the error over what is allowed; ``--json FILE`` writes it too.
A case returns what the library gave and what is right, which torch computes in float64 on the CPU.
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import randn
from torch.nn import functional

SECONDS = 120
Pair = tuple[Any, Any]


def flaggems_group_norm() -> Pair:
    """Float32, 16 groups of 3 channels: no power of two."""
    import flag_gems

    x, w, b = randn(1, 48, 32, 32), randn(48), randn(48)
    with flag_gems.use_gems():
        got = functional.group_norm(x.cuda(), 16, w.cuda(), b.cuda())
    return got, functional.group_norm(x.double(), 16, w.double(), b.double())


def flaggems_layer_norm_backward() -> Pair:
    """Rank 3."""
    import flag_gems

    x, g = randn(2, 3, 8), randn(2, 3, 8)
    w = torch.ones(8, device="cuda", requires_grad=True)
    with flag_gems.use_gems():
        functional.layer_norm(x.cuda(), (8,), w, torch.zeros_like(w)).backward(g.cuda())
    return w.grad, (functional.layer_norm(x.double(), (8,)) * g).sum((0, 1))


def flaggems_softmax_transposed() -> Pair:
    """Strides reversed."""
    import flag_gems

    x = randn(32, 32)
    with flag_gems.use_gems():
        got = x.cuda().t().softmax(-1)
    return got, x.double().t().softmax(-1)


def flaggems_topk_transposed() -> Pair:
    """Strides reversed."""
    import flag_gems

    x = randn(32, 32)
    with flag_gems.use_gems():
        got = x.cuda().t().topk(4).values
    return got, x.double().t().topk(4).values


def flaggems_scatter_add_expanded() -> Pair:
    """An index with a stride of 0."""
    import flag_gems

    x, src, index = torch.zeros(8, 16), randn(8, 16), torch.randint(8, (8, 1)).expand(8, 16)
    with flag_gems.use_gems():
        got = x.cuda().scatter_add(0, index.cuda()[:, :1].expand(8, 16), src.cuda())
    return got, x.double().scatter_add(0, index, src.double())


def flaggems_max_of_nan() -> Pair:
    """NaN is the maximum of a row that has one."""
    import flag_gems

    x = randn(4, 64)
    x[1, 5] = float("nan")
    with flag_gems.use_gems():
        got = x.cuda().max(-1).values
    return got, x.double().max(-1).values


def flaggems_batch_norm_without_statistics() -> Pair:
    """In training, without running statistics."""
    import flag_gems

    x = randn(4, 3, 5, 5)
    with flag_gems.use_gems():
        got = functional.batch_norm(x.cuda(), None, None, training=True)
    return got, functional.batch_norm(x.double(), None, None, training=True)


def liger_group_norm_backward() -> Pair:
    """Two channels in each of two groups."""
    from liger_kernel.transformers.functional import liger_group_norm

    x, w, g = randn(2, 4, 4, 4), randn(4), randn(2, 4, 4, 4)
    mine, right = x.cuda().requires_grad_(), x.double().requires_grad_()
    liger_group_norm(mine, w.cuda(), torch.zeros(4).cuda(), 4, 2, 1e-5).backward(g.cuda())
    functional.group_norm(right, 2, w.double()).backward(g.double())
    return mine.grad, right.grad


def liger_cross_entropy_writes_logits() -> Pair:
    """The logits, which softmax keeps for its own gradient, after the loss."""
    from liger_kernel.transformers.functional import liger_cross_entropy

    x = randn(4, 8)
    logits = x.cuda().requires_grad_().softmax(-1)
    liger_cross_entropy(logits, torch.arange(4).cuda())
    return logits, x.double().softmax(-1)


def liger_rms_norm_writes_gradient() -> Pair:
    """The incoming gradient goes two ways, as at a residual."""
    from liger_kernel.transformers.functional import liger_rms_norm

    x, w, g = randn(4, 8), torch.ones(8), randn(4, 8)
    incoming = g.cuda()
    liger_rms_norm(x.cuda().requires_grad_(), w.cuda(), 1e-6).backward(incoming)
    return incoming, g


def liger_rope_of_one_head() -> Pair:
    """One head of keys: the rotated one must be new, and right."""
    from liger_kernel.transformers.functional import liger_rope

    k, angle = randn(1, 1, 2, 128), torch.rand(1, 2, 64).repeat(1, 1, 2)
    cos, sin, half = angle.double().cos(), angle.double().sin(), torch.cat([-k[..., 64:], k[..., :64]], -1)
    got = liger_rope(k.cuda(), k.cuda(), angle.cos().cuda(), angle.sin().cuda())[1]
    return got, k.double() * cos + half.double() * sin


def liger_jsd_of_small_probabilities() -> Pair:
    """Both logarithms below -104, where float32 has no exponential: 0 to its last digit, and no NaN."""
    from liger_kernel.transformers.functional import liger_jsd

    p, q = torch.tensor([[0.0, -110.0]]), torch.tensor([[0.0, -120.0]])
    got = liger_jsd(p.cuda(), q.cuda())
    a, b = p.double(), q.double()
    m = torch.logaddexp(a, b) - torch.tensor(2.0).double().log()
    return got, (a.exp() * (a - m) + b.exp() * (b - m)).sum() / 2


def liger_rms_norm_of_many_rows() -> Pair:
    """More than 2^31 elements in bfloat16: the last rows."""
    from liger_kernel.transformers.functional import liger_rms_norm

    x = torch.ones(2**23 + 16, 256, dtype=torch.bfloat16, device="cuda")
    x[-16:, :128] = 3
    got = liger_rms_norm(x, x.new_ones(256), 1e-6, in_place=False)[-16:]
    return got, functional.rms_norm(x[-16:].double().cpu(), (256,), eps=1e-6)


def fla_causal_conv_of_expanded_gradient() -> Pair:
    """The gradient of a sum: its strides are 0."""
    from fla.modules.causal_conv1d import causal_conv1d

    x, w = randn(1, 16, 32), randn(32, 4)
    mine, right = x.cuda().requires_grad_(), x.double().requires_grad_()
    causal_conv1d(mine, w.cuda())[0].sum().backward()
    functional.conv1d(functional.pad(right.mT, (3, 0)), w.double()[:, None], groups=32).sum().backward()
    return mine.grad, right.grad


CASES: dict[str, Callable[[], Pair]] = {
    name: case
    for name, case in list(vars().items())
    if inspect.isfunction(case) and name.startswith(("flaggems_", "liger_", "fla_"))
}


def apart(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the error in the 2-norm over what is allowed; infinite if NaN is elsewhere.

    Allowed is far more than rounding makes: a 64th in bfloat16, else a thousandth; or 100 of the smallest
    normal numbers, for a result that float32 can't hold.
    """
    share = 2.0**-6 if got.dtype is torch.bfloat16 else 1e-3
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    if got.shape != want.shape or not torch.equal(got.isnan(), want.isnan()):
        return float("inf")
    got, want = got.nan_to_num(), want.nan_to_num()
    allowed = share * float(want.norm()) + 100 * torch.finfo(torch.float32).tiny
    return float((got - want).norm()) / allowed


def held(name: str) -> dict[str, Any]:
    """Run a case in this process."""
    torch.manual_seed(0)
    try:
        error = apart(*CASES[name]())
    except ImportError as missing:
        return {"case": name, "outcome": "absent", "why": str(missing)}
    except Exception as raised:  # noqa: BLE001  a library may raise anything
        traceback.print_exc(limit=3)
        why = f"{type(raised).__name__}: {str(raised).splitlines()[0] if str(raised) else ''}"
        return {"case": name, "outcome": "raised", "why": why[:300]}
    return {"case": name, "outcome": "right" if error <= 1 else "wrong", "error": error}


def alone(name: str) -> dict[str, Any]:
    """Run a case in a process of its own."""
    command = [sys.executable, __file__, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as why:
        return {"case": name, "outcome": "raised", "why": f"{type(why).__name__}: the process ended"}
    return found


def main() -> int:
    """Run one case, or each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=CASES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=6, help="Cases at a time.")
    asked = parser.parse_args()
    if asked.name:
        print(json.dumps(held(asked.name)))  # noqa: TID251  without nxcore
        return 0
    rows = []
    with ThreadPoolExecutor(asked.workers) as pool:
        for said in pool.map(alone, CASES):
            rows.append(said)
            print(
                f"{said['case']:45} {said['outcome']:8} {said.get('error', said.get('why', ''))}", flush=True
            )
    if asked.json:
        text = json.dumps({"device": device(), "cases": rows}, indent=1)  # noqa: TID251  without nxcore
        asked.json.write_text(text)
    return 0


def device() -> dict[str, str]:
    """Return the device and the versions that the cases ran with."""
    from importlib.metadata import PackageNotFoundError, version

    found = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "torch": torch.__version__,
    }
    for name in ("triton", "liger-kernel", "flag-gems", "fla-core", "cut-cross-entropy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


if __name__ == "__main__":
    sys.exit(main())
