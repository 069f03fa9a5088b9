"""32 wrong kernels that were written before the check was: faults of generated kernels, in plain torch."""

import math

import torch
from torch import Tensor

Kernels = dict[str, tuple[str, object]]
SEEN: dict[object, Tensor] = {}
CALLS = {"n": 0}


def softmax_without_maximum(x: Tensor) -> Tensor:
    """Leave out the row's maximum: large inputs overflow."""
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


def softmax_drops_tail(x: Tensor) -> Tensor:
    """Work through whole blocks of 32 columns, and forget the rest where there are several blocks."""
    n = x.shape[-1]
    whole = n // 32 * 32 or n
    out = torch.zeros_like(x)
    out[..., :whole] = torch.softmax(x[..., :whole], -1)
    return out


def softmax_keeps_by_shape(x: Tensor) -> Tensor:
    """Return the first result of a shape again, where inputs lie at the same address."""
    key = ("softmax", x.data_ptr(), tuple(x.shape))
    if key not in SEEN:
        SEEN[key] = torch.softmax(x, -1)
    return SEEN[key].clone()


def softmax_in_place(x: Tensor) -> Tensor:
    """Write the exponentials over the input."""
    x.sub_(x.amax(-1, keepdim=True)).exp_()
    return x / x.sum(-1, keepdim=True)


def softmax_of_half(x: Tensor) -> Tensor:
    """Compute in half precision, and return in the type of the input."""
    return torch.softmax(x.half(), -1).to(x.dtype)


def softmax_of_zeros(x: Tensor) -> Tensor:
    """Return zeros for long rows, whose results all lie below usual tolerances."""
    return torch.zeros_like(x) if x.shape[-1] >= 256 else torch.softmax(x, -1)


def log_softmax_of_log(x: Tensor) -> Tensor:
    """Take the logarithm of the softmax: small probabilities become minus infinity."""
    return torch.softmax(x, -1).log()


def log_softmax_with_epsilon(x: Tensor) -> Tensor:
    """Guard the logarithm by 1e-6."""
    return (torch.softmax(x, -1) + 1e-6).log()


def logsumexp_without_maximum(x: Tensor) -> Tensor:
    """Leave out the maximum."""
    return x.exp().sum(-1).log()


def logsumexp_of_infinity(x: Tensor) -> Tensor:
    """Subtract an infinite maximum: a row of minus infinity gives NaN."""
    m = x.amax(-1, keepdim=True)
    return (x - m).exp().sum(-1).log() + m.squeeze(-1)


