"""What a captured call does together, switched off or on for a test."""

from typing import Any

import pytest

from nxcore.nas import blend, group, whole


class _Everything:
    """Sums that torch serves: those of all modules."""

    def __contains__(self, module: object) -> bool:
        return True

    def add(self, module: object) -> None:
        pass


OFF: dict[Any, dict[str, Any]] = {
    group: {"_Scope": lambda cell: None},
    blend: {"_torchs": _Everything()},
    whole: {"take": lambda model: None, "later": lambda model: None},
}
"""Module -> what stands in there where convolutions, norms or cells are computed one by one."""
OWN = {module: {name: getattr(module, name) for name in names} for module, names in OFF.items()}


def switch(patch: pytest.MonkeyPatch, module: Any, *, on: bool) -> None:
    """Let what ``module`` computes together be so, or one by one."""
    for name, value in (OWN if on else OFF)[module].items():
        patch.setattr(module, name, value)
