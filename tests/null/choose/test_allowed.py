"""How many workers a program may have: none where that would surprise somebody."""

import multiprocessing
import os

import pytest

from nxcore.choose import workers
from nxcore.settings import Settings


def _allowed(told, settings):
    told.send(workers.allowed(settings))


def test_processes_are_started_only_where_nobody_is_surprised(monkeypatch, tmp_path):
    settings = Settings(cache=tmp_path)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    for cores, most in ((1, 0), (2, 1), (7, 1), (8, 4), (64, 8)):
        monkeypatch.setattr(workers, "cores", lambda cores=cores: cores)
        assert workers.allowed(settings) == most, f"{cores} cores"
    assert workers.allowed(Settings(cache=tmp_path, workers=3)) == 3
    assert workers.allowed(Settings(cache=tmp_path, workers=0)) == 0
    assert workers.allowed(Settings(cache=tmp_path, workers=3, jit=False)) == 0, "nothing is compiled"
    assert workers.allowed(Settings()) == 0, "nothing is kept"
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=_allowed, args=(there, settings))
    child.start()
    assert here.poll(100)
    assert here.recv() == 0, "a loader's worker, for example"
    child.join(30)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert workers.allowed(settings) == 0


def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = workers.cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert workers.cores() == max(1, alone // 2)


def test_the_setting_is_a_number():
    assert Settings.from_environment({"NXCORE_WORKERS": "3"}).workers == 3
    assert Settings.from_environment({"NXCORE_WORKERS": "off"}).workers == 0
    assert Settings.from_environment({"NXCORE_WORKERS": "auto"}).workers is None
    with pytest.raises(ValueError, match="NXCORE_WORKERS must be a number or 'auto', got 'many'"):
        Settings.from_environment({"NXCORE_WORKERS": "many"})
