"""A search's kernels are compiled by workers before its first epoch; what it computes is unchanged."""

import copy

import pytest
import torch

import nxcore
from nxcore import nas
from nxcore.choose import ahead, prune
from nxcore.cli import trainings
from nxcore.measure.decision import Candidate, Decision
from nxcore.nas import Trainer
from nxcore.session import default
from nxcore.store.pages import Page
from tests.nas.test_trainer import LEAST, images
from tests.nn.test_prepare import Answering
from tests.null.fakes import timing
from tests.stand_ins import stand_in

nas_has = stand_in(nas)


def uncompiled(tuner, problem):
    """Take each kernel of Numba for one that must be compiled."""
    return [b.label(k) for b, k in tuner.taking_part(problem.op) if b.name == "numba"]


@pytest.fixture
def session(monkeypatch):
    """The default session, with workers that answer at once."""
    found = default()
    monkeypatch.setattr(found.tuner, "workers", Answering())
    monkeypatch.setattr(ahead, "uncompiled", uncompiled)
    monkeypatch.setattr(prune, "from_disk", lambda *_: None)
    return found


@pytest.fixture
def trainer():
    return Trainer(images(), LEAST, seed=1)


def state(trainer):
    return copy.deepcopy((trainer.net.state_dict(), trainer.arch.state_dict(), trainer.generator.get_state()))


def test_workers_compile_what_both_passes_want_and_nothing_has_changed(session, trainer):
    before, random, told = state(trainer), torch.get_rng_state(), []
    with nxcore.policy("measure"):
        nas.prepare(trainer, lambda *step: told.append(step))
    asked = {op for op, _ in session.tuner.workers.asked}
    assert {"batch_norm", "batch_norm_backward"} <= asked, asked
    assert told[-1][1:] == (len(told), len(told))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in (*trainer.net.parameters(), *trainer.arch.parameters()))
    for was, now in zip(before[:2], state(trainer)[:2], strict=True):
        assert all(torch.equal(value, now[name]) for name, value in was.items())
    assert torch.equal(before[2], trainer.generator.get_state())
    assert not any(c.decision.rule == "measured" for c in session.chooser.choices.values())


def test_the_found_network_is_prepared_too(session, trainer):
    trainer._enter("retraining")
    with nxcore.policy("measure"):
        nas.prepare(trainer)
    assert "batch_norm" in {op for op, _ in session.tuner.workers.asked}


@pytest.mark.parametrize(("policy", "most"), [("frozen", 4), ("measure", 1)])
def test_else_nothing_is_done(policy, most, session, trainer):
    session.tuner.workers.most = most
    trainer.net.forward = None
    with nxcore.policy(policy):
        nas.prepare(trainer)
    assert session.tuner.workers.asked == []


def test_of_a_problem_on_record_the_winner_alone_is_compiled(session, trainer, monkeypatch):
    def page(chosen):
        seen = (Candidate(chosen, chosen, timing=timing([1.0])),)
        return Page(Decision(chosen, "measured", "", seen), None, {})

    for chosen, compiles in (("torch", False), ("numba", True)):
        found = page(chosen)
        monkeypatch.setattr(session.wisdom, "read", lambda _, found=found: found)
        with nxcore.policy("measure"):
            nas.prepare(trainer)
        assert bool(session.tuner.workers.asked) == compiles


def followed(folder, *, quiet):
    return trainings.followed(
        lambda _: Trainer(images(), LEAST), [folder], torch.device("cpu"), None, quiet=quiet
    )


@pytest.mark.parametrize("quiet", [False, True])
def test_the_command_prepares_each_network_before_its_first_epoch(quiet, nas_has, tmp_path, capsys):
    done = []

    def prepare(trainer, advance=lambda *_: None):
        done.append((type(trainer.net), len(trainer.history)))
        advance("numba of sum", 1, 2)

    nas_has(prepare=prepare)
    assert not followed(tmp_path, quiet=quiet)[1]
    assert done == [(nas.SearchNetwork, 0), (nas.EvalNetwork, 3)]
    told = capsys.readouterr().err
    assert told == ("" if quiet else "compiled 1/2: numba of sum\n")


def test_an_interruption_while_compiling_ends_the_command(nas_has, tmp_path):
    def prepare(trainer, advance=None):
        raise KeyboardInterrupt

    nas_has(prepare=prepare)
    assert followed(tmp_path, quiet=True)[1]
