"""Models of image classifiers, written from their papers with torch's modules alone.

They have the layers and widths of the published ones, without weights, so that whole models can be timed
where torchvision isn't installed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def conv_norm(
    channels: int,
    filters: int,
    kernel: int = 1,
    *,
    stride: int = 1,
    groups: int = 1,
    act: nn.Module | None = None,
) -> nn.Sequential:
    """Return a convolution without a bias, a norm, and an activation if one is given."""
    conv = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(filters), *(() if act is None else (act,)))


class Residual(nn.Module):
    """A body beside a shortcut, and a ReLU."""

    def __init__(self, channels: int, width: int, stride: int, *, wide: bool) -> None:
        super().__init__()
        out = 4 * width if wide else width

        def relu() -> nn.Module:
            return nn.ReLU(inplace=True)

        layers = (
            [
                conv_norm(channels, width, act=relu()),
                conv_norm(width, width, 3, stride=stride, act=relu()),
                conv_norm(width, out),
            ]
            if wide
            else [conv_norm(channels, width, 3, stride=stride, act=relu()), conv_norm(width, width, 3)]
        )
        self.body = nn.Sequential(*layers)
        same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if same else conv_norm(channels, out, stride=stride)
        self.relu = relu()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


def resnet(depths: Sequence[int], *, wide: bool) -> nn.Sequential:
    """Return a ResNet: with bottlenecks if ``wide``."""
    layers: list[nn.Module] = [
        conv_norm(3, 64, 7, stride=2, act=nn.ReLU(inplace=True)),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for stage, depth in enumerate(depths):
        for at in range(depth):
            width = 64 << stage
            layers.append(Residual(channels, width, 2 if stage and not at else 1, wide=wide))
            channels = 4 * width if wide else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class Squeeze(nn.Module):
    """Channels scaled by what their means give."""

    def __init__(self, channels: int, width: int, act: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.scale = nn.Sequential(nn.Conv2d(channels, width, 1), act, nn.Conv2d(width, channels, 1), gate)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(self.pool(x))


class Inverted(nn.Module):
    """Expand, filter each channel, squeeze if asked to, project."""

    def __init__(
        self,
        channels: int,
        wide: int,
        filters: int,
        kernel: int,
        stride: int,
        act: type[nn.Module],
        squeeze: Squeeze | None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [] if wide == channels else [conv_norm(channels, wide, act=act())]
        layers.append(conv_norm(wide, wide, kernel, stride=stride, groups=wide, act=act()))
        layers += [] if squeeze is None else [squeeze]
        self.body = nn.Sequential(*layers, conv_norm(wide, filters))
        self.residual = stride == 1 and channels == filters

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet() -> nn.Sequential:
    """Return MobileNet v3, small."""
    rows = (
        (16, 16, 3, 2, nn.ReLU, True),
        (72, 24, 3, 2, nn.ReLU, False),
        (88, 24, 3, 1, nn.ReLU, False),
        (96, 40, 5, 2, nn.Hardswish, True),
        (240, 40, 5, 1, nn.Hardswish, True),
        (240, 40, 5, 1, nn.Hardswish, True),
        (120, 48, 5, 1, nn.Hardswish, True),
        (144, 48, 5, 1, nn.Hardswish, True),
        (288, 96, 5, 2, nn.Hardswish, True),
        (576, 96, 5, 1, nn.Hardswish, True),
        (576, 96, 5, 1, nn.Hardswish, True),
    )
    layers: list[nn.Module] = [conv_norm(3, 16, 3, stride=2, act=nn.Hardswish())]
    channels = 16
    for wide, filters, kernel, stride, act, squeezes in rows:
        squeeze = Squeeze(wide, max(8, wide // 4), nn.ReLU(), nn.Hardsigmoid()) if squeezes else None
        layers.append(Inverted(channels, wide, filters, kernel, stride, act, squeeze))
        channels = filters
    layers += [conv_norm(96, 576, act=nn.Hardswish()), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, 1000))


def efficientnet() -> nn.Sequential:
    """Return EfficientNet B0."""
    rows = (
        (1, 16, 3, 1, 1), (6, 24, 3, 2, 2), (6, 40, 5, 2, 2), (6, 80, 3, 2, 3),
        (6, 112, 5, 1, 3), (6, 192, 5, 2, 4), (6, 320, 3, 1, 1),
    )  # fmt: skip  # a row a stage
    layers: list[nn.Module] = [conv_norm(3, 32, 3, stride=2, act=nn.SiLU())]
    channels = 32
    for factor, filters, kernel, stride, depth in rows:
        for at in range(depth):
            wide = channels * factor
            squeeze = Squeeze(wide, max(1, channels // 4), nn.SiLU(), nn.Sigmoid())
            layers.append(Inverted(channels, wide, filters, kernel, 1 if at else stride, nn.SiLU, squeeze))
            channels = filters
    layers += [conv_norm(320, 1280, act=nn.SiLU()), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, 1000))


class Norm2d(nn.LayerNorm):
    """A layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Next(nn.Module):
    """ConvNeXt's block: a depthwise convolution, and two linear layers at each position."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.mix = nn.Sequential(
            nn.LayerNorm(channels, eps=1e-6),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.mix(self.filter(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> nn.Sequential:
    """Return ConvNeXt, tiny."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), Norm2d(96, eps=1e-6)]
    for stage, depth in enumerate((3, 3, 9, 3)):
        channels = 96 << stage
        if stage:
            layers += [Norm2d(channels // 2, eps=1e-6), nn.Conv2d(channels // 2, channels, 2, 2)]
        layers += [Next(channels) for _ in range(depth)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 1000)
    )
