"""The pause of the collection of garbage."""

from __future__ import annotations

import gc

import pytest

from nxcore.measure.collection import no_collection


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
