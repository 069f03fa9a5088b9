"""A network that may be replayed whole: its calls before a capture, beside one, and where there is none."""

import copy

import pytest
import torch
from torch import nn

from nxcore import nas, session
from nxcore.context import PREFERENCE, Purpose
from nxcore.graphs import whole as of_graphs
from nxcore.graphs.measured import MORE
from nxcore.graphs.part import MET, SETTLED
from nxcore.nas.watch import PART
from nxcore.nn import watching
from nxcore.nn.groups import Groups
from tests.nas import darts
from tests.nas.test_replays import agree, taped
from tests.nas.test_replays import step as darts_step
from tests.nas.test_whole import taken

__all__ = ["taken"]

pytestmark = pytest.mark.usefixtures("decided", "taken")


@pytest.mark.slow
def test_while_steps_are_compared_another_class_of_a_module_runs_and_the_capture_stays(monkeypatch):
    torch.manual_seed(0)
    plain = darts.Network().double()
    patched = copy.deepcopy(plain)
    nas.patch(patched, watch=False)
    tape = taped(patched)
    monkeypatch.setattr(watching, "comparing", lambda model: True)
    groups = Groups()
    groups.rest(patched, frozenset({"BatchNorm2d"}))
    agree(plain, patched, SETTLED)
    states = nas.replays(patched)
    assert states[""] == "runs: no call in training yet"
    assert states["cells.0"].startswith("replays")
    groups.rest(patched, frozenset())
    agree(plain, patched, SETTLED)
    states = nas.replays(patched)
    assert states[""].startswith("replays")
    assert not states["cells.0"].startswith("replays")
    before = tape.captured, tape.replayed
    for resting in ("BatchNorm2d", "Cell"):
        groups.rest(patched, frozenset({resting}))
        agree(plain, patched, SETTLED)
    assert (tape.captured, tape.replayed) == before
    groups.rest(patched, frozenset())
    agree(plain, patched, 1)
    assert (tape.captured, tape.replayed) == (before[0], before[1] + 2)


def test_one_cell_is_no_network():
    patched = nn.Sequential(darts.Cell(4, 8, 8, 2, False, False))
    nas.patch(patched, watch=False)
    assert type(patched) is nn.Sequential
    assert "" not in nas.replays(patched)


def seen_before(patched, **how):
    """Return whether torch was to serve each run of a network that is taken, in the order of runs."""
    part, seen = vars(patched)[PART], []
    run = part.run

    class Noted(type(run)):
        def __call__(self, module, *tensors):
            seen.append(PREFERENCE.get().purpose is Purpose.WAIT)
            if how.pop("full", False):
                raise torch.OutOfMemoryError("no memory")
            return super().__call__(module, *tensors)

    run.__class__ = Noted
    return seen


def fresh():
    torch.manual_seed(0)
    plain = darts.Network().double()
    patched = copy.deepcopy(plain)
    nas.patch(patched, watch=False)
    return plain, patched


@pytest.mark.slow
def test_torch_serves_the_calls_before_a_capture(monkeypatch):
    plain, patched = fresh()
    taped(patched)
    seen = seen_before(patched)
    agree(plain, patched, 2)
    assert seen[:2] == [True, True]
    assert True not in seen[2:], "runs of the capture"
    assert nas.replays(patched)[""].startswith("replays")
    assert len(seen) > 3


@pytest.mark.slow
def test_pairs_that_wait_are_measured_in_a_run_before_the_recording(monkeypatch):
    runs = []
    for waiting in (0, 1):
        plain, patched = fresh()
        tape = taped(patched)
        tape.seconds = lambda work: work() and 1.0  # no run is timed
        seen = seen_before(patched)
        monkeypatch.setattr(session.default().chooser.pairs, "waiting", waiting)
        agree(plain, patched, 2)
        assert nas.replays(patched)[""].startswith("replays") or "no faster" in nas.replays(patched)[""]
        runs.append(len(seen))
    assert runs[1] == runs[0] + MORE


@pytest.mark.slow
@pytest.mark.parametrize(("share", "kept"), [(0.01, True), (0.5, False)])
def test_a_run_of_a_capture_is_compared_with_torchs_own_result(share, kept, monkeypatch):
    _, patched = fresh()
    taped(patched)
    seen = seen_before(patched)
    run = vars(patched)[PART].run
    whole_run = type(run).__call__

    class Wrong(type(run)):
        def __call__(self, module, *tensors):
            found = whole_run(self, module, *tensors)
            return found if seen[-1] else found + share * found.detach()  # by kernels alone

    run.__class__ = Wrong
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double()
    for _ in range(2):
        darts_step(patched, x, logits)
    state = nas.replays(patched)[""]
    assert state.startswith("replays") == kept, state
    assert kept or "torch's own result differs from the first, by 0.33 of the result" in state


@pytest.mark.slow
def test_torchs_own_result_counts_for_its_own_call_alone(monkeypatch):
    _, patched = fresh()
    taped(patched)
    part, waiting = vars(patched)[PART], [True]
    monkeypatch.setattr(type(session.default()), "learning", property(lambda _: waiting[0]))
    for n in range(MET):
        waiting[0] = n < 5
        darts_step(patched, torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double())
        assert (part._torchs is None) == (n > 1)
    assert part.captured


def test_kernels_serve_where_there_is_no_capture(monkeypatch):
    plain, patched = fresh()
    seen = seen_before(patched)
    agree(plain, patched, 1)
    assert seen == [False]


@pytest.mark.slow
@pytest.mark.parametrize("full", ["forward", "backward"])
def test_kernels_serve_the_call_for_which_torch_has_no_memory(full, monkeypatch):
    plain, patched = fresh()
    taped(patched)
    monkeypatch.setattr(of_graphs, "_fits", lambda *_: full == "forward")
    seen = seen_before(patched, full=full == "forward")
    agree(plain, patched, 1)
    assert seen == [True, False]
    agree(plain, patched, 2)
    assert True not in seen[1:], "nor any later one"


@pytest.mark.parametrize(("free", "fits"), [(5, False), (99, False), (100, True)])
def test_torch_serves_where_as_much_is_free_as_its_forward_pass_took(free, fits, cuda_answers):
    cuda_answers(
        memory_allocated=lambda _: 150, memory_reserved=lambda _: 155, mem_get_info=lambda _: (free - 5, 1000)
    )
    assert of_graphs._fits(torch.device("cuda", 0), 50) is fits
