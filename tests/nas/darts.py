"""A plain torch supernet of the DARTS layout, written from the paper's description: what ours is held to."""

import torch
from torch import nn

PRIMITIVES = [
    "none",
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
]


def block(C, k, stride, padding, dilation=1):
    return [
        nn.ReLU(),
        nn.Conv2d(C, C, k, stride, padding, dilation, groups=C, bias=False),
        nn.Conv2d(C, C, 1, bias=False),
        nn.BatchNorm2d(C, affine=False),
    ]


class Op(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.op = nn.Sequential(*layers)

    def forward(self, x):
        return self.op(x)


class Zero(nn.Module):
    def __init__(self, stride):
        super().__init__()
        self.stride = stride

    def forward(self, x):
        return x[:, :, :: self.stride, :: self.stride] * 0.0


class Reduce(nn.Module):
    def __init__(self, C_in, C_out):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv_1 = nn.Conv2d(C_in, C_out // 2, 1, 2, bias=False)
        self.conv_2 = nn.Conv2d(C_in, C_out // 2, 1, 2, bias=False)
        self.bn = nn.BatchNorm2d(C_out, affine=False)

    def forward(self, x):
        x = self.relu(x)
        return self.bn(torch.cat([self.conv_1(x), self.conv_2(x[:, :, 1:, 1:])], 1))


def candidate(name, C, stride):
    k = int(name[-1]) if name[-1].isdigit() else 0
    if name == "none":
        return Zero(stride)
    if name == "skip_connect":
        return nn.Identity() if stride == 1 else Reduce(C, C)
    if "pool" in name:
        pool = (
            nn.MaxPool2d(3, stride, 1)
            if name.startswith("max")
            else nn.AvgPool2d(3, stride, 1, count_include_pad=False)
        )
        return nn.Sequential(pool, nn.BatchNorm2d(C, affine=False))
    if name.startswith("sep"):
        return Op(*block(C, k, stride, k // 2), *block(C, k, 1, k // 2))
    return Op(*block(C, k, stride, k - 1, 2))


class MixedOp(nn.Module):
    def __init__(self, C, stride):
        super().__init__()
        self._ops = nn.ModuleList(candidate(name, C, stride) for name in PRIMITIVES)

    def forward(self, x, weights):
        return sum(w * op(x) for w, op in zip(weights, self._ops, strict=True))


def entry(C_in, C):
    return Op(nn.ReLU(), nn.Conv2d(C_in, C, 1, bias=False), nn.BatchNorm2d(C, affine=False))


class Cell(nn.Module):
    def __init__(self, steps, C_pp, C_p, C, reduction, reduction_prev):
        super().__init__()
        self.reduction, self.steps = reduction, steps
        self.preprocess0 = Reduce(C_pp, C) if reduction_prev else entry(C_pp, C)
        self.preprocess1 = entry(C_p, C)
        self._ops = nn.ModuleList(
            MixedOp(C, 2 if reduction and j < 2 else 1) for i in range(steps) for j in range(i + 2)
        )

    def forward(self, s0, s1, weights):
        states, offset = [self.preprocess0(s0), self.preprocess1(s1)], 0
        for _ in range(self.steps):
            states.append(sum(self._ops[offset + j](h, weights[offset + j]) for j, h in enumerate(states)))
            offset += len(states) - 1
        return torch.cat(states[-self.steps :], 1)


class Network(nn.Module):
    def __init__(self, C=4, classes=3, layers=3, steps=2):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 3 * C, 3, padding=1, bias=False), nn.BatchNorm2d(3 * C))
        C_pp = C_p = 3 * C
        self.cells, previous = nn.ModuleList(), False
        for i in range(layers):
            reduction = i in (layers // 3, 2 * layers // 3)
            C = C * 2 if reduction else C
            self.cells.append(Cell(steps, C_pp, C_p, C, reduction, previous))
            previous, C_pp, C_p = reduction, C_p, steps * C
        self.global_pooling = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(C_p, classes)

    def forward(self, x, normal, reduce):
        s0 = s1 = self.stem(x)
        for cell in self.cells:
            weights = torch.softmax(reduce if cell.reduction else normal, -1)
            s0, s1 = s1, cell(s0, s1, weights)
        return self.classifier(self.global_pooling(s1).flatten(1))
