"""Cells of other search spaces: what holds their operations, and how their code weights and adds them up."""

import torch
from torch import nn

from tests.nas import darts

NAMES = ["none", "max_pool_3x3", "skip_connect", "sep_conv_3x3", "dil_conv_3x3"]
NODES, EDGES = 2, 5


def operations(C, stride=1, names=NAMES):
    return nn.ModuleList(darts.candidate(name, C, stride) for name in names)


class Dictionary(nn.Module):
    """A dictionary of lists, by the names of edges; its rows are selected from a matrix."""

    def __init__(self, C):
        super().__init__()
        self.entry = darts.entry(C, C)
        self.edges = nn.ModuleDict({f"{j}-{i}": operations(C) for i in range(2, 2 + NODES) for j in range(i)})
        self.rows = {name: row for row, name in enumerate(self.edges)}

    def forward(self, s0, s1, weights):
        states = [self.entry(s0), s1]
        for i in range(2, 2 + NODES):
            into = []
            for j in range(i):
                row = weights[self.rows[f"{j}-{i}"]]
                into.append(sum(op(states[j]) * w for op, w in zip(self.edges[f"{j}-{i}"], row, strict=True)))
            states.append(sum(into))
        return torch.cat(states[2:], 1)


class Nested(nn.Module):
    """Lists of lists of lists; weights by ``unbind``, and a sum that grows in place."""

    def __init__(self, C):
        super().__init__()
        self.nodes = nn.ModuleList(nn.ModuleList(operations(C) for _ in range(2 + i)) for i in range(NODES))

    def forward(self, s0, s1, weights):
        states, rows = [s0, s1], iter(weights.unbind(0))
        for node in self.nodes:
            total = 0
            for x, edge in zip(states, node, strict=True):
                factors = next(rows).unbind(0)
                blend = factors[0] * edge[0](x)
                for k in range(1, len(edge)):
                    blend += torch.mul(factors[k], edge[k](x))
                total = total + blend
            states.append(total)
        return torch.cat(states[2:], 1)


class Rows(Dictionary):
    """Weights in a list: a vector for each edge."""

    def forward(self, s0, s1, weights):
        assert isinstance(weights, list)
        return super().forward(s0, s1, weights)


class Numbers(Dictionary):
    """Weights in one flat list: a number for each operation of each edge."""

    def forward(self, s0, s1, numbers):
        many = len(NAMES)
        rows = [numbers[e * many : (e + 1) * many] for e in range(EDGES)]
        return super().forward(s0, s1, rows)


class Unused(Nested):
    """A last weight of each row that nothing uses."""

    def forward(self, s0, s1, weights):
        states, edge = [s0, s1], 0
        for node in self.nodes:
            into = []
            for x, ops in zip(states, node, strict=True):
                into.append(sum(weights[edge][k] * op(x) for k, op in enumerate(ops)))
                edge += 1
            states.append(sum(into))
        return torch.cat(states[2:], 1)


class Named(nn.Module):
    """Each edge a dictionary of named operations, and one of strings as keys."""

    def __init__(self, C):
        super().__init__()
        self.edges = nn.ModuleList(
            nn.ModuleDict(zip(NAMES, operations(C), strict=True)) for _ in range(EDGES)
        )

    def forward(self, s0, s1, weights):
        states, edge = [s0, s1], 0
        for _ in range(NODES):
            into = []
            for x in states:
                row = dict(zip(NAMES, weights[edge], strict=True))
                into.append(sum(row[name] * op(x) for name, op in self.edges[edge].items()))
                edge += 1
            states.append(sum(into))
        return torch.cat(states[2:], 1)


class Alphas(Nested):
    """Its logits are its own."""

    def __init__(self, C):
        super().__init__(C)
        self.alphas = nn.Parameter(torch.randn(EDGES, len(NAMES)))

    def forward(self, s0, s1):
        return super().forward(s0, s1, self.alphas.softmax(-1))


class Partial(nn.Module):
    """A mixed operation on half of the channels; the others are passed on."""

    def __init__(self, C):
        super().__init__()
        self._ops = operations(C // 2)

    def forward(self, x, weights):
        half = x.shape[1] // 2
        mine = x[:, :half]
        blended = sum(w * op(mine) for w, op in zip(weights, self._ops, strict=True))
        return torch.cat([blended, x[:, half:]], 1)


class Net(nn.Module):
    """Two cells on an entry."""

    def __init__(self, make, C=4):
        super().__init__()
        self.stem = nn.Conv2d(3, C, 3, padding=1, bias=False)
        self.cells = nn.ModuleList([make(C), make(C)])
        self.between = darts.entry(NODES * C, C)
        self.head = nn.Linear(NODES * C, 3)

    def forward(self, x, *weights):
        x = self.stem(x)
        y = self.between(self.cells[0](x, x, *weights))
        return self.head(self.cells[1](x, y, *weights).mean((2, 3)))
