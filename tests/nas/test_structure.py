"""Structure: one trial for all mixed operations that differ in the values of their tensors alone."""

import copy
import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nxcore
from nxcore import nas
from nxcore.graphs.structure import structure
from nxcore.nas import mixture
from tests.nas import darts
from tests.stand_ins import stand_in
from tests.table import for_each

mixture_has = stand_in(mixture)


def mixed(stride=1, channels=4):
    return darts.MixedOp(channels, stride)


def hooked(module):
    module.register_forward_hook(lambda *_: None)


def assigned(module, name, value):
    setattr(module, name, value)


CHANGES = {
    "a mode": lambda m: m._ops[3].train(mode=False),
    "a constant": lambda m: assigned(m._ops[0], "stride", 2),
    "a constant's type": lambda m: assigned(m._ops[0], "stride", True),
    "a number of bits": lambda m: assigned(m._ops[1][1], "eps", -0.0),
    "a new attribute": lambda m: assigned(m, "scale", 2.0),
    "a parameter's shape": lambda m: assigned(
        m._ops[4].op[1], "weight", nn.Parameter(torch.zeros(4, 1, 1, 1))
    ),
    "a parameter without a gradient": lambda m: m._ops[4].op[1].weight.requires_grad_(False),
    "a parameter of another dtype": lambda m: m._ops[4].double(),
    "no buffer": lambda m: assigned(m._ops[1][1], "running_mean", None),
    "a shared parameter": lambda m: assigned(m._ops[4].op[6], "weight", m._ops[4].op[2].weight),
    "a shared module": lambda m: m._ops[4].op.__setitem__(4, m._ops[4].op[0]),
    "a class": lambda m: assigned(m._ops[3], "__class__", nn.Flatten),
    "a child more": lambda m: m.add_module("extra", nn.Identity()),
}


@for_each("change", CHANGES)
def test_two_modules_have_one_structure_until_one_of_them_changes(change):
    one, other = mixed(), mixed()
    assert structure(one) == structure(other) is not None
    CHANGES[change](other)
    assert structure(one) != structure(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: hooked(m._ops[4]),
        lambda m: assigned(m, "table", {}),
        lambda m: assigned(m, "held", torch.ones(2)),
        lambda m: assigned(m, "forward", functools.partial(m.forward)),
        lambda m: m._ops[4].op[1].weight.register_hook(lambda g: g),
    ],
    ids=["hooks", "a dictionary", "a tensor", "a forward of its own", "a tensor's hooks"],
)
def test_what_can_not_be_compared_has_none(change):
    module = mixed()
    change(module)
    assert structure(module) is None


def test_a_module_within_itself_ends():
    module = nn.Sequential()
    module.add_module("again", module)
    assert structure(module) is not None


class Scaled(darts.MixedOp):
    """Returns something else where a switch is on."""

    def __init__(self, switch):
        super().__init__(4, 1)
        self.switch = switch

    def forward(self, x, weights):
        return super().forward(x, weights) * (2 if self.switch else 1)


def counted(monkeypatch):
    tried, own = [], mixture.tried
    monkeypatch.setattr(mixture, "tried", lambda module, *how: tried.append(module) or own(module, *how))
    return tried


def test_a_network_has_a_trial_for_each_structure_and_the_marks_of_one_each(monkeypatch, mixture_has):
    torch.manual_seed(0)
    net = darts.Network(4, 3, 5, 2).double()
    apart = copy.deepcopy(net)
    tried = counted(monkeypatch)
    nas.patch(net, graphs=False)
    kinds = {(m._ops[0].stride, m._ops[4].op[1].in_channels) for m in tried}
    assert len(tried) == len(kinds) == 5, "of 25: normal and reducing ones, by their channels"
    mixture_has(structure=lambda _: None)
    nas.patch(apart, graphs=False)
    assert len(tried) == 5 + 25
    for one, other in zip(net.modules(), apart.modules(), strict=True):
        marks = [
            (
                vars(m).get(mixture.TAKES),
                vars(m).get(mixture.WRITES),
                [m._ops[0] is zero for zero, _ in vars(m).get(mixture.ZEROS, ())],
                [watch.held[0][1:] for _, watch in vars(m).get(mixture.ZEROS, ())],
            )
            for m in (one, other)
        ]
        assert marks[0] == marks[1]
    x, weights = torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double()
    torch.testing.assert_close(net(x, *weights), apart(x, *weights))


@pytest.mark.parametrize(
    ("runs", "tried"), [("cpu cuda", ["cpu"]), ("cuda", ["cpu", "cuda"]), ("", ["cpu", "cuda"])]
)
def test_a_trial_is_on_the_cpu_if_the_code_can_run_there(runs, tried, mixture_has):
    seen = []
    module = SimpleNamespace(
        parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"), is_meta=False)]),
        buffers=lambda: iter(()),
        modules=lambda: [nn.BatchNorm2d(4)],
    )
    mixture_has(proven=lambda _: (None, None))
    trial = mixture.Trial(None, {}, [], written=False, reads=None, count=None)

    def tried_on(device, *_):
        seen.append(device.type)
        return trial if device.type in runs else "a trial call raised"

    mixture_has(tried_on=tried_on)
    assert mixture.tried(module) == (trial if runs else "a trial call raised")
    assert seen == tried


def test_trials_are_torchs_and_read_no_record(monkeypatch):
    session = nxcore.session.default()
    before, read = {*session.chooser.choices}, []
    monkeypatch.setattr(session.wisdom, "read", lambda problem: read.append(problem))
    net = darts.Network(12, 3, 3, 2)  # of channels that no other test has
    assert nas.patch(net, graphs=False).replaced
    made = [choice for key, choice in session.chooser.choices.items() if key not in before]
    assert {(choice.decision.chosen, choice.decision.rule) for choice in made} <= {("torch", "preferred")}
    assert not read


def test_a_refusal_counts_for_its_module_alone(monkeypatch):
    tried = counted(monkeypatch)
    swap = nas.patch(nn.ModuleList(Scaled(on) for on in (True, True, False, False)), graphs=False)
    assert len(tried) == 3, "both refused ones, and one of the others"
    assert {name for name in swap.left if name in "0123"} == {"0", "1"}
    assert {name for name in swap.replaced if name in "0123"} == {"2", "3"}
