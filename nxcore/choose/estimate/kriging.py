"""Kriging (Krige 1951): from values at some places to the value at another; a pure function.

Values are modelled as a plane through all places, plus correlated deviations that nearby places share.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

Place = tuple[float, ...]
"""The coordinates of a place, in octaves."""

REACH = 2.0
"""The correlation length of the deviations, in octaves."""

NUGGET = 0.05
"""The share of the variance that is independent at each place."""

LEVEL, SLOPE = 1.0, 0.3
"""The variances of the plane's height and of its slope per octave, relative to the deviations."""


class Field:
    """Predicts the value at one place from the values at others.

    Parameters
    ----------
    at : tuple of float
        The place of the prediction.
    places : sequence of tuple of float
        The places with known values.

    Attributes
    ----------
    doubt : list of float
        For each place, the standard error of the prediction ``at`` the place, relative to that of the
        prediction of this place from all others.
    """

    def __init__(self, at: Place, places: Sequence[Place]) -> None:
        like = functools.partial(_like, at)
        self._near = [like(at, p) for p in places]
        self._inverse = _inverse([[like(p, q) + NUGGET * (p is q) for q in places] for p in places])
        told = sum(
            a * b * v
            for a, row in zip(self._near, self._inverse, strict=True)
            for b, v in zip(self._near, row, strict=True)
        )
        left = max(like(at, at) + NUGGET - told, NUGGET)
        self.doubt = [math.sqrt(left * row[i]) for i, row in enumerate(self._inverse)]

    def told(self, values: Sequence[float]) -> tuple[float, list[float]]:
        """Return the prediction, and that of each place from all others (Dubrule 1983)."""
        weights = [sum(a * b for a, b in zip(row, values, strict=True)) for row in self._inverse]
        value = sum(w * n for w, n in zip(weights, self._near, strict=True))
        others = [
            v - w / row[i] for i, (v, w, row) in enumerate(zip(values, weights, self._inverse, strict=True))
        ]
        return value, others


def _like(at: Place, a: Place, b: Place) -> float:
    """Return the covariance of the values at two places; the plane's origin is ``at``."""
    plane = LEVEL + SLOPE * sum((m - o) * (n - o) for m, n, o in zip(a, b, at, strict=True))
    return plane + math.exp(-0.5 * (math.dist(a, b) / REACH) ** 2)


def _inverse(matrix: list[list[float]]) -> list[list[float]]:
    """Invert a symmetric positive definite matrix by Gauss-Jordan elimination without pivots."""
    n = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        pivot = rows[i][i]
        rows[i] = [v / pivot for v in rows[i]]
        for j in range(n):
            if j != i and (factor := rows[j][i]):
                rows[j] = [v - factor * w for v, w in zip(rows[j], rows[i], strict=True)]
    return [row[n:] for row in rows]
