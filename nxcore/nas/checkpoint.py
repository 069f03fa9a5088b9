"""A search's state as a file: there whole or not at all, and nothing in it can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nxcore.errors import InvalidInputError

FORMAT = 2


def write(state: dict[str, Any], path: Path) -> None:
    """Write a state of tensors and plain data, or leave the file as it was."""
    beside = path.with_name(path.name + ".part")
    torch.save({"format": FORMAT, **state}, beside)
    beside.replace(path)


def read(path: str | Path) -> dict[str, Any]:
    """Return what was written.

    Raises
    ------
    InvalidInputError
        If it is of another format.
    """
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if state.get("format") != FORMAT:
        raise InvalidInputError(
            f"{path} must be of format {FORMAT}, got {state.get('format')}", argument="path"
        )
    return state
