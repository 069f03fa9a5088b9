"""Stand-ins: the functions and numbers that tests of one file put in place of a module's, by one fixture."""

from collections.abc import Callable
from typing import Any

import pytest


def stand_in(home: Any) -> Any:
    """Return a fixture that puts stand-ins into a module or class while a test runs."""

    @pytest.fixture
    def has(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        def put(**stand_ins: Any) -> None:
            for name, value in stand_ins.items():
                monkeypatch.setattr(home, name, value)

        return put

    return has
