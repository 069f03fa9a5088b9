# The types of the core's operators, generated from their specs by `nxcore ops --stub`.

from collections.abc import Iterable, Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from nxcore.call.operator import Operator
from nxcore.plugin import OpSpec

def nxcore_ops() -> Iterable[OpSpec]: ...
def __getattr__(name: str) -> Operator: ...

class _Add(Operator):
    def __call__(
        self, x: Tensor, y: Tensor | float, *, alpha: float = 1, out: Tensor | None = None
    ) -> Tensor: ...

add: _Add

class _All(Operator):
    def __call__(
        self, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> Tensor: ...

all: _All

class _Amax(Operator):
    def __call__(
        self, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> Tensor: ...

amax: _Amax

class _Amin(Operator):
    def __call__(
        self, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> Tensor: ...

amin: _Amin

class _Any(Operator):
    def __call__(
        self, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> Tensor: ...

any: _Any

class _Argmax(Operator):
    def __call__(self, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor: ...

argmax: _Argmax

class _Argmin(Operator):
    def __call__(self, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor: ...

argmin: _Argmin

class _AvgPool2d(Operator):
    def __call__(
        self,
        x: Tensor,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor: ...

avg_pool2d: _AvgPool2d

class _BatchNorm(Operator):
    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05
    ) -> tuple[Tensor, Tensor, Tensor]: ...

batch_norm: _BatchNorm

class _BatchNormSum(Operator):
    def __call__(
        self, xs: Sequence[Tensor], weights: Tensor, normed: Sequence[bool] | None = None, eps: float = 1e-05
    ) -> tuple[Tensor, Tensor, Tensor]: ...

batch_norm_sum: _BatchNormSum

class _ColumnSums(Operator):
    def __call__(self, xs: Sequence[Tensor] | Tensor) -> Tensor: ...

column_sums: _ColumnSums

class _Conv2d(Operator):
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor: ...

conv2d: _Conv2d

class _CrossEntropy(Operator):
    def __call__(
        self,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor: ...

cross_entropy: _CrossEntropy

class _Cumsum(Operator):
    def __call__(self, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor: ...

cumsum: _Cumsum

class _DepthwiseConv2d(Operator):
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
    ) -> Tensor: ...

depthwise_conv2d: _DepthwiseConv2d

class _Elu(Operator):
    def __call__(self, x: Tensor, alpha: float = 1.0, *, out: Tensor | None = None) -> Tensor: ...

elu: _Elu

class _Embedding(Operator):
    def __call__(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor: ...

embedding: _Embedding

class _EmbeddingDenseBackward(Operator):
    def __call__(
        self,
        grad_output: Tensor,
        indices: Tensor,
        num_weights: int,
        padding_idx: int,
        scale_grad_by_freq: bool,
    ) -> Tensor: ...

embedding_dense_backward: _EmbeddingDenseBackward

class _Entropy(Operator):
    def __call__(self, logits: Tensor) -> Tensor: ...

entropy: _Entropy

class _ForeachSepConv2dBatchNorm(Operator):
    def __call__(
        self,
        xs: Sequence[Tensor],
        dw_weights: Sequence[Tensor],
        pw_weights: Sequence[Tensor],
        strides: Sequence[int],
        paddings: Sequence[int],
        dilations: Sequence[int],
        normed: Sequence[bool] | None = None,
        relu: bool = True,
        eps: float = 1e-05,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor | None, Tensor | None]: ...

foreach_sep_conv2d_batch_norm: _ForeachSepConv2dBatchNorm

class _ForeachSepConv2dBatchNormBackward(Operator):
    def __call__(
        self,
        grads: Sequence[Tensor],
        xs: Sequence[Tensor],
        dw_weights: Sequence[Tensor],
        pw_weights: Sequence[Tensor],
        ys: Sequence[Tensor],
        strides: Sequence[int],
        paddings: Sequence[int],
        dilations: Sequence[int],
        mean: Tensor | None = None,
        var: Tensor | None = None,
        normed: Sequence[bool] | None = None,
        relu: bool = True,
        eps: float = 1e-05,
        output_mask: Sequence[bool] | None = None,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...], tuple[Tensor | None, ...]]: ...

foreach_sep_conv2d_batch_norm_backward: _ForeachSepConv2dBatchNormBackward

class _Gelu(Operator):
    def __call__(
        self, x: Tensor, *, out: Tensor | None = None, approximate: Literal["none", "tanh"] = "none"
    ) -> Tensor: ...

gelu: _Gelu

class _GeluMul(Operator):
    def __call__(self, x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor: ...

gelu_mul: _GeluMul

class _GeluTanh(Operator):
    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor: ...

gelu_tanh: _GeluTanh

class _GlobalAvgPool2d(Operator):
    def __call__(self, x: Tensor) -> Tensor: ...

global_avg_pool2d: _GlobalAvgPool2d

class _GlobalMaxPool2d(Operator):
    def __call__(self, x: Tensor) -> Tensor: ...

global_max_pool2d: _GlobalMaxPool2d

class _GroupNorm(Operator):
    def __call__(
        self,
        x: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-05,
    ) -> Tensor: ...

group_norm: _GroupNorm

class _GumbelSoftmax(Operator):
    def __call__(
        self,
        logits: Tensor,
        tau: Tensor | float = 1.0,
        hard: bool = False,
        noise: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor: ...

gumbel_softmax: _GumbelSoftmax

class _Hardsigmoid(Operator):
    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor: ...

hardsigmoid: _Hardsigmoid

class _Hardswish(Operator):
    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor: ...

hardswish: _Hardswish

class _IndexAdd(Operator):
    def __call__(self, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor: ...

index_add: _IndexAdd

class _LayerNorm(Operator):
    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-05,
    ) -> Tensor: ...

layer_norm: _LayerNorm

class _LeakyRelu(Operator):
    def __call__(self, x: Tensor, negative_slope: float = 0.01, *, out: Tensor | None = None) -> Tensor: ...

leaky_relu: _LeakyRelu

class _LinearCrossEntropy(Operator):
    def __call__(
        self,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        *,
        linear_bias: Tensor | None = None,
        weight: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor: ...

linear_cross_entropy: _LinearCrossEntropy

class _LogSoftmax(Operator):
    def __call__(self, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor: ...

log_softmax: _LogSoftmax

class _Matmul(Operator):
    def __call__(self, a: Tensor, b: Tensor, *, precision: str | None = None) -> Tensor: ...

matmul: _Matmul

class _Max(Operator):
    def __call__(self, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]: ...

max: _Max

class _MaxPool2d(Operator):
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        return_indices: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        *,
        return_indices: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        *,
        return_indices: bool,
    ) -> Tensor | tuple[Tensor, Tensor]: ...

max_pool2d: _MaxPool2d

class _Mean(Operator):
    def __call__(
        self, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> Tensor: ...

mean: _Mean

class _Min(Operator):
    def __call__(self, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]: ...

min: _Min

class _Mish(Operator):
    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor: ...

mish: _Mish

class _PointwiseConv2d(Operator):
    def __call__(
        self, x: Tensor, weight: Tensor, shifted: Tensor | None = None, stride: int = 1, *, relu: bool = False
    ) -> Tensor: ...

pointwise_conv2d: _PointwiseConv2d

class _Relu(Operator):
    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor: ...

relu: _Relu

class _RmsNorm(Operator):
    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor: ...

rms_norm: _RmsNorm

class _Rope(Operator):
    def __call__(
        self, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, rotary_dim: int | None = None
    ) -> Tensor: ...

rope: _Rope

class _ScaledDotProductAttention(Operator):
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor: ...

scaled_dot_product_attention: _ScaledDotProductAttention

class _SepConv2d(Operator):
    def __call__(
        self,
        x: Tensor,
        dw_weight: Tensor,
        pw_weight: Tensor,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        *,
        relu: bool = True,
    ) -> Tensor: ...

sep_conv2d: _SepConv2d

class _SepConv2dBatchNorm(Operator):
    def __call__(
        self,
        x: Tensor,
        dw_weight: Tensor,
        pw_weight: Tensor,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        relu: bool = True,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-05,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

sep_conv2d_batch_norm: _SepConv2dBatchNorm

class _Sigmoid(Operator):
    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor: ...

sigmoid: _Sigmoid

class _Silu(Operator):
    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor: ...

silu: _Silu

class _SiluMul(Operator):
    def __call__(self, x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor: ...

silu_mul: _SiluMul

class _Softmax(Operator):
    def __call__(self, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor: ...

softmax: _Softmax

class _SoftmaxSum(Operator):
    def __call__(self, xs: Sequence[Tensor] | Tensor, logits: Tensor) -> Tensor: ...

softmax_sum: _SoftmaxSum

class _Softplus(Operator):
    def __call__(
        self, x: Tensor, beta: float = 1.0, threshold: float = 20.0, *, out: Tensor | None = None
    ) -> Tensor: ...

softplus: _Softplus

class _Sum(Operator):
    def __call__(
        self, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> Tensor: ...

sum: _Sum

class _SumToSize(Operator):
    def __call__(self, x: Tensor, size: Sequence[int]) -> Tensor: ...

sum_to_size: _SumToSize

class _Tanh(Operator):
    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor: ...

tanh: _Tanh

class _WeightedSum(Operator):
    def __call__(self, xs: Sequence[Tensor] | Tensor, weights: Tensor) -> Tensor: ...

weighted_sum: _WeightedSum
