"""Entrants: a graph compiled by a mode or backend of ``torch.compile`` serves in place of its replays."""

import functools
import gc
import os
import subprocess
import sys

import pytest
import torch

import nxcore
from nxcore.program import front
from nxcore.program.compilers import beside
from nxcore.program.compilers.entrants import WARM, Entrants
from nxcore.program.replay import State
from tests.null.program.nets import MET, Net, agree, pair, replays
from tests.table import for_each


@pytest.fixture
def racing(tape):
    """Return a function that makes a plain model, one with an entrant, its compiled form and the entrants."""

    def made(*names, make=Net):
        torch._dynamo.reset()
        own = Entrants(names)
        backend = functools.partial(front.programmed, record=lambda _: tape, entrants=own)
        plain, ours = pair(make)
        call = torch.compile(ours, backend=backend)
        agree(call, ours, plain, MET + 1)
        assert [r.state for r in replays(ours)] == [State.OURS]
        return plain, ours, call, own

    return made


@for_each("name", ["eager", "aot_eager"])
def test_an_entrant_is_audited_and_then_serves_where_it_has_won(racing, tape, name):
    plain, ours, call, own = racing(name)
    agree(call, ours, plain, WARM)
    assert own.works == WARM + 1, own.lost  # and its compilation
    assert own.ready(None) == name
    before = tape.replayed
    agree(call, ours, plain)
    assert tape.replayed == before + 2
    own.serving = name
    agree(call, ours, plain, 3)
    assert tape.replayed == before + 2


def test_a_second_derivative_and_a_second_backward_pass_of_an_entrant_are_torchs(racing):
    plain, ours, call, own = racing("aot_eager")
    agree(call, ours, plain, WARM)
    own.serving = "aot_eager"
    found = []
    for net, model in ((call, ours), (plain, plain)):
        torch.manual_seed(1)
        model.zero_grad()
        loss = net(torch.ones(5, 4))["scores"].square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found)


class Wrong:
    """Runs a graph, with a wrong result."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, module, _inputs):
        def run(*inputs):
            return [t * self.factor if isinstance(t, torch.Tensor) else t for t in module(*inputs)]

        return run


def test_an_entrant_that_is_wrong_serves_no_call(racing, monkeypatch):
    monkeypatch.setattr("torch._dynamo.lookup_backend", lambda _: Wrong(1.5))
    plain, ours, call, own = racing("eager")
    agree(call, ours, plain, 3)
    assert own.lost[None, "eager"].startswith("a replay differs from plain torch by 0.5 of its results")
    assert not own.ready(None)
    assert list(own.report) == [f"eager: dropped: {own.lost[None, 'eager']}"]


@for_each("number", [0, 1, 3])
def test_an_entrant_without_memory_is_dropped(racing, monkeypatch, number):
    calls = []

    def backend(module, _inputs):
        def run(*inputs):
            calls.append(len(calls))
            if len(calls) > number:
                raise torch.OutOfMemoryError
            return module(*inputs)

        return run

    monkeypatch.setattr("torch._dynamo.lookup_backend", lambda _: backend)
    plain, ours, call, own = racing("eager")
    agree(call, ours, plain, 5)
    assert own.lost == {(None, "eager"): "there was too little memory"}
    gc.collect()
    assert not [e for entry in own.entries for e in (*entry._made, *entry._orders)]


def test_a_compiler_that_fails_is_dropped_with_its_words(racing, monkeypatch):
    def backend(*_):
        raise ValueError("no\nidea")

    monkeypatch.setattr("torch._dynamo.lookup_backend", lambda _: backend)
    plain, ours, call, own = racing("eager")
    agree(call, ours, plain, 2)
    assert own.lost == {(None, "eager"): "ValueError: no"}


def test_a_graph_that_can_not_be_copied_has_no_entrant(racing, monkeypatch):
    monkeypatch.setattr(front, "packed", lambda _: b"")
    plain, ours, call, own = racing("eager")
    agree(call, ours, plain, 2)
    assert own.lost == {(None, "eager"): "its graph can't be copied"}


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    for given in (["reduce_overhead"], "reduce_overhead"):
        with pytest.raises(
            nxcore.errors.InvalidInputError, match=r"entrants must be one of default, .*'reduce-"
        ):
            nxcore.accelerate(model, entrants=given)
    assert "nxcore" not in beside.names()


PROGRAM = """
import functools
import torch
from nxcore.program import front
from nxcore.program.compilers import beside
from nxcore.program.compilers.entrants import WARM, Entrants
from tests.null.program.nets import MET, agree, pair
from tests.nn.tape import Tape

beside.allowed, tape, own = lambda _: 1, Tape(), Entrants(["default"])
plain, ours = pair()
backend = functools.partial(front.programmed, record=lambda _: tape, entrants=own)
call = torch.compile(ours, backend=backend)
agree(call, ours, plain, MET + 2)
(entry,) = own.entries
assert entry._orders["default"]._process.wait() == 0
agree(call, ours, plain, WARM)
assert own.ready(None) == "default", own.lost
print(torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"])
"""


@pytest.mark.slow
def test_a_mode_is_compiled_in_another_process(tmp_path):
    around = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=around, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1\n", done.stderr
