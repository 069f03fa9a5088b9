"""A change between the steps of an accelerated model that is replayed as dynamo's graphs: it is seen."""

import collections
import contextvars
import functools
import math
import os
import random
import threading
import types

import pytest
import torch
from torch import nn

from tests.nn.tape import part
from tests.nn.traced import CALLS, Config, Net, agree, reads, replayed, two
from tests.table import for_each

pytestmark = pytest.mark.usefixtures("tape")

FACTOR = 2.0
FUNCTIONS = {"act": torch.tanh}
CONFIG = Config()
SPACE = types.SimpleNamespace(factor=2.0)
NAMES = {"double"}


PARTIAL = functools.partial(torch.mul, torch.tensor(2.0))
QUEUE = collections.deque([2.0])
TENSOR = torch.tensor(2.0)


class Described:
    def __get__(self, of, cls):
        return 2.0


class Slot:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 2.0


class Meta(type):
    meta = 2.0


class Base(metaclass=Meta):
    described = Described()

    def __init__(self):
        self.slot = Slot()

    @property
    def twice(self):
        return 2.0

    def by(self, x):
        return 2 * x


class Own(Base):
    pass


OWN = Own()
NESTED = {"model": {"factors": [2.0]}}
VARIABLE = contextvars.ContextVar("factor", default=2.0)
LOCAL = threading.local()
LOCAL.factor = 2.0


class Sized:
    def __len__(self):
        return 2

    def __getattr__(self, name):
        return 2.0


SIZED = Sized()


def helper(x):
    return 2 * x


def defaulted(x, factor=2.0):
    return factor * x


def named(x, *, factor=2.0):
    return factor * x


def scaled(factor):
    def by(x):
        return factor * x

    def change(value):
        nonlocal factor
        factor = value

    return by, change


BY, CHANGE = scaled(2.0)


def draw(_, x):
    return x * random.choice([1.0, 2.0, 3.0])


def environment(_, x):
    return x * float(os.environ.get("NXCORE_TEST_FACTOR", "2"))


