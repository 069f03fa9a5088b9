"""The pause of the collection of garbage."""

import gc
import weakref

import pytest

from nxcore.measure.collection import PYTHONS, no_collection, young_alone


def test_it_ends_where_it_began():
    assert gc.isenabled()
    with no_collection():
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the outer pause goes on"
    assert gc.isenabled()


def test_it_ends_after_an_error():
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.isenabled()


@pytest.fixture
def generations(monkeypatch):
    """Return the generations of collections; all are over before, so that none is due."""
    gc.collect()
    found = []

    def seen(phase, info):
        if phase == "stop":
            found.append(info["generation"])

    gc.callbacks.append(seen)
    yield found
    gc.callbacks.remove(seen)


def kept(number=400_000):
    """Return so many objects, which are enough for collections of all generations."""
    return [[i] for i in range(number)]


def test_all_objects_are_looked_at_once_at_the_end(generations):
    before = gc.get_threshold()
    with young_alone():
        with young_alone():
            held = kept()
        assert 1 in generations
        assert 2 not in generations
    assert generations.count(2) == 1
    assert gc.get_threshold() == before
    assert len(held) == 400_000


@pytest.mark.parametrize("disabled", [False, True])
def test_nothing_is_collected_that_is_not_due(generations, disabled):
    if disabled:
        gc.disable()
    try:
        with young_alone():
            held = kept(400_000 if disabled else 100)
    finally:
        gc.enable()
    assert 2 not in generations
    assert held


@pytest.fixture
def thawed():
    """Let no object be frozen, as in a program that doesn't do that itself; the suite does."""
    gc.unfreeze()
    yield
    gc.freeze()


class Node:
    """An object that refers to itself."""

    def __init__(self):
        self.itself = self


def test_objects_from_before_are_not_looked_at(thawed, generations):
    old = Node()
    alive = weakref.ref(old)
    with young_alone():
        del old
        new = weakref.ref(Node())
        held = kept()
    assert generations.count(2) == 1
    assert new() is None, "the garbage of the block is collected at its end"
    assert alive() is not None
    assert gc.get_freeze_count() < PYTHONS
    gc.collect()
    assert alive() is None
    assert held


def test_what_the_program_has_frozen_stays_so():
    gc.freeze()  # as the suite does
    with young_alone():
        pass
    assert gc.get_freeze_count() > PYTHONS
