"""A network waits for its capture while problems of it are measured beside the program; torch serves it."""

from types import SimpleNamespace

import pytest
import torch

from nxcore import nas
from nxcore.choose.chooser import NOW
from nxcore.choose.survey import FEW
from nxcore.context import PREFERENCE, Purpose
from nxcore.graphs import interim, whole
from nxcore.graphs.capture import Capture
from nxcore.graphs.ledger import PLAIN, Ledger
from nxcore.graphs.whole import Whole
from nxcore.nas.mixed import MixedOp
from nxcore.nas.watch import PART
from nxcore.session import default
from tests.nas.test_replays import agree, taped
from tests.nas.test_whole import taken
from tests.nas.test_whole_turns import fresh
from tests.stand_ins import stand_in

interim_has = stand_in(interim)
whole_has = stand_in(whole)
capture_has = stand_in(Capture)

__all__ = ["taken"]

pytestmark = pytest.mark.usefixtures("decided", "taken")

PLAIN_S = 2.0  # what a step of torch takes here; a replay takes 1 s
WAITS = "runs: its problems are being measured beside the program"


class Steps(Ledger):
    """A ledger whose steps take as long as is said."""

    each = PLAIN_S

    def __init__(self):
        self.now = 0.0
        super().__init__(lambda: self.now)

    def begins(self):
        """Let a step pass."""
        self.now += self.each
        super().begins()


@pytest.fixture
def survey(monkeypatch, capture_has, whole_has):
    """Return what stands in for the survey; the first runs of captures have it measure problems."""
    survey = SimpleNamespace(open=0, taken=0, takes=lambda problem: False, stays={}, captured=set())
    survey.saved, survey.runs, survey.given, survey.left_to_calls = [], [], [], 0
    survey.pay = lambda saved, left: survey.saved.append((saved, left))
    survey.turns = SimpleNamespace(asked=False, give=lambda most: survey.given.append(most) or 0.25)
    survey.turns.asked_within = lambda seconds: False
    survey.prepare, survey.withdraw = (lambda device: None), (lambda: False)
    monkeypatch.setattr(default().chooser, "survey", survey)
    monkeypatch.setattr(default().wisdom, "has", lambda device: False)
    whole_has(Ledger=Steps, CAPTURE_COST=0.0)
    tried = Capture._tried

    def asks(self, *args):
        found = tried(self, *args)
        if PREFERENCE.get().purpose in NOW:  # not that of torch's own kernels
            survey.runs.append(self)
            survey.open = 3 * (PREFERENCE.get().purpose is Purpose.FIND)
        return found

    capture_has(_tried=asks)
    return survey


def networks():
    """Return a plain network and a patched one, with its tape."""
    plain, patched = fresh()
    return plain, patched, taped(patched)


@pytest.fixture
def waiting(survey):
    """Return the same; the patched one waits."""
    plain, patched, tape = networks()
    agree(plain, patched, Whole.settled)
    return plain, patched, tape


def test_it_is_captured_once_all_are_measured(survey, waiting):
    plain, patched, tape = waiting
    assert nas.replays(patched)[""].startswith(WAITS)
    assert len(survey.runs) == 1
    agree(plain, patched, 3)
    assert (len(survey.runs), survey.left_to_calls) == (1, 0), "no call tries while they are"
    survey.open = 0
    agree(plain, patched, 2)
    assert len(survey.runs) == 2, "what the first run's problems have led to is waited for"
    survey.open = 0
    agree(plain, patched, 1)  # what these have led to is measured in the third run
    assert nas.replays(patched)[""].startswith("replays")
    part = vars(patched)[PART]
    assert not part._waits
    assert part._interim is None
    survey.open, before, paid = 0, tape.replayed, len(survey.saved)
    agree(plain, patched, 2)
    assert (len(survey.runs), tape.replayed - before, len(survey.saved)) == (3, 4, paid)


