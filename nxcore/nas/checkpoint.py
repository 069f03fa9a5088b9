"""A search's files: a line an epoch, and its state, there whole or not at all; nothing in it can run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nxcore.errors import InvalidInputError

if TYPE_CHECKING:
    from nxcore.nas.data import Data
    from nxcore.nas.trainer import Trainer

CHECKPOINT, METRICS = "checkpoint.pt", "metrics.jsonl"
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


def require(state: dict[str, Any], path: str | Path, data: Data, device: torch.device) -> None:
    """Refuse to go on with other data, or on another type of device than ``state`` is of.

    Raises
    ------
    InvalidInputError
        Naming both.
    """
    if (known := (state["data"], state["counts"])) != (got := (data.name, data.counts)):
        raise InvalidInputError(f"data must be that of {path}, {known}, got {got}", argument="data")
    if (kind := "cpu" if state["cuda"] is None else "cuda") != device.type:
        raise InvalidInputError(
            f"device must be of type {kind!r}, on which {path} was written, got {device.type!r}: its random "
            "generators have another form",
            argument="device",
        )


def recorded(trainer: Trainer, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Yield a row an epoch until all is done, and keep each, with the state after it, in a folder."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in trainer.history)  # none that the checkpoint lacks
        (folder / METRICS).write_text(lines, encoding="utf-8")
    while trainer.phase != "done":
        row = trainer.advance()
        if folder is not None:
            with (folder / METRICS).open("a", encoding="utf-8") as opened:
                opened.write(json.dumps(row) + "\n")
            trainer.save(folder / CHECKPOINT)
        yield row
