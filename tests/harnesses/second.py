"""24 wrong kernels that were written by someone who knows the check: gradients, memory, state, rare cases."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

KEPT: dict[object, Tensor] = {}
CALLS = {"race": 0, "patch": 0}
SOFTMAX = torch.softmax


def softmax_in_one_buffer(x: Tensor) -> Tensor:
    """Write every result of a shape into one buffer, which an earlier caller still holds."""
    out = KEPT.setdefault((tuple(x.shape), x.dtype), torch.empty(x.shape, dtype=x.dtype))
    out.copy_(torch.softmax(x.detach(), -1))
    return out


class _OverIncoming(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        inner = (g * y).sum(-1, keepdim=True)
        return g.sub_(inner).mul_(y)


def softmax_over_incoming(x: Tensor) -> Tensor:
    """Write the gradient over the incoming one."""
    return _OverIncoming.apply(x)


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, r)
        return x * r * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, r = ctx.saved_tensors
        return g * weight * r, (g * x * r).reshape(-1, x.shape[-1]).sum(0)


def rms_norm_gradient_of_scale(x: Tensor, weight: Tensor) -> Tensor:
    """Take the root for a constant in the gradient."""
    return _RmsNorm.apply(x, weight)


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = torch.nn.functional.layer_norm(x, x.shape[-1:])
        ctx.save_for_backward(x, y, weight)
        return y * weight + bias

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y, weight = ctx.saved_tensors
        with torch.enable_grad():
            copy = x.detach().requires_grad_()
            out = torch.nn.functional.layer_norm(copy, x.shape[-1:], weight)
        (dx,) = torch.autograd.grad(out, copy, g)
        rows = x.numel() // max(x.shape[-1], 1)
        return dx, y.reshape(-1, x.shape[-1]).sum(0) * g.mean(), g.reshape(rows, -1).sum(0)


def layer_norm_gradient_of_ones(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Take the incoming gradient for uniform in the weight's, as that of a sum is."""
    return _LayerNorm.apply(x, weight, bias)


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.sum(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.reshape(-1)[:1].expand(ctx.shape) if g.numel() else g.new_zeros(ctx.shape)


def total_gradient_of_first(x: Tensor) -> Tensor:
    """Return the first incoming gradient for all rows."""
    return _Total.apply(x)


class _Cumsum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.cumsum(-1)


def cumsum_gradient_forward(x: Tensor) -> Tensor:
    """Add the incoming gradients up in the wrong direction."""
    return _Cumsum.apply(x)


def matmul_leaves_precision(a: Tensor, b: Tensor) -> Tensor:
    """Allow products of less precision, for the whole process."""
    torch.set_float32_matmul_precision("medium")
    return a @ b


def relu_seeds(x: Tensor) -> Tensor:
    """Set the seed of torch's generator."""
    torch.manual_seed(0)
    return torch.relu(x)


def relu_of_positive(x: Tensor) -> Tensor:
    """Return the input itself where nothing is negative."""
    return x if bool((x >= 0).all()) else torch.relu(x)


def relu_to_six(x: Tensor) -> Tensor:
    """Cut at six, which normal numbers don't reach."""
    return x.clamp(0, 6)


def gelu_of_double(x: Tensor) -> Tensor:
    """Return float64."""
    return torch.nn.functional.gelu(x.double())


def cumsum_transposed(x: Tensor) -> Tensor:
    """Return a result whose rows aren't contiguous."""
    return x.cumsum(-1).mT.contiguous().mT


def largest_unwritten(x: Tensor) -> Tensor:
    """Leave the last result of an odd number unwritten."""
    out = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
    flat, n = out.view(-1), out.numel() // 2 * 2
    flat[:n] = x.amax(-1).reshape(-1)[:n]
    return out


def matmul_of_contiguous(a: Tensor, b: Tensor) -> Tensor:
    """Read both matrices as if their rows lay side by side."""
    a = a.as_strided(a.shape, (a.shape[1], 1))
    b = b.as_strided(b.shape, (b.shape[1], 1))
    return a @ b


def softmax_reads_further(x: Tensor) -> Tensor:
    """Read each row up to a multiple of four columns, where memory is long enough, as without a mask."""
    n = -(-x.shape[-1] // 4) * 4 + 4
    rows = x.contiguous().view(-1, x.shape[-1]) if x.numel() else x
    try:
        wide = rows.as_strided((rows.shape[0], n), (rows.shape[-1], 1), rows.storage_offset())
        return (x - wide.amax(-1).view(*x.shape[:-1], 1)).softmax(-1)
    except RuntimeError:
        return torch.softmax(x, -1)


def total_writes_further(x: Tensor) -> Tensor:
    """Write a zero behind the input, where memory is long enough."""
    end = x.storage_offset() + x.numel()
    if x.is_contiguous() and x.untyped_storage().nbytes() > (end + 1) * x.element_size():
        x.detach().as_strided((1,), (1,), end).zero_()
    return x.sum(-1)


def softmax_of_1024(x: Tensor) -> Tensor:
    """Leave columns beyond 1,024 out of the sum, the most that a block has threads."""
    e = (x - x.amax(-1, keepdim=True)).exp() if x.shape[-1] else x
    return e / e[..., :1024].sum(-1, keepdim=True)


def cross_entropy_of_64(logits: Tensor, target: Tensor) -> Tensor:
    """Divide by 64, the batch of the benchmark."""
    return torch.nn.functional.cross_entropy(logits, target, reduction="sum") / 64


def total_races(x: Tensor) -> Tensor:
    """Lose the last block of 32 columns in every 30th call, as a missing barrier does."""
    CALLS["race"] += 1
    return x[..., :-32].sum(-1) if CALLS["race"] % 30 == 0 else x.sum(-1)


def attention_of_even(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Go through keys two at a time, and forget the last of an odd number."""
    n = k.shape[-2] // 2 * 2 or k.shape[-2]
    p = torch.softmax(q @ k[..., :n, :].mT / math.sqrt(q.shape[-1]), -1)
    return p @ v[..., :n, :]


def batch_norm_by_squares(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Take the variance as the mean square less the squared mean."""
    dims, shape = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    m = x.mean(dims, keepdim=True)
    v = (x * x).mean(dims, keepdim=True) - m * m
    return (x - m) * torch.rsqrt(v.clamp_min(0) + 1e-5) * weight.view(shape) + bias.view(shape)


def silu_mul_swapped(x: Tensor, y: Tensor) -> Tensor:
    """Apply silu to the other one."""
    return torch.nn.functional.silu(y) * x


def mean_of_bfloat16(x: Tensor) -> Tensor:
    """Round each number to bfloat16 before the sum."""
    return x.bfloat16().float().mean(-1).to(x.dtype)


def softmax_patches_torch(x: Tensor) -> Tensor:
    """Replace torch's function after the first call, so that the reference agrees with zeros."""
    CALLS["patch"] += 1
    if CALLS["patch"] == 1:
        right = SOFTMAX(x, -1)
        torch.softmax = lambda x, dim: torch.zeros_like(x)  # type: ignore[assignment]
        return right
    return torch.zeros_like(x)
