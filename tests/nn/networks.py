"""Small networks in the style of torchvision's, and a DARTS-like one, made of torch's modules alone."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def conv_bn_relu(channels: int, filters: int, kernel: int = 1, **how: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, filters, kernel, bias=False, **how), nn.BatchNorm2d(filters), nn.ReLU()
    )


class InvertedResidual(nn.Module):
    """MobileNet v2's block: expand, filter each channel, project."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.body = nn.Sequential(
            conv_bn_relu(channels, wide),
            conv_bn_relu(wide, wide, 3, stride=stride, padding=1, groups=wide),
            nn.Conv2d(wide, filters, 1, bias=False),
            nn.BatchNorm2d(filters),
        )
        self.residual = stride == 1 and channels == filters

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet() -> nn.Sequential:
    """Depthwise convolutions with and without a bias, and a head."""
    return nn.Sequential(
        conv_bn_relu(3, 8, 3, stride=2, padding=1),
        InvertedResidual(8, 8, 1),
        InvertedResidual(8, 12, 2),
        nn.Conv2d(12, 12, 3, padding="same", groups=12),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn_relu(channels, channels, 3, padding=1),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def resnet() -> nn.Sequential:
    """A stem with a max pool."""
    return nn.Sequential(
        conv_bn_relu(3, 8, 7, stride=2, padding=3),
        nn.MaxPool2d(3, 2, 1),
        Residual(8),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.LazyLinear(5),
    )


class Branches(nn.Module):
    """Inception's: several ways from one image, side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def inception() -> nn.Sequential:
    """A branch with an average pool, and one with a max pool that makes the image smaller."""
    return nn.Sequential(
        Branches(
            conv_bn_relu(3, 4),
            conv_bn_relu(3, 4, 5, padding=2),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_bn_relu(3, 4)),
        ),
        Branches(conv_bn_relu(12, 4, 3, stride=2), nn.MaxPool2d(3, 2)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, affine=False)


def separable(channels: int, kernel: int, stride: int) -> nn.Sequential:
    """Depthwise and pointwise, twice."""
    steps: list[nn.Module] = []
    for s in (stride, 1):
        depthwise = nn.Conv2d(channels, channels, kernel, s, kernel // 2, groups=channels, bias=False)
        steps += [nn.ReLU(), depthwise, nn.Conv2d(channels, channels, 1, bias=False), norm(channels)]
    return nn.Sequential(*steps)


def dilated(channels: int, kernel: int, stride: int) -> nn.Sequential:
    """Depthwise with dilation 2 and pointwise."""
    depthwise = nn.Conv2d(channels, channels, kernel, stride, kernel - 1, 2, channels, bias=False)
    return nn.Sequential(nn.ReLU(), depthwise, nn.Conv2d(channels, channels, 1, bias=False), norm(channels))


class Nothing(nn.Module):
    """DARTS's "none": zeros, but for what isn't finite."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, :: self.stride, :: self.stride] * 0


PRIMITIVES: tuple[Callable[[int, int], nn.Module], ...] = (
    lambda channels, stride: Nothing(stride),
    lambda channels, stride: nn.Sequential(nn.MaxPool2d(3, stride, 1), norm(channels)),
    lambda channels, stride: nn.Sequential(
        nn.AvgPool2d(3, stride, 1, count_include_pad=False), norm(channels)
    ),
    lambda channels, stride: separable(channels, 3, stride),
    lambda channels, stride: separable(channels, 5, stride),
    lambda channels, stride: dilated(channels, 3, stride),
    lambda channels, stride: dilated(channels, 5, stride),
)


class MixedOp(nn.Module):
    """All candidates of an edge, blended by the softmax of the architecture's row."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.candidates = nn.ModuleList(make(channels, stride) for make in PRIMITIVES)

    def forward(self, x: Tensor, logits: Tensor) -> Tensor:
        weights = torch.softmax(logits, dim=0)
        return sum(w * candidate(x) for w, candidate in zip(weights, self.candidates, strict=True))


class Cell(nn.Module):
    """One node that sees both inputs, and one that sees the first."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.edges = nn.ModuleList(MixedOp(channels, s) for s in (stride, stride, 1))

    def forward(self, before: Tensor, last: Tensor, alphas: Sequence[Tensor]) -> Tensor:
        first = self.edges[0](before, alphas[0]) + self.edges[1](last, alphas[1])
        return first + self.edges[2](first, alphas[2])


class Darts(nn.Module):
    """A stem, a normal and a reduction cell, and the architecture's parameters."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.cells = nn.ModuleList([Cell(channels, 1), Cell(channels, 2)])
        self.alphas = nn.Parameter(0.1 * torch.randn(2, 3, len(PRIMITIVES)))
        self.head = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for cell, alphas in zip(self.cells, self.alphas, strict=True):
            x = cell(x, x, alphas)
        return self.head(x.mean((2, 3)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mobilenet": mobilenet,
    "resnet": resnet,
    "inception": inception,
    "darts": Darts,
}
