"""An accelerated model whose code the recorder can't read: its calls are dynamo's graphs, replayed."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import nxcore
from nxcore.nn import exchange, programs, watching
from nxcore.nn.programs import ModelProgram
from nxcore.program import front
from tests.nn.tape import part
from tests.nn.traced import CALLS, Net, agree, reads, replayed, step, two
from tests.stand_ins import stand_in
from tests.table import for_each

programs_has = stand_in(programs)

pytestmark = pytest.mark.usefixtures("tape")


@pytest.mark.parametrize("watch", [True, False])
def test_steps_are_replayed_with_the_numbers_of_plain_ones(tape, watch):
    ours, plain = replayed(tape, watch=watch)
    agree(ours, plain, 4)
    found = part(ours)
    assert isinstance(found, ModelProgram)
    assert watching.report(ours)[-1].startswith("the model: 7 operations: replays, 2.0x: ")
    assert "replays, 2.0x" in str(nxcore.status(ours, torch.randn(5, 4)))


def test_signatures_in_turns_are_both_replayed(tape):
    ours, plain = two()
    for number in range(2 * CALLS):
        agree(ours, plain, scale=1.0 + number % 2)
    assert part(ours).captured == 2, part(ours).state


def test_a_value_that_changes_ever_again_ends_replays(tape, programs_has):
    programs_has(IN_VAIN=2, MOST=2)
    ours, plain = replayed(tape, reads)
    for i in range(12):
        for net in (ours, plain):
            net.own = 3.0 + i
        agree(ours, plain)
    assert part(ours).state.startswith("runs: dynamo has made graphs for 2 signatures or states")
    assert not part(ours).stands


def counted(net, x):
    net.own += 1
    return x


def test_what_a_call_changes_is_changed_once(tape):
    ours, plain = two(counted)
    agree(ours, plain, CALLS + 2)
    assert ours.own == plain.own


class Saves(Net):
    """The first layers are a checkpoint, once that is switched on."""

    saves = False

    def forward(self, x, *, scale=1.0):
        def first(x):
            return self.norm(self.layer(x)).relu()

        return {"scores": self.head(checkpoint(first, x, use_reentrant=False) if self.saves else first(x))}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo reads it
def test_checkpoints_that_are_switched_on_later_run(tape):
    ours, plain = two(make=Saves)
    agree(ours, plain, CALLS + 2)
    ours.saves = plain.saves = True
    agree(ours, plain, CALLS + 2)
    assert "checkpoint" in part(ours).state


DRAWS = {
    "numpy": lambda _, x: x * torch.as_tensor(np.random.uniform(size=6)).float(),
    "numpy, behind a break": lambda _, x: broken(_, x) * torch.as_tensor(np.random.normal(size=6)).float(),
    "a generator of Python": lambda net, x: x * net.dice.random(),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo reads it
@for_each("draw", DRAWS)
def test_random_numbers_of_the_host_are_those_of_plain_calls(tape, draw):
    ours, plain = two(DRAWS[draw])
    for net in (ours, plain):
        net.dice, net.items = random.Random(0), []
    agree(ours, plain, CALLS + 3)


class Looped(Net):
    """A norm runs before the first frame of which dynamo makes a graph: it leaves out a loop with a break."""

    def __init__(self, use=None):
        super().__init__(use)
        self.before = nn.BatchNorm1d(4)

    def forward(self, x, *, scale=1.0):
        for _ in range(1):
            x = self.before(x)
            torch._dynamo.graph_break()
        return super().forward(x, scale=scale)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo reads it
def test_what_runs_before_the_first_graph_runs_once(tape):
    ours, plain = two(make=Looped)
    agree(ours, plain, CALLS + 2)
    assert "replays" in part(ours).state


def broken(net, x):
    torch._dynamo.graph_break()
    net.items.append(1.0)
    return x.tanh()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo reads it
def test_parts_of_a_model_are_replayed_where_dynamo_breaks_its_graph(tape):
    ours, plain = two(broken)
    agree(ours, plain, CALLS + 2)
    assert part(ours).captured == 2, part(ours).state
    assert len(ours.items) == len(plain.items)


def test_a_graph_that_is_not_the_models_code_is_refused(tape, programs_has):
    made = front.programmed

    def other(graph, *rest, **how):
        for node in graph.graph.nodes:
            if node.target is torch.relu or node.target == "relu":
                node.target = "sigmoid"
        graph.recompile()
        return made(graph, *rest, **how)

    programs_has(programmed=other)
    ours, plain = two()
    served = []
    for i in range(CALLS):
        x = torch.randn(5, 4)
        found = step(ours, x, i), step(plain, x, i)
        served.append(all(map(torch.allclose, *found)))
        for mine, its in zip(ours.buffers(), plain.buffers(), strict=True):
            mine.data.copy_(its)
    assert served == [True] * CALLS
    assert "differs from plain torch" in part(ours).state


def test_a_model_that_no_graph_is_made_of_runs(tape, programs_has):
    ours, plain = two()
    programs_has(programmed=lambda graph, *_, **__: graph.forward)
    agree(ours, plain, CALLS)
    assert part(ours).state == "runs: dynamo has made no graph of it"


def test_a_model_that_is_no_faster_is_given_back(tape, programs_has):
    programs_has(LOOK=1)
    tape.slow = 1e-3
    ours, plain = two()
    part(ours)._audits.due = lambda room: room()  # so one is due in the call that gives it back
    agree(ours, plain, CALLS + 1)
    assert part(ours).state.startswith("runs: 7 operations: runs: plain: replaying is no faster")
    assert not part(ours).stands


def test_more_that_is_learnt_is_recorded_anew(tape, monkeypatch):
    ours, plain = replayed(tape)
    program = part(ours)
    monkeypatch.setattr(front.Program, "has_operators", True)
    program._early = True
    program._look()
    before = tape.captured, program.made
    agree(ours, plain, 3)
    assert (tape.captured, program.made) == (before[0] + 2, before[1] + 1)
    assert program.captured == 1


def test_calls_within_a_watchs_block_run(tape):
    ours, plain = replayed(tape)
    before = tape.replayed
    part(ours).resting = True
    agree(ours, plain)
    assert tape.replayed == before
    part(ours).resting = False


def test_restore_frees_the_recordings(tape):
    ours, plain = replayed(tape)
    program, before = part(ours), tape.replayed
    nxcore.restore(ours)
    assert type(ours) is Net
    agree(ours, plain, 2)
    assert (program.captured, tape.replayed) == (0, before)


def test_compiled_models_and_models_of_parts_are_left(tape):
    net = Net()
    net.head.compile(backend="eager")
    assert nxcore.accelerate(net).replays == "are not replayed: head is compiled"
    net = nn.Sequential(Net())
    net.part = nxcore.nn.Part(lambda module, x: x)
    assert nxcore.accelerate(net).replays == "are not replayed: parts of it may be"


def test_a_program_may_compile_the_model_too(tape):
    ours, plain = replayed(tape)
    compiled = torch.compile(ours, backend="eager")
    x = torch.randn(5, 4)
    torch.manual_seed(0)
    found = compiled(x)
    torch.manual_seed(0)
    torch.testing.assert_close(found, plain(x))
    agree(ours, plain, 2)


def test_a_copy_has_no_replays(tape):
    ours, plain = replayed(tape)
    other, before = copy.deepcopy(ours), tape.replayed
    assert exchange.watch_of(other) is None
    agree(other, copy.deepcopy(plain))
    assert tape.replayed == before
