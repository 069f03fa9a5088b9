"""The primitives of a DARTS search space: Liu, Simonyan, Yang 2019, arXiv:1806.09055, section 2.1 and A.1.

Parameters and buffers are named as in the paper's own code, so that published weights load. All of
it is plain torch.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from nxcore.errors import InvalidInputError

BN_EPS = 1e-5


class Zero(nn.Module):
    """``none``: x * 0 at every stride-th pixel. NaN and infinity propagate, as in the paper's code.

    Parameters
    ----------
    stride : int
        1 or 2.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return zeros, shape (N, C, ceil(H / stride), ceil(W / stride))."""
        return (x if self.stride == 1 else x[:, :, :: self.stride, :: self.stride]).mul(0.0)


class Identity(nn.Identity):
    """``skip_connect`` of stride 1."""


class FactorizedReduce(nn.Module):
    """``skip_connect`` of stride 2: two 1x1 convolutions, on the even pixels and on the odd ones.

    Parameters
    ----------
    C_in, C_out : int
        Channels; ``C_out`` must be even.
    affine : bool, default True
        The batch norm has a weight and a bias.

    Raises
    ------
    InvalidInputError
        If ``C_out`` is odd.

    Examples
    --------
    >>> nas.FactorizedReduce(4, 8)(torch.ones(1, 4, 8, 8)).shape
    torch.Size([1, 8, 4, 4])
    """

    def __init__(self, C_in: int, C_out: int, affine: bool = True) -> None:
        super().__init__()
        if C_out % 2:
            raise InvalidInputError(f"C_out must be even, got {C_out}", argument="C_out")
        self.relu = nn.ReLU()
        self.conv_1 = nn.Conv2d(C_in, C_out // 2, 1, stride=2, bias=False)
        self.conv_2 = nn.Conv2d(C_in, C_out // 2, 1, stride=2, bias=False)
        self.bn = nn.BatchNorm2d(C_out, eps=BN_EPS, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (N, C_out, H / 2, W / 2); H and W must be even."""
        x = self.relu(x)
        out: Tensor = self.bn(torch.cat([self.conv_1(x), self.conv_2(x[:, :, 1:, 1:])], dim=1))
        return out


class _Chain(nn.Module):
    """Layers in sequence, named as in the paper's code."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.op = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (N, C_out, H', W') for x of shape (N, C_in, H, W)."""
        out: Tensor = self.op(x)
        return out


def _separable(
    C_in: int, C_out: int, kernel_size: int, stride: int, padding: int, dilation: int, affine: bool
) -> tuple[nn.Module, ...]:
    """Return ReLU, a depthwise convolution, a 1x1 convolution, batch norm."""
    return (
        nn.ReLU(),
        nn.Conv2d(C_in, C_in, kernel_size, stride, padding, dilation, groups=C_in, bias=False),
        nn.Conv2d(C_in, C_out, 1, bias=False),
        nn.BatchNorm2d(C_out, eps=BN_EPS, affine=affine),
    )


class ReLUConvBN(_Chain):
    """ReLU, convolution, batch norm.

    Parameters
    ----------
    C_in, C_out : int
        Channels.
    kernel_size, stride, padding : int
        Of the convolution.
    affine : bool, default True
        The batch norm has a weight and a bias.

    Examples
    --------
    >>> nas.ReLUConvBN(4, 8, 1, 1, 0)(torch.ones(1, 4, 8, 8)).shape
    torch.Size([1, 8, 8, 8])
    """

    def __init__(
        self, C_in: int, C_out: int, kernel_size: int, stride: int, padding: int, affine: bool = True
    ) -> None:
        super().__init__(
            nn.ReLU(),
            nn.Conv2d(C_in, C_out, kernel_size, stride, padding, bias=False),
            nn.BatchNorm2d(C_out, eps=BN_EPS, affine=affine),
        )


class DilConv(_Chain):
    """ReLU, dilated depthwise convolution, 1x1 convolution, batch norm.

    Parameters
    ----------
    C_in, C_out : int
        Channels.
    kernel_size, stride, padding, dilation : int
        Of the depthwise convolution.
    affine : bool, default True
        The batch norm has a weight and a bias.

    Examples
    --------
    >>> nas.DilConv(4, 8, 3, 1, 2, 2)(torch.ones(1, 4, 8, 8)).shape
    torch.Size([1, 8, 8, 8])
    """

    def __init__(
        self,
        C_in: int,
        C_out: int,
        kernel_size: int,
        stride: int,
        padding: int,
        dilation: int,
        affine: bool = True,
    ) -> None:
        super().__init__(*_separable(C_in, C_out, kernel_size, stride, padding, dilation, affine))


class SepConv(_Chain):
    """Twice: ReLU, depthwise convolution, 1x1 convolution, batch norm. Only the first has the stride.

    Parameters
    ----------
    C_in, C_out : int
        Channels.
    kernel_size, stride, padding : int
        Of the depthwise convolutions.
    affine : bool, default True
        The batch norms have a weight and a bias.

    Examples
    --------
    >>> nas.SepConv(4, 8, 3, 2, 1)(torch.ones(1, 4, 8, 8)).shape
    torch.Size([1, 8, 4, 4])
    """

    def __init__(
        self, C_in: int, C_out: int, kernel_size: int, stride: int, padding: int, affine: bool = True
    ) -> None:
        super().__init__(
            *_separable(C_in, C_in, kernel_size, stride, padding, 1, affine),
            *_separable(C_in, C_out, kernel_size, 1, padding, 1, affine),
        )


def _conv_7x1_1x7(C: int, stride: int, affine: bool) -> nn.Module:
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(C, C, (1, 7), stride=(1, stride), padding=(0, 3), bias=False),
        nn.Conv2d(C, C, (7, 1), stride=(stride, 1), padding=(3, 0), bias=False),
        nn.BatchNorm2d(C, eps=BN_EPS, affine=affine),
    )


OPS: Mapping[str, Callable[[int, int, bool], nn.Module]] = MappingProxyType(
    {
        "none": lambda _C, stride, _affine: Zero(stride),
        "max_pool_3x3": lambda _C, stride, _affine: nn.MaxPool2d(3, stride, padding=1),
        "avg_pool_3x3": lambda _C, stride, _affine: nn.AvgPool2d(
            3, stride, padding=1, count_include_pad=False
        ),
        "skip_connect": lambda C, stride, affine: (
            Identity() if stride == 1 else FactorizedReduce(C, C, affine)
        ),
        "sep_conv_3x3": lambda C, stride, affine: SepConv(C, C, 3, stride, 1, affine),
        "sep_conv_5x5": lambda C, stride, affine: SepConv(C, C, 5, stride, 2, affine),
        "dil_conv_3x3": lambda C, stride, affine: DilConv(C, C, 3, stride, 2, 2, affine),
        "dil_conv_5x5": lambda C, stride, affine: DilConv(C, C, 5, stride, 4, 2, affine),
        "sep_conv_7x7": lambda C, stride, affine: SepConv(C, C, 7, stride, 3, affine),
        "conv_7x1_1x7": _conv_7x1_1x7,
    }
)
"""Name -> ``(C, stride, affine) -> module``."""

PRIMITIVES = tuple(OPS)[:8]
"""The paper's eight operations, in its order."""