def test_what_was_measured_within_the_run_is_waited_for_too(survey, capture_has):
    plain, patched, _ = networks()
    tried, runs = Capture._tried, []

    def fast(self, *args):
        found = tried(self, *args)
        runs.append(PREFERENCE.get().purpose is Purpose.FIND)
        survey.taken, survey.open = survey.taken + (len(runs) == 1), 0
        return found

    capture_has(_tried=fast)
    agree(plain, patched, Whole.settled)
    assert nas.replays(patched)[""].startswith(WAITS)
    agree(plain, patched, 1)
    assert nas.replays(patched)[""].startswith("replays")
    assert runs == [True, True]


@pytest.mark.parametrize("known", [False, True])
def test_a_first_run_measures_a_few_itself_where_the_device_is_known(survey, known, monkeypatch):
    monkeypatch.setattr(default().wisdom, "has", lambda device: known)
    plain, patched, _ = networks()
    agree(plain, patched, Whole.settled)
    assert survey.left_to_calls == (FEW if known else 0)
    survey.open = 0
    agree(plain, patched, 1)
    assert (len(survey.runs), survey.left_to_calls) == (2, 0), "the process is there by then"


def test_where_few_are_unknown_they_are_measured_at_once(survey, monkeypatch):
    survey.withdraw = lambda: survey.open > 0 and not setattr(survey, "open", 0)
    plain, patched, tape = networks()
    agree(plain, patched, Whole.settled)
    assert nas.replays(patched)[""].startswith("replays")
    assert len(survey.runs) == 2
    assert vars(patched)[PART]._interim is None
    before = tape.replayed
    agree(plain, patched, 2)
    assert tape.replayed - before == 4


def test_torchs_own_kernels_are_replayed_until_then(survey, waiting, monkeypatch):
    plain, patched, tape = waiting
    agree(plain, patched, PLAIN)
    assert nas.replays(patched)[""].endswith("are replayed until then: not yet"), "steps of torch are timed"
    agree(plain, patched, 1)
    assert "torch's own kernels are replayed until then: 1e+03 ms" in nas.replays(patched)[""]
    monkeypatch.setattr(MixedOp, "forward", lambda *_: pytest.fail("a replay launches what was recorded"))
    before, paid = tape.replayed, len(survey.saved)
    agree(plain, patched, 3)
    assert (tape.captured, tape.replayed - before) == (2, 3 * 2)
    assert survey.saved[paid:] == [(PLAIN_S - 1.0, 0.0)] * 3


def test_the_process_has_the_device_before_each_pass_if_steps_are_not_slow_for_that(survey, waiting):
    plain, patched, _ = waiting
    agree(plain, patched, PLAIN + 1)
    survey.turns.asked, ledger = True, vars(patched)[PART]._ledger
    agree(plain, patched, 1)
    assert survey.given == [], "that step took as long as torch's"
    ledger.each = 0.5 * PLAIN_S
    agree(plain, patched, 2)
    assert survey.given == [interim.RACE_S] * 4, "before each pass, as the mean step takes 0.75"
    assert survey.saved[-1] == (PLAIN_S - 1.0, pytest.approx(0.5, abs=0.1)), "that isn't counted against it"


@pytest.mark.parametrize(("share", "open_", "races"), [(0.5, 1, 2), (0.9, 1, 1), (0.5, 0, 1)])
def test_a_call_waits_for_more_races_if_steps_are_fast_and_there_are_more(
    survey, waiting, share, open_, races, interim_has
):
    plain, patched, _ = waiting
    agree(plain, patched, PLAIN + 1)
    survey.open, ledger = open_, vars(patched)[PART]._ledger
    survey.turns.asked_within = lambda seconds: True
    survey.turns.asked, ledger.each = True, share * PLAIN_S
    interim_has(STEP=1.5)
    held = vars(patched)[PART]._interim[1]
    held._before, held._left = (ledger.steps, ledger.elapsed_s), 0.0
    for _ in range(10):
        ledger.begins()
    capture = SimpleNamespace(replayed_ms=1e3 * (0.7 * PLAIN_S - 0.4 - interim.STAY_S))
    held._leave(capture, torch.device("cpu"))
    assert len(survey.given) == races, "each takes 0.25 s, and the step has 0.4"
    held._left, held._usual = 0.0, 0.5
    held._leave(capture, torch.device("cpu"))
    assert len(survey.given) == races + 1, "recent steps had no more"