PLANTS = {
    "a global": (lambda _, x: FACTOR * x, lambda m, ours: m.setitem(globals(), "FACTOR", 3.0)),
    "a function": (lambda _, x: helper(x), lambda m, ours: m.setitem(globals(), "helper", lambda x: 3 * x)),
    "a registry": (
        lambda _, x: FUNCTIONS["act"](x),
        lambda m, ours: m.setitem(FUNCTIONS, "act", torch.sigmoid),
    ),
    "a registry's size": (
        lambda _, x: x * len(FUNCTIONS),
        lambda m, ours: m.setitem(FUNCTIONS, "other", torch.sigmoid),
    ),
    "a config": (lambda _, x: CONFIG.factor * x, lambda m, ours: m.setattr(CONFIG, "factor", 3.0)),
    "a namespace": (lambda _, x: SPACE.factor * x, lambda m, ours: m.setattr(SPACE, "factor", 3.0)),
    "a set": (lambda _, x: x * ("double" in NAMES), lambda m, ours: m.setitem(globals(), "NAMES", set())),
    "an environment variable": (environment, lambda m, ours: m.setenv("NXCORE_TEST_FACTOR", "3")),
    "a class attribute": (lambda net, x: net.factor * x, lambda m, ours: m.setattr(Net, "factor", 3.0)),
    "a method": (
        lambda net, x: net.head(x).sum() * x,
        lambda m, ours: m.setattr(nn.Linear, "forward", lambda layer, x: x @ (2 * layer.weight.T)),
    ),
    "a default": (lambda _, x: defaulted(x), lambda m, ours: m.setattr(defaulted, "__defaults__", (3.0,))),
    "a module of python's": (lambda _, x: math.pi * x, lambda m, ours: m.setattr(math, "pi", 3.0)),
    "another method": (lambda _, x: OWN.by(x), lambda m, ours: m.setattr(Base, "by", lambda own, x: 3 * x)),
    "its method": (lambda _, x: Own.by(0, x), lambda m, ours: m.setattr(Base, "by", lambda o, x: 3 * x)),
    "a class's class": (lambda _, x: Own.meta * x, lambda m, ours: m.setattr(Meta, "meta", 3.0)),
    "a property": (
        lambda _, x: OWN.twice * x,
        lambda m, ours: m.setattr(Base, "twice", property(lambda own: 3.0)),
    ),
    "a descriptor": (
        lambda _, x: OWN.described * x,
        lambda m, ours: m.setattr(Described, "__get__", lambda own, of, cls: 3.0),
    ),
    "a slot": (lambda _, x: OWN.slot.value * x, lambda m, ours: m.setattr(OWN.slot, "value", 3.0)),
    "a queue": (lambda _, x: QUEUE[0] * x, lambda m, ours: QUEUE.appendleft(3.0)),
    "a partial": (
        lambda _, x: PARTIAL(x),
        lambda m, ours: m.setitem(globals(), "PARTIAL", functools.partial(torch.mul, torch.tensor(3.0))),
    ),
    "torch's function": (
        lambda _, x: nn.functional.gelu(x),
        lambda m, ours: m.setattr(nn.functional, "gelu", torch.tanh),
    ),
    "torch's method": (
        lambda _, x: x.tanh(),
        lambda m, ours: m.setattr(torch.Tensor, "tanh", torch.Tensor.sigmoid),
    ),
    "a tensor": (lambda _, x: TENSOR * x, lambda m, ours: m.setitem(globals(), "TENSOR", torch.tensor(3.0))),
    "a variable of a function": (lambda _, x: BY(x), lambda m, ours: CHANGE(3.0)),
    "a nested table": (
        lambda _, x: NESTED["model"]["factors"][0] * x,
        lambda m, ours: m.setitem(NESTED["model"], "factors", [3.0]),
    ),
    "a set that grows": (lambda _, x: x * (1 + len(NAMES)), lambda m, ours: NAMES.add("other")),
    "a default by name": (
        lambda _, x: named(x),
        lambda m, ours: m.setattr(named, "__kwdefaults__", {"factor": 3.0}),
    ),
    "a length": (lambda _, x: len(SIZED) * x, lambda m, ours: m.setattr(Sized, "__len__", lambda own: 3)),
    "an attribute that is made": (
        lambda _, x: SIZED.factor * x,
        lambda m, ours: m.setattr(Sized, "__getattr__", lambda own, name: 3.0),
    ),
    "a context's variable": (lambda _, x: VARIABLE.get() * x, lambda m, ours: VARIABLE.set(3.0)),
    "a thread's variable": (lambda _, x: LOCAL.factor * x, lambda m, ours: m.setattr(LOCAL, "factor", 3.0)),
    "a draw of python's": (draw, lambda m, ours: None),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo reads it
@for_each("plant", PLANTS)
def test_a_change_outside_of_the_model_is_seen(tape, plant, monkeypatch):
    use, change = PLANTS[plant]
    ours, plain = two(use)
    agree(ours, plain, CALLS)
    before = part(ours).captured
    change(monkeypatch, ours)
    agree(ours, plain, 3)
    monkeypatch.undo()
    agree(ours, plain, 3)
    assert before or plant == "a draw of python's", part(ours).state


def hook(net):
    net.head.register_forward_hook(lambda module, args, out: 1.5 * out)


def hook_before(net):
    net.norm.register_forward_pre_hook(lambda module, args: (2 * args[0],))


def own_hook(net):
    net.register_forward_hook(lambda module, args, out: {"scores": 1.5 * out["scores"]})


def rate(net):
    net.drop.p = 0.7


def momentum(net):
    net.norm.momentum = 0.3


def weight(net):
    net.head.weight = nn.Parameter(2 * net.head.weight.detach())


def data(net):
    net.head.weight.data = 2 * net.head.weight.data


def layer(net):
    net.head = nn.Linear(6, 3, bias=False)
    nn.init.ones_(net.head.weight)


def replaced(net):
    forward = net.head.forward
    net.head.forward = lambda x: 2 * forward(x)


def frozen(net):
    net.head.weight.requires_grad_(False).grad = None


def evaluated(net):
    net.norm.eval()


def own(net):
    net.own = 3.0


def listed(net):
    net.items[0] = 3.0


def tabled(net):
    net.table["factor"] = 3.0


def configured(net):
    net.config.factor = 3.0


def other_class(net):
    net.head.__class__ = Doubled


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


CHANGES = [hook, hook_before, own_hook, rate, momentum, weight, data, layer, replaced, frozen, evaluated]


@for_each("change", [*CHANGES, own, listed, tabled, configured, other_class])
def test_a_change_of_the_model_is_seen(tape, change):
    ours, plain = replayed(tape, reads)
    for net in (ours, plain):
        change(net)
    agree(ours, plain, 4)
