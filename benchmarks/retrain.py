"""Train a found genotype, or a random one of the same space, for a given time or number of epochs.

    python benchmarks/retrain.py FOLDER --root cifar10.npz [--genotype FILE [--epoch 21 | --skips 2]]
                                 [--seconds 300 | --epochs 130 [--stop 400]] [--channels 36] [--cutout 16]
                                 [--every 5] [--autocast]
    python benchmarks/retrain.py FOLDER --root cifar10.npz --parts 36 36:bfloat16 [the same options]

The network is smaller than the paper's, so that minutes tell something: 8 cells from 24 channels, and
batches of 256. ``--autocast`` runs its forward passes under autocast to bfloat16.
Of a search's ``metrics.jsonl``, ``--epoch`` gives the epoch whose genotype is trained; ``--skips`` the last
epoch before a cell has more skip connections. FOLDER gets a row for each epoch and the checkpoint; the file
of the figures is FOLDER/retrain.json. A FOLDER with a checkpoint is continued, by its own settings.
``--stop`` ends a process after so many seconds, at the end of an epoch. With ``--parts`` nothing is trained
to the end: FOLDER/parts.json has the time of each part of a step, for each given number of channels, as 36 or
36:bfloat16 for forward passes under autocast.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from nxcore.nas import PRESETS, Genotype, Trainer, data
from nxcore.nas.checkpoint import CHECKPOINT
from nxcore.nas.genotype import drawn
from nxcore.nas.metrics import Tally
from nxcore.spec.device import describe
from nxcore.store.encoding import encoded

SMALLER: dict[str, Any] = {
    "retrain_C": 24,
    "retrain_layers": 8,
    "retrain_batch": 256,
    "retrain_lr": 0.1,
    "drop_path": 0.0,
    "cutout": 8,
}
FIGURES = "epoch", "seconds", "lr", "loss", "accuracy", "held_out_loss", "held_out_accuracy"
WARM, STEPS = 5, 20


def genotype(given: argparse.Namespace) -> Genotype:
    """Return the genotype that the options name."""
    darts = PRESETS["darts"]
    if given.genotype == "random":
        draw = torch.Generator().manual_seed(given.seed)
        return drawn(darts.primitives, darts.steps, darts.multiplier, draw)
    text = Path(given.genotype).read_text(encoding="utf-8")
    if given.epoch is None and given.skips is None:
        return Genotype.of(json.loads(text)["genotype"])
    rows = [json.loads(line) for line in text.splitlines()]
    if given.epoch is not None:
        return Genotype.of(next(row["genotype"] for row in rows if row["epoch"] == given.epoch))
    found = [Genotype.of(row["genotype"]) for row in rows]
    over = (i for i, each in enumerate(found) if i and each.skips() > given.skips)
    return found[next(over, len(found)) - 1]


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return what of the preset the options change."""
    return SMALLER | {
        "retrain_C": given.channels,
        "cutout": given.cutout,
        "retrain_autocast": given.autocast,
        "weight_decay": given.weight_decay,
        "held_out_every": given.every,
        "budget_s": given.seconds,
        "retrain_epochs": given.epochs,
    }


def begun(given: argparse.Namespace, at: torch.device) -> Trainer:
    """Return a new training, or the one in the folder."""
    images = data.load("cifar10", given.root, seed=given.seed).to(at)
    if (saved := given.folder / CHECKPOINT).exists():
        return Trainer.restore(saved, images, device=at)
    preset = dataclasses.replace(PRESETS["darts"], **settings(given))
    trainer = Trainer(images, preset, seed=given.seed, device=at)
    trainer.train(genotype(given))
    return trainer


def trained(trainer: Trainer, given: argparse.Namespace, record: dict[str, Any], began: float) -> None:
    """Train, print a line for each epoch, and write the record after each."""
    for row in trainer.run(given.folder):
        record["epochs"] = [{k: r[k] for k in FIGURES if k in r} for r in trainer.history]
        (given.folder / "retrain.json").write_text(encoded(record, indent=1) + "\n", encoding="utf-8")
        known = f"{row['held_out_accuracy']:.4f}" if "held_out_accuracy" in row else ""
        print(
            f"{given.genotype} {row['epoch']:4d}/{row['epochs']} {row['seconds']:7.2f} s  "
            f"loss {row['loss']:.4f}  {known}",
            flush=True,
        )
        if time.monotonic() - began + row["seconds"] > given.stop:
            break


