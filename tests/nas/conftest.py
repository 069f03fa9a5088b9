"""What these tests share: nothing is measured, for what is held here are numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nxcore


@pytest.fixture(autouse=True)
def _nothing_is_measured() -> Iterator[None]:
    with nxcore.policy("estimate"):
        yield
