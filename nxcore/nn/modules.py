"""Torch's modules with another ``forward``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nxcore import session
from nxcore.errors import InvalidInputError
from nxcore.graphs.hooks import saving
from nxcore.graphs.late import LATE
from nxcore.graphs.raw import leaves
from nxcore.nn.served import Served, by_kernel, is_compiling, left, with_rest
from nxcore.program.passes import operators

# Looked up once, not in every call.
_add = session.default().op("add")
_avg_pool2d = session.default().op("avg_pool2d")
_batch_norm = session.default().op("batch_norm")
_depthwise_conv2d = session.default().op("depthwise_conv2d")
_global_avg_pool2d = session.default().op("global_avg_pool2d")
_global_max_pool2d = session.default().op("global_max_pool2d")
_max_pool2d = session.default().op("max_pool2d")
_softmax_sum = session.default().op("softmax_sum")


@with_rest
class MaxPool2d(nn.MaxPool2d, Served):
    """``torch.nn.MaxPool2d``, computed by the operator ``max_pool2d``.

    >>> nxcore.nn.MaxPool2d(2)(torch.arange(16.0).view(1, 4, 4))
    tensor([[[ 5.,  7.],
             [13., 15.]]])
    """

    def forward(self, input: Tensor) -> Any:
        """Return the largest element of each window; with ``return_indices``, also its position."""
        window = self.kernel_size, self.stride, self.padding, self.dilation
        # A dilated window may lie off the image, where torch's own backward writes outside its memory.
        if window[3] not in (1, (1, 1)) and not torch.compiler.is_exporting():
            try:
                return _max_pool2d(input, *window, self.ceil_mode, self.return_indices)
            except InvalidInputError:
                return nn.MaxPool2d.forward(self, input)  # raises torch's own message
        found = by_kernel(self, _max_pool2d, input, *window, self.ceil_mode, self.return_indices)
        return nn.MaxPool2d.forward(self, input) if found is None else found


@with_rest
class AvgPool2d(nn.AvgPool2d, Served):
    """``torch.nn.AvgPool2d``, computed by the operator ``avg_pool2d``.

    >>> nxcore.nn.AvgPool2d(2)(torch.arange(16.0).view(1, 4, 4))
    tensor([[[ 2.5000,  4.5000],
             [10.5000, 12.5000]]])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the mean of each window."""
        window = self.kernel_size, self.stride, self.padding, self.ceil_mode
        how = self.count_include_pad, self.divisor_override
        found: Tensor | None = by_kernel(self, _avg_pool2d, input, *window, *how)
        return nn.AvgPool2d.forward(self, input) if found is None else found


def _outputs_refused(output_size: Any) -> str:
    """Return why an adaptive pool of this size is not a global pool; empty if it is."""
    if output_size in (1, (1, 1), [1, 1]):
        return ""
    return f"not global: output_size must be 1, got {output_size}"


@with_rest
class AdaptiveAvgPool2d(nn.AdaptiveAvgPool2d, Served):
    """``torch.nn.AdaptiveAvgPool2d``; the operator ``global_avg_pool2d`` computes output size 1.

    >>> nxcore.nn.AdaptiveAvgPool2d(2).reason
    'not global: output_size must be 1, got 2'
    """

    @staticmethod
    def refusal(module: Any) -> str:
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        return _outputs_refused(module.output_size)

    def forward(self, input: Tensor) -> Tensor:
        """Return the mean of each channel, or of each of its parts."""
        if self.output_size != 1 and AdaptiveAvgPool2d.refusal(self):
            left(self)
            return nn.AdaptiveAvgPool2d.forward(self, input)
        found: Tensor | None = by_kernel(self, _global_avg_pool2d, input)
        return nn.AdaptiveAvgPool2d.forward(self, input) if found is None else found


@with_rest
class AdaptiveMaxPool2d(nn.AdaptiveMaxPool2d, Served):
    """``torch.nn.AdaptiveMaxPool2d``; the operator ``global_max_pool2d`` computes output size 1.

    >>> nxcore.nn.AdaptiveMaxPool2d(1)(torch.arange(4.0).view(1, 2, 2))
    tensor([[[3.]]])
    """

    @staticmethod
    def refusal(module: Any) -> str:
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        return "it returns indices" if module.return_indices else _outputs_refused(module.output_size)

    def forward(self, input: Tensor) -> Any:
        """Return the largest element of each channel, or of each of its parts."""
        if self.return_indices or (self.output_size != 1 and AdaptiveMaxPool2d.refusal(self)):
            left(self)
            return nn.AdaptiveMaxPool2d.forward(self, input)
        found = by_kernel(self, _global_max_pool2d, input)
        return nn.AdaptiveMaxPool2d.forward(self, input) if found is None else found


@with_rest
class Conv2d(nn.Conv2d, Served):
    """``torch.nn.Conv2d``; the operator ``depthwise_conv2d`` computes depthwise convolutions.

    The operator ``add`` adds the bias. Padding other than zeros is added to the image first, as in torch.

    >>> conv = nxcore.nn.Conv2d(4, 4, 3, groups=4)
    >>> conv(torch.ones(1, 4, 8, 8)).shape, conv.reason
    (torch.Size([1, 4, 6, 6]), '')
    """

    @staticmethod
    def refusal(module: Any) -> str:
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        groups, channels, filters = module.groups, module.in_channels, module.out_channels
        if groups == channels == filters:
            return ""
        return (
            f"not depthwise: groups {groups}, in_channels {channels} and out_channels {filters} must be equal"
        )

    def forward(self, input: Tensor) -> Tensor:
        """Return the image convolved with the filters."""
        if self._modules:  # parametrizations, of which some change whenever a weight is read
            return nn.Conv2d.forward(self, input)
        depthwise = self.groups == self.in_channels == self.out_channels
        weight, bias = (
            (self.weight, self.bias) if depthwise else (None, None)
        )  # in torch's order, to a tracer
        if not depthwise or (bias is not None and bias.dtype != input.dtype):
            left(self)
            return nn.Conv2d.forward(self, input)
        image = input
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            image = functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        out: Tensor | None = by_kernel(
            self, _depthwise_conv2d, image, weight, self.stride, padding, self.dilation
        )
        if out is None:
            return nn.Conv2d.forward(self, input)
        # Under autocast, the result may have another dtype than the arguments.
        return out if bias is None else _add(out, bias.to(out.dtype).view(-1, 1, 1))


def batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    """Run the operator; its reference where autograd has hooks on saved tensors."""
    return (_batch_norm.spec.reference if saving() else _batch_norm)(x, weight, bias, eps)


def track(norm: nn.BatchNorm2d, mean: Tensor, var: Tensor) -> None:
    """Update the running statistics of ``norm``, where it has any, by those of a batch."""
    # An attribute that is a buffer costs a microsecond: Python looks for it in every other place first.
    buffers = norm._buffers  # noqa: SLF001  torch has no public way as fast
    running_mean, running_var = buffers.get("running_mean"), buffers.get("running_var")
    if not norm.track_running_stats or running_mean is None or running_var is None:
        return
    waiting = None if is_compiling() else LATE.get()
    if waiting is not None:
        waiting.add(norm, mean.to(running_mean.dtype), var.to(running_var.dtype), norm.momentum or 0.0)
        return
    operators.track((running_mean, running_var), mean, var, norm.momentum or 0.0)
    if (batches := buffers.get("num_batches_tracked")) is not None:
        batches.add_(1)


@with_rest
class BatchNorm2d(nn.BatchNorm2d, Served):
    """``torch.nn.BatchNorm2d``; the operator ``batch_norm`` computes it in training.

    Torch's own ``forward`` runs in evaluation, and where running statistics are means of all batches.

    >>> nxcore.nn.BatchNorm2d(4)(torch.ones(2, 4, 8, 8)).shape
    torch.Size([2, 4, 8, 8])
    """

    @staticmethod
    def idles(module: Any) -> bool:
        """Return whether ``module`` is in evaluation."""
        return not module.training

    @staticmethod
    def refusal(module: Any) -> str:
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        if module.track_running_stats and module.momentum is None:
            return "its momentum is None: running statistics are means of all batches"
        return ""

    def forward(self, input: Tensor) -> Tensor:
        """Return the images normalised; in training by their own statistics, which update running ones."""
        if self._modules or not self.training or (self.momentum is None and self.track_running_stats):
            left(self)
            return nn.BatchNorm2d.forward(self, input)
        if input.ndim != 4 or not input.is_floating_point() or input.numel() < 2 * input.shape[1] or saving():
            return nn.BatchNorm2d.forward(self, input)  # raises torch's own message, but for the hooks
        if not operators.in_format(input):
            return nn.BatchNorm2d.forward(self, input)
        if (raw := leaves(self)) is not None:
            raw.leave(input)
            return input
        found = by_kernel(self, _batch_norm, input, self.weight, self.bias, self.eps)
        if found is None:  # torch's own updates statistics in the same launch
            return nn.BatchNorm2d.forward(self, input)
        out: Tensor = found[0]
        track(self, *found[1:])
        return out


class SoftmaxSum(Served):
    """A blend of N tensors with learnt softmax weights, computed by the operator ``softmax_sum``.

    Parameters
    ----------
    candidates : int
        N, the number of tensors.
    device, dtype : optional
        Device and dtype of the logits.

    Attributes
    ----------
    logits : Parameter
        Shape (N,), initially 0, so that the blend is the mean.

    Examples
    --------
    >>> nxcore.nn.SoftmaxSum(2)([torch.zeros(3), torch.ones(3)]).tolist()
    [0.5, 0.5, 0.5]
    """

    def __init__(self, candidates: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(candidates, device=device, dtype=dtype))

    def forward(self, xs: Sequence[Tensor] | Tensor) -> Tensor:
        """Return ``sum_i softmax(logits)[i] * xs[i]``."""
        out: Tensor = _softmax_sum(xs, self.logits)
        return out

    def extra_repr(self) -> str:
        """Return the number of tensors."""
        return str(len(self.logits))
