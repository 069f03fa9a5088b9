"""Modules with operations whose ``forward`` is not, or not always, the weighted sum of their results."""
# ruff: noqa: B905  as published code has it

import functools
import os
import random

import torch
from torch import nn
from torch.nn import functional

from tests.nas import darts

FLAG = False
TABLE = {"p": 0.0}
CALLS = []


class Held:
    p = 0.0


def operations(C=4):
    return nn.ModuleList(
        [
            darts.Zero(1),
            nn.Identity(),
            nn.MaxPool2d(3, 1, 1),
            nn.Sequential(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C)),
        ]
    )


def norm(self):
    return self.ops[3][1]


class Base(nn.Module):
    """The weighted sum, which a program changes by ``set``."""

    flag = False

    def __init__(self):
        super().__init__()
        self.ops = operations()
        self.p = 0.0

    def forward(self, x, w):
        return sum(a * f(x) for a, f in zip(w, self.ops))

    def set(self, on):
        """Change what the forward depends on, as a schedule does."""
        self.p = 0.5 if on else 0.0


class Dropout(Base):
    def forward(self, x, w):
        return sum(a * functional.dropout(f(x), 0.5, self.training) for a, f in zip(w, self.ops))


class Schedule(Base):
    def forward(self, x, w):
        drop = self.training and self.p > 0
        return sum(a * (functional.dropout(f(x), self.p) if drop else f(x)) for a, f in zip(w, self.ops))


class DropPath(Base):
    def forward(self, x, w):
        out = 0
        for a, f in zip(w, self.ops):
            y = f(x)
            if self.training and self.p > 0.0:
                y = y * torch.bernoulli(torch.full((x.size(0), 1, 1, 1), 1 - self.p)) / (1 - self.p)
            out = out + a * y
        return out


class Noise(Base):
    def forward(self, x, w):
        out = super().forward(x, w)
        return out + 0.1 * torch.randn_like(out) if self.training else out


class Above(Base):
    def forward(self, x, w):
        return sum((a * f(x) for a, f in zip(w, self.ops) if a > 0.05), x * 0)


class Positive(Base):
    def forward(self, x, w):
        return sum((a * f(x) for a, f in zip(w, self.ops) if a > 0), x * 0)


class Nonzero(Base):
    def forward(self, x, w):
        total = x * 0
        for a, f in zip(w, self.ops):
            if a.item() != 0:
                total = total + a * f(x)
        return total


class Strongest(Base):
    def forward(self, x, w):
        kept = w.topk(2).indices.tolist()
        return sum(w[i] * self.ops[i](x) for i in kept)


class Argmax(Base):
    def forward(self, x, w):
        best = int(w.argmax())
        return sum(w[i] * f(x) if i == best else w[i] * f(x).detach() for i, f in enumerate(self.ops))


class FixedWeights(Base):
    def forward(self, x, w):
        return super().forward(x, w.detach())


class FixedOutputs(Base):
    def forward(self, x, w):
        return sum(a * f(x).detach() for a, f in zip(w, self.ops)) + x * 0


class FixedLast(Base):
    def forward(self, x, w):
        ys = [f(x) for f in self.ops]
        return sum(a * y for a, y in zip(w, [*ys[:-1], ys[-1].detach()]))


class Softmax(Base):
    def forward(self, x, w):
        return super().forward(x, functional.softmax(w, dim=-1))


class Relu(Base):
    def forward(self, x, w):
        return super().forward(x, functional.relu(w))


class Clamp(Base):
    def forward(self, x, w):
        return super().forward(x, w.clamp(min=0.01))


class Normalised(Base):
    def forward(self, x, w):
        return super().forward(x, w / w.abs().sum().clamp(min=1.0))


class Where(Base):
    def forward(self, x, w):
        return super().forward(x, torch.where(w > 0.02, w, torch.zeros_like(w)))


class Batch(Base):
    def forward(self, x, w):
        out = super().forward(x, w)
        return out * 2 if x.shape[0] > 4 else out


class Side(Base):
    def forward(self, x, w):
        out = super().forward(x, w)
        return out[:, :, :-1] if x.size(2) % 2 else out


class Global(Base):
    def forward(self, x, w):
        out = super().forward(x, w)
        return out * 2 if FLAG else out

    def set(self, on):
        globals()["FLAG"] = on


class OfClass(Base):
    def forward(self, x, w):
        out = super().forward(x, w)
        return out * 2 if self.flag else out

    def set(self, on):
        OfClass.flag = on


class OfNamedClass(Base):
    def forward(self, x, w):
        out = super().forward(x, w)
        return out * 2 if OfNamedClass.flag else out

    def set(self, on):
        OfNamedClass.flag = on


class OfOther(Base):
    def forward(self, x, w):
        out = super().forward(x, w)
        return out + out if Held.p else out

    def set(self, on):
        Held.p = 0.5 if on else 0.0


class Table(Base):
    def forward(self, x, w):
        out = super().forward(x, w)
        return out + out if TABLE["p"] else out

    def set(self, on):
        TABLE["p"] = 0.5 if on else 0.0


class OwnTable(Base):
    def __init__(self):
        super().__init__()
        self.cfg = {"p": 0.0}

    def forward(self, x, w):
        out = super().forward(x, w)
        return out + out if self.cfg["p"] else out

    def set(self, on):
        self.cfg["p"] = 0.5 if on else 0.0


