"""A search's files: metrics, one line for each epoch, and a checkpoint, written atomically, without code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nxcore.errors import FOREIGN, InvalidInputError
from nxcore.nas.genotype import Genotype
from nxcore.nas.networks import SearchNetwork
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
    """Return the state in a file; raise if it has another format."""
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
    """Raise, with both values, unless ``data`` and the type of ``device`` are those of ``state``."""
    if (known := (state["data"], state["counts"])) != (got := (data.name, data.counts)):
        raise InvalidInputError(f"data must be that of {path}, {known}, got {got}", argument="data")
    if (kind := "cpu" if state["cuda"] is None else "cuda") != device.type:
        raise InvalidInputError(
            f"device must have type {kind!r}, as in {path}, got {device.type!r}: states of random generators "
            "differ between types",
            argument="device",
        )


def state_dict(self: Trainer) -> dict[str, Any]:
    """Return the full state of the training, as tensors and plain data."""
    return {
        "data": self.data.name,
        "counts": self.data.counts,
        "preset": asdict(self.preset),
        "seed": self.seed,
        "phase": self.phase,
        "epoch": self.epoch,
        "genotype": self.genotype._asdict(),
        "history": self.history,
        "stops": (self.spent_s, self._began_s, self._best, self._waited),
        "net": self.net.state_dict(),
        "mean": None if self.mean is None else (self.mean.steps, self.mean.values),
        "kept": self.net.kept if isinstance(self.net, SearchNetwork) else None,
        "grown": {
            "mutated": self._mutated,
            "steps": self.arch.steps,
            "multiplier": self.arch.multiplier,
            "C": getattr(self.net, "C", None),
            "inserted": getattr(self.net, "inserted", ()),
        },
        "optimizer": self.optimizer.state_dict(),
        "arch": self.arch.state_dict(),
        "arch_optimizer": self.arch_optimizer.state_dict(),
        "generator": self.generator.get_state(),
        "order": self._feed.generator.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
    }


def load_state_dict(self: Trainer, state: dict[str, Any]) -> None:
    """Continue from a ``state_dict`` of the same preset."""
    self.genotype = Genotype(**state["genotype"])
    phase, trains = state["phase"], state["preset"]["retrain_epochs"] > 0
    trained = phase == "retraining" or (phase == "done" and trains)
    grown, mutated = state["grown"], state["grown"]["mutated"]
    if mutated:
        self._architecture(grown["steps"], grown["multiplier"])
    self._mutated = mutated
    if trained:
        self._enter("retraining")
    elif mutated:
        self._enter("search", grown["C"], grown["inserted"])
    self.phase, self.epoch, self.history = state["phase"], state["epoch"], list(state["history"])
    self.spent_s, self._began_s, self._best, self._waited = state["stops"]
    self.net.load_state_dict(state["net"])
    if self.mean is not None:
        self.mean.load(*state["mean"])
    if isinstance(self.net, SearchNetwork) and state["kept"] is not None:
        self.net.kept = state["kept"].to(self.device)
    self.optimizer.load_state_dict(state["optimizer"])
    self.arch.load_state_dict(state["arch"])
    self.arch_optimizer.load_state_dict(state["arch_optimizer"])
    self.generator.set_state(state["generator"].cpu())
    self._feed.generator.set_state(state["order"].cpu())
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and self.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), self.device)


def recorded(trainer: Trainer, at: str | Path | None) -> Iterator[dict[str, Any] | None]:
    """Yield None after each batch and a row after each epoch; the first rank writes them to a folder."""
    folder = None if trainer.rank or at is None else Path(at)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(encoded(row) + "\n" for row in trainer.history)  # only rows that the checkpoint has
        (folder / METRICS).write_text(lines, encoding="utf-8")
    while trainer.phase != "done":
        for row in trainer.steps():
            if folder is not None and row is not None:
                with (folder / METRICS).open("a", encoding="utf-8") as opened:
                    opened.write(encoded(row) + "\n")
                trainer.save(folder / CHECKPOINT)
            yield row
