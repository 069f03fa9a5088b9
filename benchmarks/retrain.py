"""Train a found genotype, or a random one of the same space, for a given time.

    python benchmarks/retrain.py FOLDER --root cifar10.npz [--genotype FILE [--epoch 21]] [--seconds 300]
                                 [--channels 36] [--cutout 16] [--autocast]

The network is smaller than the paper's, so that minutes tell something: 8 cells from 24 channels, and
batches of 256. ``--autocast`` runs its forward passes under autocast to bfloat16.
Of a search's ``metrics.jsonl``, ``--epoch`` gives the epoch whose genotype is trained. FOLDER gets a row for
each epoch and the checkpoint; the file of the figures is FOLDER/retrain.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from nxcore.nas import PRESETS, Genotype, Trainer, data
from nxcore.nas.genotype import drawn
from nxcore.spec.device import describe

SMALLER: dict[str, Any] = {
    "retrain_C": 24,
    "retrain_layers": 8,
    "retrain_batch": 256,
    "retrain_lr": 0.1,
    "drop_path": 0.0,
    "cutout": 8,
}


def genotype(given: argparse.Namespace) -> Genotype:
    """Return the genotype that the options name."""
    darts = PRESETS["darts"]
    if given.genotype == "random":
        draw = torch.Generator().manual_seed(given.seed)
        return drawn(darts.primitives, darts.steps, darts.multiplier, draw)
    text = Path(given.genotype).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()] if given.epoch else [json.loads(text)]
    return Genotype.of(next(row["genotype"] for row in rows if given.epoch in (None, row.get("epoch"))))


def main() -> int:
    """Train, print a line for each epoch, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", type=Path, required=True, help="CIFAR-10: its folder, or an .npz file")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="of training; the learning rate ends in it"
    )
    parser.add_argument("--epochs", type=int, default=600, help="at most so many")
    parser.add_argument(
        "--genotype", default="random", help="random, a result.json, or with --epoch a metrics.jsonl"
    )
    parser.add_argument("--epoch", type=int, help="of the search, whose genotype is trained")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--channels", type=int, default=SMALLER["retrain_C"], help="of the first cell")
    parser.add_argument("--cutout", type=int, default=SMALLER["cutout"], help="side of what is cut out")
    parser.add_argument("--autocast", action="store_true", help="forward passes in bfloat16")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    at = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    own = {"retrain_C": given.channels, "cutout": given.cutout, "retrain_autocast": given.autocast}
    settings = {**SMALLER, **own}
    preset = dataclasses.replace(
        PRESETS["darts"], budget_s=given.seconds, retrain_epochs=given.epochs, **settings
    )
    trainer = Trainer(
        data.load("cifar10", given.root, seed=given.seed).to(at), preset, seed=given.seed, device=at
    )
    trainer.train(genotype(given))
    record: dict[str, Any] = {
        "device": describe(at).name,
        "torch": torch.__version__,
        "genotype": trainer.genotype._asdict(),
        "settings": {**settings, "seconds": given.seconds},
        "parameters": sum(p.numel() for p in trainer.net.parameters()),
        "held_out_images": len(trainer.data.held_out.labels),
        "epochs": [],
    }
    for row in trainer.run(given.folder):
        kept = {
            k: row[k]
            for k in ("epoch", "seconds", "lr", "loss", "accuracy", "held_out_loss", "held_out_accuracy")
        }
        record["epochs"].append(kept)
        print(
            f"{given.genotype} {row['epoch']:4d} {row['seconds']:7.2f} s  {row['held_out_accuracy']:.4f}",
            flush=True,
        )
        (given.folder / "retrain.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
