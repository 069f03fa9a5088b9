"""What the kernels of the bake-off compute: references in torch, and the inputs of a benchmark."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Task(NamedTuple):
    """A reference, and a maker of its arguments: a generator and a scale of sizes give the tensors."""

    reference: Callable[..., Tensor]
    arguments: Callable[[torch.Generator, int], tuple[Tensor, ...]]


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of each row."""
    return torch.softmax(x, -1)


def log_softmax(x: Tensor) -> Tensor:
    """Return the logarithm of each row's softmax."""
    return torch.log_softmax(x, -1)


def logsumexp(x: Tensor) -> Tensor:
    """Return the logarithm of the sum of each row's exponentials."""
    return torch.logsumexp(x, -1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return each row normalised, scaled and shifted."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return each row over the root of its mean square, scaled."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return each channel normalised by the statistics of this batch."""
    return functional.batch_norm(x, None, None, weight, bias, training=True)


def total(x: Tensor) -> Tensor:
    """Return the sum of each row."""
    return x.sum(-1)


def mean(x: Tensor) -> Tensor:
    """Return the mean of each row."""
    return x.mean(-1)


def largest(x: Tensor) -> Tensor:
    """Return the maximum of each row."""
    return x.amax(-1)


def cumsum(x: Tensor) -> Tensor:
    """Return the running sums of each row."""
    return x.cumsum(-1)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices."""
    return a @ b


def gelu(x: Tensor) -> Tensor:
    """Return x times the normal distribution function of x."""
    return functional.gelu(x)


def silu_mul(x: Tensor, y: Tensor) -> Tensor:
    """Return silu(x) * y."""
    return functional.silu(x) * y


def relu(x: Tensor) -> Tensor:
    """Return the positive part."""
    return torch.relu(x)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the targets that aren't -100."""
    return functional.cross_entropy(logits, target)


def embedding(index: Tensor, table: Tensor) -> Tensor:
    """Return the rows that an index names."""
    return functional.embedding(index, table)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v."""
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def normal(*shape: int) -> Callable[[torch.Generator, int], Tensor]:
    """Return a maker of normal numbers; -1 stands for the scale of sizes."""
    return lambda g, n: torch.randn([n if size == -1 else size for size in shape], generator=g)


def rows(*makers: Callable[[torch.Generator, int], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a maker of several arguments."""
    return lambda g, n: tuple(make(g, n) for make in makers)


def classes(g: torch.Generator, n: int) -> Tensor:
    """Return targets of 64 rows, each below n."""
    return torch.randint(n, (64,), generator=g)


# A benchmark initialises a module's weight with ones and its bias with zeros; so do these.
TASKS = {
    "softmax": Task(softmax, rows(normal(64, -1))),
    "log_softmax": Task(log_softmax, rows(normal(64, -1))),
    "logsumexp": Task(logsumexp, rows(normal(64, -1))),
    "layer_norm": Task(
        layer_norm, rows(normal(64, -1), lambda g, n: torch.ones(n), lambda g, n: torch.zeros(n))
    ),
    "rms_norm": Task(rms_norm, rows(normal(64, -1), lambda g, n: torch.ones(n))),
    "batch_norm": Task(
        batch_norm, rows(normal(8, 16, 16, 16), lambda g, n: torch.ones(16), lambda g, n: torch.zeros(16))
    ),
    "total": Task(total, rows(normal(64, -1))),
    "mean": Task(mean, rows(normal(64, -1))),
    "largest": Task(largest, rows(normal(64, -1))),
    "cumsum": Task(cumsum, rows(normal(64, -1))),
    "matmul": Task(matmul, rows(normal(64, -1), normal(-1, 64))),
    "gelu": Task(gelu, rows(normal(64, -1))),
    "silu_mul": Task(silu_mul, rows(normal(64, -1), normal(64, -1))),
    "relu": Task(relu, rows(normal(64, -1))),
    "cross_entropy": Task(cross_entropy, rows(normal(64, -1), classes)),
    "embedding": Task(embedding, rows(classes, normal(-1, 64))),
    "attention": Task(attention, rows(normal(2, 4, 64, 32), normal(2, 4, 64, 32), normal(2, 4, 64, 32))),
}
