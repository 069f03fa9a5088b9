"""Right kernels that add up in other orders and precisions than torch, as kernels for devices do."""

import math

import torch
from torch import Tensor

from tests.harnesses.tasks import softmax


def softmax_online(x: Tensor) -> Tensor:
    """Go through blocks of 48 columns with a running maximum and sum, as flash attention does."""
    if not x.shape[-1]:
        return torch.empty_like(x)
    m = torch.full((*x.shape[:-1], 1), -math.inf, dtype=x.dtype, device=x.device)
    s = torch.zeros_like(m)
    for part in x.split(48, -1):
        new = torch.maximum(m, part.amax(-1, keepdim=True))
        base = new.where(new != -math.inf, torch.zeros_like(new))
        s = s * (m - base).exp() + (part - base).exp().sum(-1, keepdim=True)
        m = new
    return (x - m).exp() / s


def softmax_of_double(x: Tensor) -> Tensor:
    """Compute in float64 and round once."""
    return torch.softmax(x.double(), -1).to(x.dtype)


def softmax_by_two_exponentials(x: Tensor) -> Tensor:
    """Use 2^x with a factor of log2(e), as kernels do for speed."""
    if not x.shape[-1]:
        return torch.empty_like(x)
    e = torch.exp2((x - x.amax(-1, keepdim=True)) * math.log2(math.e))
    return e / e.sum(-1, keepdim=True)


def log_softmax_by_parts(x: Tensor) -> Tensor:
    """Subtract the maximum and the logarithm of the sum, one after the other."""
    if not x.shape[-1]:
        return torch.empty_like(x)
    y = x - x.amax(-1, keepdim=True)
    return y - y.exp().sum(-1, keepdim=True).log()


def logsumexp_of_halves(x: Tensor) -> Tensor:
    """Combine two halves by logaddexp."""
    half = x.shape[-1] // 2
    if not half:
        return torch.logsumexp(x, -1)
    return torch.logaddexp(torch.logsumexp(x[..., :half], -1), torch.logsumexp(x[..., half:], -1))


def layer_norm_two_passes(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Take the mean, then the mean of the squared differences."""
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5) * weight + bias


def layer_norm_by_welford(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Combine means and squares of blocks of 32 columns by Chan's formula."""
    n = 0
    mean, square = x.new_zeros(x.shape[:-1]), x.new_zeros(x.shape[:-1])
    for part in x.split(32, -1):
        k = part.shape[-1]
        if not k:
            continue
        m = part.mean(-1)
        q = (part - m.unsqueeze(-1)).square().sum(-1)
        gap = m - mean
        mean = mean + gap * (k / (n + k))
        square = square + q + gap * gap * (n * k / (n + k))
        n += k
    scale = torch.rsqrt(square / max(n, 1) + 1e-5).unsqueeze(-1)
    return (x - mean.unsqueeze(-1)) * scale * weight + bias


def rms_norm_of_reversed(x: Tensor, weight: Tensor) -> Tensor:
    """Add the squares up from the end, and divide by the root."""
    return x / (x.flip(-1).square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def rms_norm_weight_first(x: Tensor, weight: Tensor) -> Tensor:
    """Scale before the root is divided by."""
    return (x * weight) * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def batch_norm_by_channel(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Fold the statistics into one factor and one summand of each channel."""
    dims = (0, *range(2, x.ndim))
    m = x.mean(dims)
    shape = (1, -1, *[1] * (x.ndim - 2))
    v = (x - m.view(shape)).square().mean(dims)
    return (x - m.view(shape)) * (weight * torch.rsqrt(v + 1e-5)).view(shape) + bias.view(shape)


def total_by_blocks(x: Tensor) -> Tensor:
    """Add blocks of 64, then their sums, as the threads of a block do."""
    return torch.stack([part.sum(-1) for part in x.split(64, -1)], -1).sum(-1)


def total_by_halves(x: Tensor) -> Tensor:
    """Add the two halves until one number is left."""
    while x.shape[-1] > 1:
        half = (x.shape[-1] + 1) // 2
        low, high = x[..., :half], x[..., half:]
        x = low + torch.nn.functional.pad(high, (0, half - high.shape[-1]))
    return x.sum(-1)


def mean_of_scaled(x: Tensor) -> Tensor:
    """Divide each number before the sum."""
    return (x / x.shape[-1]).sum(-1) if x.shape[-1] else x.mean(-1)


def largest_by_blocks(x: Tensor) -> Tensor:
    """Take the maximum of blocks of 64 and of these."""
    return torch.stack([part.amax(-1) for part in x.split(64, -1)], -1).amax(-1)


def cumsum_with_carry(x: Tensor) -> Tensor:
    """Scan blocks of 128 and add the carry."""
    parts, carry = [], x.new_zeros((*x.shape[:-1], 1))
    for part in x.split(128, -1):
        parts.append(part.cumsum(-1) + carry)
        carry = parts[-1][..., -1:] if part.shape[-1] else carry
    return torch.cat(parts, -1)


def matmul_by_blocks(a: Tensor, b: Tensor) -> Tensor:
    """Add products of 32 columns and rows, in reverse order."""
    parts = [p @ q for p, q in zip(a.split(32, -1), b.split(32, 0), strict=True)]
    return torch.stack(parts[::-1]).sum(0)


def gelu_by_erfc(x: Tensor) -> Tensor:
    """Use the complementary error function, which is exact far from zero."""
    return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))


def silu_mul_fused(x: Tensor, y: Tensor) -> Tensor:
    """Divide by 1 + e^-x."""
    return x / (1 + (-x).exp()) * y


def cross_entropy_gathered(logits: Tensor, target: Tensor) -> Tensor:
    """Subtract the target's logit from the logarithm of the sum, and leave ignored rows out."""
    kept = target != -100
    chosen = logits.gather(-1, target.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    loss = (torch.logsumexp(logits, -1) - chosen).where(kept, logits.new_zeros(()))
    return loss.sum() / kept.sum()


def attention_of_double(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scale the queries first, and take the sums in float64."""
    q, k, v, kind = q.double() / math.sqrt(q.shape[-1]), k.double(), v.double(), q.dtype
    return (softmax(q @ k.mT) @ v).to(kind)
