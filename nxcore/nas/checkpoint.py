"""A search's files: metrics, one line for each epoch, and a checkpoint, written atomically, without code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nxcore.errors import FOREIGN, InvalidInputError
from nxcore.store.encoding import encoded

if TYPE_CHECKING:
    from nxcore.nas.data import Data
    from nxcore.nas.trainer import Trainer

CHECKPOINT, METRICS = "checkpoint.pt", "metrics.jsonl"
FORMAT = 2


def write(state: dict[str, Any], path: Path) -> None:
    """Write a state of tensors and plain data atomically: on failure, the file is unchanged."""
    beside = path.with_name(path.name + ".part")
    torch.save({"format": FORMAT, **state}, beside)
    beside.replace(path)


def read(path: str | Path) -> dict[str, Any]:
    """Return the state in a file.

    Raises
    ------
    InvalidInputError
        If the file has another format.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FOREIGN as error:  # torch and pickle raise many types for a file of another kind
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidInputError(
            f"{path} must be a checkpoint of a search: {said}", argument="path"
        ) from error
    found = state.get("format") if isinstance(state, dict) else type(state).__name__
    if found != FORMAT:
        raise InvalidInputError(f"{path} must have format {FORMAT}, got {found}", argument="path")
    return state


def require(state: dict[str, Any], path: str | Path, data: Data, device: torch.device) -> None:
    """Raise unless ``data`` and the type of ``device`` are those of ``state``.

    Raises
    ------
    InvalidInputError
        With both values.
    """
    if (known := (state["data"], state["counts"])) != (got := (data.name, data.counts)):
        raise InvalidInputError(f"data must be that of {path}, {known}, got {got}", argument="data")
    if (kind := "cpu" if state["cuda"] is None else "cuda") != device.type:
        raise InvalidInputError(
            f"device must have type {kind!r}, as in {path}, got {device.type!r}: states of random generators "
            "differ between types",
            argument="device",
        )


def recorded(trainer: Trainer, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Yield one row for each epoch until the search is done; write rows and checkpoints to a folder."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(encoded(row) + "\n" for row in trainer.history)  # only rows that the checkpoint has
        (folder / METRICS).write_text(lines, encoding="utf-8")
    while trainer.phase != "done":
        row = trainer.advance()
        if folder is not None:
            with (folder / METRICS).open("a", encoding="utf-8") as opened:
                opened.write(encoded(row) + "\n")
            trainer.save(folder / CHECKPOINT)
        yield row
