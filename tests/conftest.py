"""What every test here shares: the device, and no test for a GPU where there is none."""

import functools
import gc
import importlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import nxcore
from nxcore import session as sessions
from nxcore.call.operator import Operator
from nxcore.choose.learn import budget
from nxcore.measure import race
from nxcore.measure.load import Unread
from nxcore.session import Session
from nxcore.store.lock import Lock
from tests.paths import path, pytest_generate_tests

__all__ = ["path", "pytest_generate_tests"]

WORKING = frozenset({"nxcore beforehand", "nxcore learns", "nxcore store", "nxcore verifies"})
"""Threads that verify, race and write: in a later test they would take its time, memory and patches."""

_ended = threading.Event()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


def pytest_collection_finish() -> None:
    """Leave what was collected out of later searches for garbage: it is millions of objects, and stays.

    So does torch's compiler, which nearly every worker comes to.
    """
    importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()
    _pass_records_on()


def _pass_records_on() -> None:
    """Have torch's loggers pass their records on to where pytest catches them.

    pytest would add its handlers to each of forty loggers that doesn't, six times a test.
    """
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] == "torch":
            logging.getLogger(name).propagate = True


@pytest.fixture(autouse=True)
def _operators_are_asked_for_anew() -> Iterator[None]:
    """A test may bring a default session of its own, whose operators aren't to stay in ``nxcore.ops``."""
    yield
    kept = vars(nxcore.ops)
    for name in [name for name, value in kept.items() if isinstance(value, Operator)]:
        del kept[name]


def left_working(patience: float = 60.0) -> list[str]:
    """Return the names of the threads of nxcore that are still at work after so many seconds for each."""
    threads = [thread for thread in threading.enumerate() if thread.name in WORKING]
    for thread in threads:
        thread.join(patience)
    return [thread.name for thread in threads if thread.is_alive()]


def end_learning() -> None:
    """End what sessions still learn, after the kernel that is being prepared."""
    _ended.set()
    left = left_working()
    _ended.clear()
    assert not left, f"the test leaves threads at work: {left}"


@pytest.fixture(autouse=True)
def _no_thread_is_left_working() -> Iterator[None]:
    yield
    end_learning()


@pytest.fixture(scope="session", autouse=True)
def _sessions_are_the_tests() -> Iterator[None]:
    """Races decide as on a quiet machine, whatever runs beside; a test's end ends what its sessions learn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nxcore.measure.race.load_of", lambda *_: Unread())
        patch.setattr(budget, "until_the_end", lambda seconds: not _ended.wait(seconds))
        yield


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels are tested: CUDA where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def as_default(monkeypatch: pytest.MonkeyPatch) -> Callable[[Session | None], None]:
    """Make a session the default one while the test runs."""
    return functools.partial(monkeypatch.setattr, sessions, "_default")


@pytest.fixture
def raced_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Have a function measure candidates in place of the race."""
    return functools.partial(monkeypatch.setattr, race, "race")


@pytest.fixture
def cuda_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have ``torch.cuda`` answer as on another machine: ``cuda_answers(device_count=lambda: 2)``."""

    def answer(**functions: Any) -> None:
        for name, function in functions.items():
            monkeypatch.setattr(torch.cuda, name, function)

    return answer


@pytest.fixture
def decided() -> None:
    """Drop what other tests let the default session explore: a part waits for the end of it."""
    session = sessions.default()
    session.hold(Lock({}), session.settings.policy)
