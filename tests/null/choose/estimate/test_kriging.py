"""Kriging: slopes go on, hills are shared, and what the others tell is as if a place weren't shown."""

from __future__ import annotations

import math
import random

import pytest

from nxcore.choose.estimate.kriging import Field

DICE = random.Random(5)
PLACES = [(DICE.uniform(0, 9), DICE.uniform(0, 9)) for _ in range(15)]


def hills(x, y):
    return math.sin(x / 2) + math.cos(y / 3)


@pytest.mark.parametrize("at", [(5.0, 5.0), (9.5, 0.0), (-0.5, 9.5)])
def test_a_slope_goes_on_a_little_beyond_the_places(at):
    def plane(x, y):
        return 0.1 + 0.2 * (x - 4) - 0.1 * (y - 5)

    assert Field(at, PLACES).told([plane(*p) for p in PLACES])[0] == pytest.approx(plane(*at), abs=0.4)


def test_far_away_nothing_is_told():
    assert Field((40.0, 40.0), PLACES).told([1.0] * len(PLACES))[0] == pytest.approx(0, abs=0.1)


def test_a_value_is_told_by_those_nearby():
    told = Field((4.0, 5.0), PLACES).told([hills(*p) for p in PLACES])[0]
    assert told == pytest.approx(hills(4, 5), abs=0.25)


def test_what_others_tell_is_what_they_would_without_the_place():
    values = [hills(*p) for p in PLACES]
    at = PLACES[3]
    _, others = Field(at, PLACES).told(values)
    without, _ = Field(at, PLACES[:3] + PLACES[4:]).told(values[:3] + values[4:])
    assert others[3] == pytest.approx(without, abs=1e-9)


def test_doubt_grows_away_from_the_places():
    near, far = (Field(at, PLACES).doubt for at in (PLACES[0], (14.0, 14.0)))
    assert all(f > n for n, f in zip(near, far, strict=True))