@pytest.mark.parametrize(("spent", "captured"), [(False, False), (True, True)])
def test_a_capture_waits_until_its_cost_is_saved(survey, waiting, spent, captured, whole_has):
    plain, patched, _ = waiting
    agree(plain, patched, PLAIN + 1)
    part, survey.open = vars(patched)[PART], 0
    ledger, part._tried_s, part._patience = part._ledger, 1.0, 0
    ledger.each = 0.5 * PLAIN_S
    whole_has(CAPTURE_COST=3.0, LONGEST_S=0.0 if spent else 45.0)
    before = len(survey.saved)
    agree(plain, patched, 1)
    assert nas.replays(patched)[""].startswith("replays") is captured
    if not captured:
        agree(plain, patched, 2)
        assert len(survey.saved) - before == 2, "the third saves what lacks"
        assert nas.replays(patched)[""].startswith("replays")


def test_two_passes_before_a_gradient_run_the_second(survey, waiting):
    plain, patched, tape = waiting
    agree(plain, patched, PLAIN + 1)
    before, found = tape.replayed, []
    x = torch.randn(2, 3, 8, 8).double()
    for net in (plain, patched):
        logits = torch.full((2, 5, 8), 0.1, dtype=torch.float64, requires_grad=True)
        first, second = (net(x + i, *logits.unbind(0)) for i in range(2))
        found.append([first, second, *torch.autograd.grad((first * second).sum(), [logits])])
    torch.testing.assert_close(*found)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    assert tape.replayed - before == 2


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("changed", "the network was changed"),
        ("full", "the device has too little free memory"),
        ("slow", "replaying is no faster"),
        ("fails", "RuntimeError: no"),
    ],
)
def test_where_that_is_not_possible_calls_run(survey, waiting, how, why, interim_has, capture_has):
    plain, patched, tape = waiting
    if how == "full":
        interim_has(roomy=lambda device: False)
    elif how == "slow":
        tape.slow = 0.002
    elif how == "fails":
        capture_has(_of_whole=lambda *_: raises(RuntimeError("no")))
    agree(plain, patched, PLAIN)
    if how == "changed":
        agree(plain, patched, 1)
        for net in (plain, patched):
            norm = net.cells[0].preprocess1.op[2]
            norm.register_buffer("running_mean", norm.running_mean.clone() + 1)
    agree(plain, patched, 1)
    before = tape.replayed
    agree(plain, patched, 2)
    assert tape.replayed == before
    assert why in nas.replays(patched)[""]
    assert survey.saved == ([(PLAIN_S - 1.0, 0.0)] if how == "changed" else [])


def raises(error):
    """Raise an error."""
    raise error


def test_there_must_be_room_for_another_pool(cuda_answers):
    cuda_answers(memory_reserved=lambda device: 10 << 30)
    for free, roomy in ((19, False), (20, True)):
        cuda_answers(mem_get_info=lambda device, free=free: (free << 30, 80 << 30))
        assert interim.roomy(torch.device("cuda")) is roomy
    assert interim.roomy(torch.device("cpu"))


def test_a_capture_verifies_alone_and_its_findings_are_written_after_it(monkeypatch, capture_has):
    plain, patched, _ = networks()
    chooser, tried, order = default().chooser, Capture._tried, []
    monkeypatch.setattr(chooser.beforehand, "end", lambda: order.append("end"))

    def seen(self, *args):
        order.append(sorted(chooser.tuner.gate.store._later))
        return tried(self, *args)

    capture_has(_tried=seen)
    agree(plain, patched, 3)
    assert order[:2] == ["end", ["identities", "verdicts"]]
    assert not chooser.tuner.gate.store._later
