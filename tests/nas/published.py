"""Search networks in the forms that published code has, as far as weights and operations go."""
# ruff: noqa: B905  as published code has it

import torch
from torch import nn
from torch.nn import functional

from tests.nas import darts

NAMES = ["none", "max_pool_3x3", "skip_connect", "sep_conv_3x3", "dil_conv_3x3"]
EDGES = 5


def operations(C, names=NAMES):
    return [darts.candidate(name, C, 1) for name in names]


class MixedOp(nn.Module):
    """Of DARTS, and of SDARTS and others that only change the weights."""

    def __init__(self, C):
        super().__init__()
        self._ops = nn.ModuleList(operations(C))

    def forward(self, x, weights):
        return sum(w * op(x) for w, op in zip(weights, self._ops))


class Partial(nn.Module):
    """Of PC-DARTS: a part of the channels is mixed, and all are shuffled."""

    def __init__(self, C):
        super().__init__()
        self._ops = nn.ModuleList(operations(C // 2))
        self.mp, self.k = nn.MaxPool2d(2, 2), 2

    def forward(self, x, weights):
        many = x.shape[1]
        first, rest = x[:, : many // self.k, :, :], x[:, many // self.k :, :, :]
        mixed = sum(w * op(first) for w, op in zip(weights, self._ops))
        whole = torch.cat([mixed, rest if mixed.shape[2] == x.shape[2] else self.mp(rest)], dim=1)
        return shuffled(whole, self.k)


def shuffled(x, groups):
    images, channels, height, width = x.data.size()
    x = x.view(images, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(images, -1, height, width)


class Skipped(MixedOp):
    """Of DARTS-: a skip connection beside, whose factor decays to 0."""

    def __init__(self, C):
        super().__init__(C)
        self.beta = 1.0

    def forward(self, x, weights):
        return sum(w * op(x) for w, op in zip(weights, self._ops)) + self.beta * x


class DroppedSkip(MixedOp):
    """Of P-DARTS: its skip connection drops out, by a rate that changes; its other operations don't."""

    def __init__(self, C):
        super().__init__(C)
        self._ops[2] = nn.Sequential(nn.Identity(), nn.Dropout(0.3))


class Cell(nn.Module):
    """Of DARTS: mixed operations in a flat list, rows of weights by number."""

    make = MixedOp

    def __init__(self, C):
        super().__init__()
        self._steps, self._multiplier = 2, 2
        self.preprocess0, self.preprocess1 = darts.entry(C, C), darts.entry(C, C)
        self._ops = nn.ModuleList(self.make(C) for _ in range(EDGES))

    def forward(self, s0, s1, weights):
        states = [self.preprocess0(s0), self.preprocess1(s1)]
        offset = 0
        for _ in range(self._steps):
            s = sum(self._ops[offset + j](h, weights[offset + j]) for j, h in enumerate(states))
            offset += len(states)
            states.append(s)
        return torch.cat(states[-self._multiplier :], dim=1)


class PartialCell(Cell):
    make = Partial

    def __init__(self, C):
        super().__init__(C)
        self.betas = nn.Parameter(torch.zeros(EDGES))

    def forward(self, s0, s1, weights):
        factors = torch.cat([functional.softmax(self.betas[:2], -1), functional.softmax(self.betas[2:], -1)])
        states, offset = [self.preprocess0(s0), self.preprocess1(s1)], 0
        for _ in range(self._steps):
            s = sum(
                factors[offset + j] * self._ops[offset + j](h, weights[offset + j])
                for j, h in enumerate(states)
            )
            offset += len(states)
            states.append(s)
        return torch.cat(states[-self._multiplier :], dim=1)


class SkippedCell(Cell):
    make = Skipped


class DroppedCell(Cell):
    make = DroppedSkip


class Graph(nn.Module):
    """Of NAS-Bench-201: a dictionary of lists, by the names of edges; all nodes in a row."""

    def __init__(self, C):
        super().__init__()
        self.max_nodes, self.edges = 3, nn.ModuleDict()
        for i in range(1, self.max_nodes):
            for j in range(i):
                self.edges[f"{i}<-{j}"] = nn.ModuleList(operations(C))
        self.edge2index = {key: i for i, key in enumerate(sorted(self.edges.keys()))}

    def forward(self, s0, s1, weights):
        nodes = [s1]
        for i in range(1, self.max_nodes):
            into = []
            for j in range(i):
                node = "{:}<-{:}".format(i, j)  # noqa: UP032  as published
                row = weights[self.edge2index[node]]
                into.append(sum(layer(nodes[j]) * w for layer, w in zip(self.edges[node], row)))
            nodes.append(sum(into))
        return torch.cat([nodes[-1], s0], 1)


class Hard(Graph):
    """Of GDAS: one operation of each edge runs, and the factors of the others are added."""

    def forward(self, s0, s1, weights):
        nodes = [s1]
        chosen = weights.max(-1, keepdim=True)[1]
        hard = torch.zeros_like(weights).scatter_(-1, chosen, 1.0) - weights.detach() + weights
        for i in range(1, self.max_nodes):
            into = []
            for j in range(i):
                index = self.edge2index[f"{i}<-{j}"]
                row, best = hard[index], chosen[index].item()
                edge = self.edges[f"{i}<-{j}"]
                into.append(sum(row[k] * op(nodes[j]) if k == best else row[k] for k, op in enumerate(edge)))
            nodes.append(sum(into))
        return torch.cat([nodes[-1], s0], 1)


class Choice(nn.Module):
    """Of NNI: stacked outputs, a softmax of its own parameter."""

    def __init__(self, C):
        super().__init__()
        self.op_choices = nn.ModuleDict(zip(NAMES, operations(C)))
        self.alpha = nn.Parameter(torch.linspace(-1, 1, len(NAMES)))

    def forward(self, s0, s1, weights):
        results = torch.stack([op(s1) for op in self.op_choices.values()])
        shape = [-1] + [1] * (len(results.size()) - 1)
        return torch.cat([torch.sum(results * functional.softmax(self.alpha, -1).view(*shape), 0), s0], 1)


class Gumbel(nn.Module):
    """Of FBNet and SNAS: factors that are drawn, and a latency beside the output."""

    def __init__(self, C):
        super().__init__()
        self.ops = nn.ModuleList(operations(C))
        self.latency = [0.5, 1.0, 0.1, 2.0, 1.5]
        self.thetas = nn.Parameter(torch.full((len(NAMES),), 0.2))

    def forward(self, s0, s1, weights):
        mask = functional.gumbel_softmax(self.thetas, 2.0)
        output = sum(m * op(s1) for m, op in zip(mask, self.ops))
        latency = sum(m * lat for m, lat in zip(mask, self.latency))
        return torch.cat([output, s0 * latency], 1)


class Gates(nn.Module):
    """Of ProxylessNAS: binary gates, one path with and the others without a gradient, by a class's mode."""

    MODE = "full"

    def __init__(self, C):
        super().__init__()
        self.candidate_ops = nn.ModuleList(operations(C))
        self.wb = nn.Parameter(torch.zeros(len(NAMES)))
        self.active_index, self.inactive_index = [3], [1, 2, 4]

    def forward(self, s0, s1, weights):
        if Gates.MODE == "full":
            output = 0
            for i in self.active_index:
                output = output + self.wb[i] * self.candidate_ops[i](s1)
            for i in self.inactive_index:
                output = output + self.wb[i] * self.candidate_ops[i](s1).detach()
        else:
            output = self.candidate_ops[self.active_index[0]](s1)
        return torch.cat([output, s0], 1)


class Net(nn.Module):
    """Two cells."""

    def __init__(self, make, C=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, C, 3, padding=1, bias=False), nn.BatchNorm2d(C))
        self.cells = nn.ModuleList([make(C), make(C)])
        self.between, self.classifier = darts.entry(2 * C, C), nn.Linear(2 * C, 3)
        self.alphas = nn.Parameter(1e-3 * torch.randn(EDGES, len(NAMES)))

    def forward(self, x):
        s0 = s1 = self.stem(x)
        weights = functional.softmax(self.alphas, dim=-1)
        s1 = self.between(self.cells[0](s0, s1, weights))
        return self.classifier(self.cells[1](s0, s1, weights).mean((2, 3)))


def decay(net, t):
    for m in net.modules():
        if isinstance(m, Skipped):
            m.beta = max(0.0, 1.0 - 2 * t)


def drop(net, t):
    for m in net.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.3 if t < 0.5 else 0.1


def binarise(net, t):
    for m in net.modules():
        if isinstance(m, Gates):
            best = int(20 * t) % len(NAMES)
            m.active_index, m.inactive_index = [best], [i for i in range(len(NAMES)) if i != best]
            with torch.no_grad():
                m.wb.zero_()
                m.wb[best] = 1.0
    Gates.MODE = "none" if 0.4 < t < 0.6 else "full"


def perturb(net, t):
    """Of SDARTS: another tensor of weights for a step."""
    with torch.no_grad():
        net.alphas.add_(torch.empty_like(net.alphas).uniform_(-1e-3, 1e-3))


def nothing(net, t):
    pass


FORMS = {
    "darts": (Cell, nothing),
    "sdarts": (Cell, perturb),
    "pc-darts": (PartialCell, nothing),
    "p-darts": (DroppedCell, drop),
    "darts-": (SkippedCell, decay),
    "nas-bench-201": (Graph, nothing),
    "gdas": (Hard, nothing),
    "nni": (Choice, nothing),
    "fbnet": (Gumbel, nothing),
    "proxyless": (Gates, binarise),
}
"""The search network's cell, and what its program changes between steps."""
