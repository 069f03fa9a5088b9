"""Ctrl-C ends a command also where other code swallows the exception."""

import signal

import pytest
import torch

from nxcore import cli
from nxcore.cli import epochs, interruption, render, scoreboard, tune
from nxcore.offline import ahead
from tests.stand_ins import stand_in

cli_has = stand_in(cli)


@pytest.fixture(autouse=True)
def handler():
    """Start each test with Python's own handler, as a program starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def lose() -> None:
    """Interrupt a block that swallows it."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_lost_interruption_is_raised_once_at_the_next_step():
    with interruption.noted():
        interruption.raise_lost()  # there was none
        lose()
        with pytest.raises(KeyboardInterrupt):
            interruption.raise_lost()
        interruption.raise_lost()


def test_none_is_left_to_a_later_command():
    with interruption.noted():
        lose()
    interruption.raise_lost()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "handled"])
def test_a_handler_of_the_programs_own_stays(own):
    signal.signal(signal.SIGINT, own)
    with interruption.noted():
        assert signal.getsignal(signal.SIGINT) is own
    assert signal.getsignal(signal.SIGINT) is own


@pytest.mark.parametrize(
    ("shown", "step"),
    [
        (lambda: render.progress("a", quiet=True), lambda found: found("b", 1, 2)),
        (lambda: render.progress("a"), lambda found: found("b", 1, 2)),
        (lambda: epochs.watching((), quiet=True), lambda found: found({})),
        (lambda: scoreboard.watching(2), lambda found: found[0]("b", 1, 2)),
    ],
    ids=["quiet", "progress", "epochs", "scoreboard"],
)
def test_each_display_raises_it_at_its_beginning_and_at_a_step(shown, step):
    with interruption.noted():
        lose()
        with pytest.raises(KeyboardInterrupt), shown():
            pytest.fail("it began")
        with shown() as found:
            lose()
            with pytest.raises(KeyboardInterrupt):
                step(found)


def test_tune_ends_with_what_it_has_measured(monkeypatch):
    class Measured:
        op = name = "add"

        def to_dict(self):
            return {"op": self.op}

    def tuned(*_, **__):
        yield Measured()
        lose()
        yield Measured()
        pytest.fail("it went on")

    monkeypatch.setattr(ahead, "tuned", tuned)
    with interruption.noted():
        found = tune.tuned([None] * 3, again=False, budget=None, quiet=True)
    assert found == {"rows": [{"op": "add"}] * 2, "left": 1, "stopped": "interrupted"}


def test_a_command_notes_interruptions(cli_has):
    cli_has(app=lambda *_: seen.append(signal.getsignal(signal.SIGINT)))
    seen = []
    cli.main()
    assert seen != [signal.default_int_handler]


@pytest.mark.parametrize("interrupted", [True, False])
def test_what_fails_after_an_interruption_is_no_traceback(cli_has, interrupted):
    def failing(*_):
        if interrupted:
            lose()
        raise ImportError("cannot load module more than once per process")

    cli_has(app=failing)
    with pytest.raises(SystemExit if interrupted else ImportError) as raised:
        cli.main()
    if interrupted:
        assert raised.value.code == interruption.STATUS


def test_torchs_import_ends_before_an_interruption_is_raised_unless_there_is_a_second(monkeypatch):
    with interruption.noted():
        monkeypatch.setattr(torch.__spec__, "_initializing", True, raising=False)
        signal.raise_signal(signal.SIGINT)
        lose()
        monkeypatch.setattr(torch.__spec__, "_initializing", False)
        with pytest.raises(KeyboardInterrupt):
            interruption.raise_lost()