def closure():
    state = [0.0]
    twice = 0.0

    class Closure(Base):
        def forward(self, x, w):
            out = sum(a * f(x) for a, f in zip(w, self.ops))
            return out + out if state[0] or twice else out

        def set(self, on):
            nonlocal twice
            state[0], twice = (0.0, 1.0) if on else (0.0, 0.0)

    return Closure()


class Default(Base):
    def forward(self, x, w, twice=[]):  # noqa: B006  that is the case
        out = super().forward(x, w)
        return out + out if twice else out

    def set(self, on):
        held = Default.forward.__defaults__[0]
        held[:] = [1] if on else []


class Environment(Base):
    def forward(self, x, w):
        out = super().forward(x, w)
        return out + out if os.environ.get("DROP") else out

    def set(self, on):
        os.environ["DROP"] = "1" if on else ""


class Counter(Base):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, w):
        self.calls += 1
        out = super().forward(x, w)
        return out + out if self.calls % 3 == 0 else out


class GlobalCounter(Base):
    def forward(self, x, w):
        CALLS.append(1)
        out = super().forward(x, w)
        return out + out if len(CALLS) % 4 > 1 else out


class Hooked(Base):
    def set(self, on):
        if on:
            self.hook = self.ops[3].register_forward_hook(lambda module, args, y: y * 2)
        else:
            self.hook.remove()


class Written(Base):
    def __init__(self):
        super().__init__()
        self.ops[1] = nn.ReLU(inplace=True)


class GrownInPlace(Base):
    def forward(self, x, w):
        y = self.ops[3](x)
        out = w[3].detach() * y
        y += 1
        for a, f in zip(w[:3], self.ops[:3]):
            out += a * f(x)
        return out + y * 0.5


class Residual(Base):
    def forward(self, x, w):
        return x + super().forward(x, w)


class Skip(Base):
    """A skip connection whose factor decays."""

    def __init__(self):
        super().__init__()
        self.beta = 1.0

    def forward(self, x, w):
        return super().forward(x, w) + self.beta * x

    def set(self, on):
        self.beta = 0.5 if on else 0.0


class Drawn(Base):
    def forward(self, x, w):
        return super().forward(x, w) if random.random() < 0.5 else x * w.sum()


class Unused(Base):
    def forward(self, x, w):
        torch.rand(1)
        return super().forward(x, w)


class OfChild(Base):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x, w):
        out = super().forward(x, w)
        return out + out if self.drop.training and self.drop.p < 0.3 else out

    def set(self, on):
        self.drop.p = 0.1 if on else 0.5


class ChildMode(Base):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x, w):
        out = super().forward(x, w)
        return out if self.drop.training else out + out

    def set(self, on):
        self.drop.train(not on)


class Half(Base):
    def forward(self, x, w):
        return super().forward(x, w.half().to(x.dtype))


class Rolled(Base):
    def forward(self, x, w):
        return super().forward(x, w.roll(1))


class Reversed(Base):
    def forward(self, x, w):
        return sum(a * f(x) for a, f in zip(w, reversed(list(self.ops))))


class Shorter(Base):
    def forward(self, x, w):
        return sum(a * f(x) for a, f in zip(w[:2], self.ops))


class Without(Base):
    """Operations that it skips get no gradient."""

    def forward(self, x, w):
        return sum(a * f(x) for a, f in zip(w, self.ops) if not isinstance(f, nn.Sequential) or a > 0.1)


class Twice(Base):
    def forward(self, x, w):
        self.ops[3](x)
        return super().forward(x, w)


class Frozen(Base):
    def forward(self, x, w):
        with torch.no_grad():
            return super().forward(x, w)


class Evaluated(Base):
    def forward(self, x, w):
        was = self.ops[3].training
        self.ops[3].eval()
        out = super().forward(x, w)
        self.ops[3].train(was)
        return out


class Scaled(Base):
    def forward(self, x, w):
        return super().forward(x, w) * (2.0 if self.p else 1.0)


class Method(Base):
    def factor(self):
        return 1.0

    def forward(self, x, w):
        return super().forward(x, w) * self.factor()

    def set(self, on):
        Method.factor = (lambda self: 2.0) if on else (lambda self: 1.0)


class OfFunction(Base):
    def forward(self, x, w):
        return super().forward(x, w) * scale()

    def set(self, on):
        globals()["scale"] = (lambda: 2.0) if on else (lambda: 1.0)


def scale():
    return 1.0


class Partially(Base):
    def forward(self, x, w):
        return functools.reduce(torch.add, [a * f(x) for a, f in zip(w, self.ops)]) + 0.0 * w.sum().detach()


class Caught(Base):
    def forward(self, x, w):
        try:
            if w.max() > 0.5:
                return x * w[0]
        except Exception:  # noqa: BLE001  that is the case
            pass
        return super().forward(x, w)


class Gated(Base):
    """An operation that returns zeros until a program opens it."""

    def __init__(self):
        super().__init__()
        self.ops[0] = Gate()

    def set(self, on):
        Gate.factor = 1.0 if on else 0.0


class Gate(nn.Module):
    factor = 0.0

    def forward(self, x):
        return x * self.factor


class Reassigned(Base):
    def doubled(self, x, w):
        return 2 * Base.forward(self, x, w)

    def set(self, on):
        Reassigned.forward = Reassigned.doubled if on else Base.forward


class Pruned(Base):
    """Its list gets shorter, and longer again."""

    def set(self, on):
        if on:
            self.rest, self.ops = self.ops[3:], self.ops[:3]
        else:
            self.ops = nn.ModuleList([*self.ops, *self.rest])
            del self.rest


MAKES = {
    cls.__name__: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Base) and cls is not Base
}
MAKES["Closure"] = closure