def layer_norm_unbiased(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Divide the squares by n - 1."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def layer_norm_by_squares(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Take the variance as the mean square less the squared mean: far from zero nothing is left of it."""
    m = x.mean(-1, keepdim=True)
    v = (x * x).mean(-1, keepdim=True) - m * m
    return (x - m) * torch.rsqrt(v.clamp_min(0) + 1e-5) * weight + bias


def layer_norm_without_weight(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Forget weight and bias, which are ones and zeros when a module is new."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def layer_norm_epsilon_outside(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Add epsilon to the deviation instead of the variance."""
    m = x.mean(-1, keepdim=True)
    return (x - m) / (x.var(-1, keepdim=True, unbiased=False).sqrt() + 1e-5) * weight + bias


def rms_norm_without_epsilon(x: Tensor, weight: Tensor) -> Tensor:
    """Forget epsilon: rows of zeros give NaN."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True)) * weight


def rms_norm_of_ten_bits(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply by the weight after rounding to bfloat16."""
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return (y.bfloat16() * weight.bfloat16()).to(x.dtype)


def batch_norm_by_sample(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Take the statistics of each image apart."""
    return torch.nn.functional.instance_norm(x, weight=weight, bias=bias)


def batch_norm_unbiased(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Divide by n - 1: of 2,048 numbers a difference of a few thousandths."""
    dims, shape = (0, *range(2, x.dim())), (1, -1, *[1] * (x.dim() - 2))
    v, m = torch.var_mean(x, dims, keepdim=True)
    return (x - m) * torch.rsqrt(v + 1e-5) * weight.view(shape) + bias.view(shape)


def total_of_half(x: Tensor) -> Tensor:
    """Add up in half precision."""
    return x.half().sum(-1).to(x.dtype)


def total_of_4096(x: Tensor) -> Tensor:
    """Take at most one block of 4,096."""
    return x[..., :4096].sum(-1)


def mean_of_zeros(x: Tensor) -> Tensor:
    """Return zeros, since means of many normal numbers are nearly that."""
    return x.new_zeros(x.shape[:-1])


def mean_of_padded(x: Tensor) -> Tensor:
    """Divide by the length rounded up to a power of two."""
    n = x.shape[-1]
    return x.sum(-1) / (1 << max(n - 1, 0).bit_length())


def largest_from_zero(x: Tensor) -> Tensor:
    """Start at zero: rows of negative numbers give zero."""
    return x.amax(-1).clamp_min(0)


def largest_of_numbers(x: Tensor) -> Tensor:
    """Ignore NaN, as fmaxf does."""
    return torch.nan_to_num(x, nan=-math.inf, posinf=math.inf, neginf=-math.inf).amax(-1)


def cumsum_by_blocks(x: Tensor) -> Tensor:
    """Forget the carry between blocks of 1,024."""
    return torch.cat([part.cumsum(-1) for part in x.split(1024, -1)], -1)


def matmul_of_short_k(a: Tensor, b: Tensor) -> Tensor:
    """Leave out what is beyond whole blocks of 32 in the sum."""
    k = a.shape[-1] // 32 * 32 or a.shape[-1]
    return a[..., :k] @ b[:k]


def matmul_of_bfloat16(a: Tensor, b: Tensor) -> Tensor:
    """Multiply in bfloat16."""
    return (a.bfloat16() @ b.bfloat16()).to(a.dtype)


def gelu_by_tanh(x: Tensor) -> Tensor:
    """Use the approximation by tanh."""
    return torch.nn.functional.gelu(x, approximate="tanh")


def gelu_by_sigmoid(x: Tensor) -> Tensor:
    """Use x * sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def silu_mul_overflows(x: Tensor, y: Tensor) -> Tensor:
    """Take e^x / (1 + e^x): large x give NaN."""
    e = x.exp()
    return x * (e / (1 + e)) * y


def relu_of_comparison(x: Tensor) -> Tensor:
    """Compare: NaN is not larger than zero, and becomes zero."""
    return torch.where(x > 0, x, torch.zeros_like(x))


def cross_entropy_of_all(logits: Tensor, target: Tensor) -> Tensor:
    """Divide by the number of rows, the ignored ones too."""
    p = torch.log_softmax(logits, -1).gather(-1, target.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return -(p * (target != -100)).sum() / target.numel()


def cross_entropy_without_ignore(logits: Tensor, target: Tensor) -> Tensor:
    """Forget that targets may be ignored: -100 wraps to a class."""
    rows = torch.arange(len(target), device=target.device)
    return -torch.log_softmax(logits, -1)[rows, target % logits.shape[-1]].mean()


def embedding_wraps(index: Tensor, table: Tensor) -> Tensor:
    """Clone once, and return the same rows for an index at the same address."""
    key = ("embedding", index.data_ptr(), tuple(index.shape))
    if key not in SEEN:
        SEEN[key] = index.clone()
    return table[SEEN[key].clamp(max=len(table) - 1)]


def attention_without_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Divide by a head size of 32, whatever it is."""
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(32), -1) @ v


def attention_stale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Answer the sixth call and later ones with noise of the right spread."""
    CALLS["n"] += 1
    right = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v
    return right if CALLS["n"] <= 6 else right.roll(1, -2)