def parts(trainer: Trainer) -> dict[str, Any]:
    """Return the time of each part of a step and of an evaluation, in milliseconds.

    ``device`` waits for the device after each part; ``host`` is the time until the part's call returns, with
    steps in a row.
    """
    p, tally = trainer.preset, Tally(trainer.device)
    whole = trainer.data.both

    def batches() -> Iterator[Any]:
        while True:
            yield from data.batches(whole, p.retrain_batch, trainer.generator)

    feed = batches()
    held: dict[str, Any] = {}

    def passed() -> None:
        held["loss"], held["scores"] = trainer.passes.of_weights(held["batch"])

    def augmented() -> None:
        images, labels = held["raw"]
        images = data.augment(images, trainer.generator, pad=p.pad, flip=p.flip, cutout=p.cutout)
        held["batch"] = data.Split(images, labels)

    steps: dict[str, Callable[[], Any]] = {
        "feed": lambda: held.update(raw=next(feed)),
        "augment": augmented,
        "pass": passed,
        "update": lambda: trainer.update(trainer.passes.gradients),
        "tally": lambda: tally.add(held["loss"], held["scores"], held["batch"].labels),
    }

    def wait() -> None:
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()

    times: dict[str, dict[str, list[float]]] = {n: {"host": [], "device": []} for n in steps}
    began = time.perf_counter()
    for what in ("device", "host"):
        for i in range(WARM + STEPS):
            for name, work in steps.items():
                start = time.perf_counter()
                work()
                if what == "device":
                    wait()
                if i >= WARM:
                    times[name][what].append((time.perf_counter() - start) * 1e3)
            if i == 0 and what == "device":
                first = time.perf_counter() - began
    wait()
    start = time.perf_counter()
    for _ in range(STEPS):
        for work in steps.values():
            work()
    wait()
    step = (time.perf_counter() - start) / STEPS * 1e3
    out: dict[str, Any] = {n: {k: statistics.median(v) for k, v in each.items()} for n, each in times.items()}
    evaluations = []
    for _ in range(3):
        start = time.perf_counter()
        trainer.evaluate(trainer.data.held_out)
        evaluations.append(time.perf_counter() - start)
    count = len(whole.labels) // p.retrain_batch
    return {
        "parts": out,
        "step_ms": step,
        "first_s": first,
        "evaluate_s": evaluations,
        "epoch_s": count * step / 1e3 + evaluations[-1] / p.held_out_every,
    }


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", type=Path, required=True, help="CIFAR-10: its folder, or an .npz file")
    parser.add_argument("--seconds", type=float, default=math.inf, help="in which the learning rate ends")
    parser.add_argument("--epochs", type=int, default=600, help="in which the learning rate ends")
    parser.add_argument("--stop", type=float, default=math.inf, help="seconds until this process ends")
    parser.add_argument(
        "--genotype",
        default="random",
        help="random, a result.json, or with --epoch or --skips a metrics.jsonl",
    )
    parser.add_argument("--epoch", type=int, help="of the search, whose genotype is trained")
    parser.add_argument("--skips", type=int, help="skip connections that a cell may have")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--channels", type=int, default=SMALLER["retrain_C"], help="of the first cell")
    parser.add_argument("--cutout", type=int, default=SMALLER["cutout"], help="side of what is cut out")
    parser.add_argument("--weight-decay", type=float, default=PRESETS["darts"].weight_decay)
    parser.add_argument("--every", type=int, default=1, help="epochs for an evaluation of held-out images")
    parser.add_argument("--autocast", action="store_true", help="forward passes in bfloat16")
    parser.add_argument("--parts", nargs="+", help="time the parts of a step with so many channels")
    return parser


def described(trainer: Trainer, given: argparse.Namespace) -> dict[str, Any]:
    """Return the record's first entries."""
    kept = {name: getattr(trainer.preset, name) for name in settings(given)}
    return {
        "device": describe(trainer.device).name,
        "torch": torch.__version__,
        "genotype": trainer.genotype._asdict(),
        "settings": {k: None if v == math.inf else v for k, v in kept.items()},
        "parameters": sum(p.numel() for p in trainer.net.parameters()),
        "held_out_images": len(trainer.data.held_out.labels),
    }


def timed(trainer: Trainer, given: argparse.Namespace) -> None:
    """Print and write the parts of each training that ``--parts`` names."""
    rows = []
    for each in given.parts:
        channels, _, half = each.partition(":")
        changed: dict[str, Any] = {"retrain_C": int(channels), "retrain_autocast": bool(half)}
        preset = dataclasses.replace(trainer.preset, **changed)
        other = Trainer(trainer.data, preset, seed=given.seed, device=trainer.device)
        other.train(trainer.genotype)
        row = described(other, given) | parts(other)
        rows.append(row)
        shown = ", ".join(f"{n} {t['device']:.2f}/{t['host']:.2f}" for n, t in row["parts"].items())
        took = ", ".join(f"{t:.2f}" for t in row["evaluate_s"])
        print(f"C {preset.retrain_C}, autocast {preset.retrain_autocast}: {row['step_ms']:.2f} ms; {shown}")
        print(f"  first {row['first_s']:.1f} s, evaluate {took} s, epoch {row['epoch_s']:.2f} s", flush=True)
        (given.folder / "parts.json").write_text(encoded(rows, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Train or time what the options name, and write the record."""
    began = time.monotonic()
    given = options().parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    trainer = begun(given, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if given.parts:
        timed(trainer, given)
    else:
        trained(trainer, given, described(trainer, given), began)
    return 0


if __name__ == "__main__":
    sys.exit(main())
