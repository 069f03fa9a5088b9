"""Does a search beat chance: found cells against random ones of the same space, by the same short training.

    python benchmarks/chance.py --root FILE -o FOLDER [--search "OPTIONS"] [--seeds 3] [--found FILE ...]
                                [--genotypes 12] [--again 2] [--epochs 5] [--at-once 3] [--set NAME=VALUE ...]
                                [--data cifar10] [--device cuda] [--policy auto]

First ``nxcore search`` searches with so many ``--seeds`` at once and retrains each; ``--search`` has its
other options. ``--found`` takes the ``result.json`` of searches instead. Then each found cell and so many
random ``--genotypes`` are trained ``--again`` and again from other weights, so many ``--at-once`` on the
device, all with the same settings: of the preset ``darts``, 8 cells of 16 channels, batches of 256, under
autocast; ``--set`` changes them. They see all images that aren't held out. The folder gets ``chance.json``
and ``chance.html``: the held-out images that each has right, the mean, the deviation and the 95th percentile
of the random cells, and whether the found ones beat them. With 12 cells that lies between the two best ones.

A command that is killed, say by ``timeout 590``, goes on after the last whole epochs when it is run again.
"""

import argparse
import dataclasses
import functools
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

import torch

import nxcore
from nxcore import nas
from nxcore.cli.search import RESULT, settings, several
from nxcore.nas.checkpoint import CHECKPOINT, recorded
from nxcore.nas.genotype import Genotype, drawn
from nxcore.nas.picture import drawn as part
from nxcore.nas.picture import page
from nxcore.nas.turns import in_turn
from nxcore.spec.device import synchronize
from nxcore.store.encoding import encoded

SHORT = {"retrain_C": 16, "retrain_layers": 8, "retrain_batch": 256, "retrain_lr": 0.1, "weight_decay": 5e-4}
SHORT |= {"drop_path": 0.0, "cutout": 8, "held_out_every": 1000, "retrain_autocast": True}
SHORT |= {"retrain_smoothing": 0.1, "retrain_alternate": True}


def searched(asked: argparse.Namespace) -> list[Path]:
    """Search and retrain, or go on with it; return the results."""
    folder = asked.output / "search"
    files = [folder / f"seed-{seed}" / RESULT for seed in range(asked.seeds)]
    if not all(file.exists() and json.loads(file.read_text())["phase"] == "done" for file in files):
        words = ["--resume", folder]
        if not several(folder):
            words = ["-o", folder, "--preset", "darts", *shlex.split(asked.search)]
            words += ["--data", asked.data, "--seeds", asked.seeds]
            words += ["--root", asked.root] if asked.root else []
        command = [sys.executable, "-m", "nxcore", "search", *words, "--device", asked.device]
        subprocess.run([str(word) for word in command], check=True)
    return files


def entrants(preset: nas.Preset, found: list[Path], genotypes: int) -> dict[str, Genotype]:
    """Return names and genotypes: those found, then random ones of seeds from 0."""
    held = {}
    for place, file in enumerate(found):
        held[f"found {place}"] = Genotype.of(json.loads(file.read_text())["genotype"])
    for seed in range(genotypes):
        draw = torch.Generator().manual_seed(seed)
        held[f"random {seed}"] = drawn(preset.primitives, preset.steps, preset.multiplier, draw)
    return held


def trained(
    data: nas.data.Data, preset: nas.Preset, name: str, genotype: Genotype, seed: int, folder: Path
) -> Iterator[dict | None]:
    """Train one network, or go on with it; yield None after each batch, and its result, which is kept too."""
    if (folder / CHECKPOINT).exists():
        trainer = nas.Trainer.restore(folder / CHECKPOINT, data)
    else:
        trainer = nas.Trainer(data, preset, seed=seed)
        trainer.train(genotype)
    synchronize(trainer.device)  # what is measured isn't beside other work
    nas.prepare(trainer)
    yield from (None for row in recorded(trainer, folder))
    weights = sum(p.numel() for p in trainer.net.parameters())
    last = trainer.history[-1]
    ended = {"correct": last["held_out_accuracy"], "loss": last["loss"], "seconds": trainer.spent_s}
    row = {"name": name, "seed": seed, "weights": weights, **ended}
    (folder / RESULT).write_text(encoded(row), encoding="utf-8")
    yield row


def compared(asked: argparse.Namespace, found: list[Path]) -> list[dict]:
    """Return a row for each short training; those that an earlier run has ended are read."""
    preset, rows, waiting, data = preset_of(asked), [], [], None
    for seed in range(asked.again):
        for name, genotype in entrants(preset, found, asked.genotypes).items():
            folder = asked.output / "short" / f"{name} seed {seed}".replace(" ", "-")
            if (folder / RESULT).exists():
                rows.append(json.loads((folder / RESULT).read_text()))
                continue
            data = data or nas.data.load(asked.data, asked.root).to(asked.device)
            waiting.append(functools.partial(trained, data, preset, name, genotype, seed, folder))
    with nxcore.policy("frozen" if asked.device == "cpu" else asked.policy):
        for row in filter(None, in_turn(waiting, torch.device(asked.device), asked.at_once)):
            rows.append(row)
            print(encoded(row), flush=True)
    return rows


def preset_of(asked: argparse.Namespace) -> nas.Preset:
    """Return the settings of all short trainings."""
    own = {"retrain_epochs": asked.epochs, "warmup": 0, **SHORT, **settings(asked.set)}
    return dataclasses.replace(nas.PRESETS["darts"], **own)


def summary(rows: list[dict]) -> dict:
    """Return the random cells' distribution, and each found cell's place in it, by means over weights."""
    by_name: dict[str, list[float]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row["correct"])
    means = {name: statistics.mean(values) for name, values in by_name.items()}
    chance = sorted(value for name, value in means.items() if name.startswith("random"))
    found = {name: value for name, value in means.items() if name.startswith("found")}
    at = 0.95 * (len(chance) - 1)
    low, high = chance[int(at)], chance[min(int(at) + 1, len(chance) - 1)]
    return {
        "mean": statistics.mean(chance),
        "deviation": statistics.stdev(chance),
        "percentile_95": low + (at - int(at)) * (high - low),
        "random": chance,
        "found": {n: {"correct": m, "beats": sum(m > c for c in chance)} for n, m in found.items()},
    }


def verdict(found: dict) -> str:
    """Return in words whether the search beats chance."""
    if not found["found"]:
        return "No found cell was compared."
    own = [its["correct"] for its in found["found"].values()]
    mean, most = statistics.mean(own), found["percentile_95"]
    places = f"the found cells' mean is {mean:.2%}, that of {len(found['random'])} random ones"
    places += f" {found['mean']:.2%}, their 95th percentile {most:.2%}"
    above = sum(c > most for c in own)
    if mean > most:
        return f"The search beats chance: {places}; {above} of {len(own)} are above it."
    return f"The search does not beat chance: {places}; {above} of {len(own)} are above it."


def shown(found: dict, results: list[dict]) -> str:
    """Return the page: the verdict, the distribution, and how the retrained networks ended."""
    kinds = {"random cells": found["random"], "found cells": [f["correct"] for f in found["found"].values()]}
    traces = [
        {"type": "box", "name": name, "x": [100 * c for c in correct], "boxpoints": "all", "pointpos": 0}
        for name, correct in kinds.items()
    ]
    lines = {"mean of the random cells": found["mean"], "95th percentile": found["percentile_95"]}
    layout = {
        "xaxis": {"title": {"text": "held-out images, correct after the short training, %"}},
        "shapes": [{"x0": 100 * x, "x1": 100 * x, "y0": 0, "y1": 1, "yref": "paper"} for x in lines.values()],
        "annotations": [
            {"x": 100 * x, "y": 1.02 + 0.06 * n, "yref": "paper", "text": name, "showarrow": False}
            for n, (name, x) in enumerate(lines.items())
        ],
        "showlegend": False,
        "margin": {"l": 110},
    }
    cells = [(r["folder"], f"{r['held_out_accuracy'] or 0:.2%}", f"{r['seconds']:.0f}") for r in results]
    rows = ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells]
    head = "<tr><th>search</th><th>held out, retrained</th><th>seconds in all</th></tr>"
    table = f"<table>{head}{''.join(rows)}</table>"
    return page(
        "A search and chance", f"<p>{escape(verdict(found))}</p>", part("chart", [traces, layout]), table
    )


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__.replace("%", "%%"))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--root", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("chance"))
    parser.add_argument("--search", default="")
    parser.add_argument("--found", type=Path, nargs="*")
    parser.add_argument("--set", nargs="*", default=[])
    for name, usual in (("seeds", 3), ("genotypes", 12), ("again", 2), ("epochs", 5), ("at-once", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--policy", default="auto")
    asked = parser.parse_args()
    files = searched(asked) if asked.found is None else asked.found
    rows = compared(asked, files)
    found = summary(rows)
    results = [{"folder": str(file.parent), **json.loads(file.read_text())} for file in files]
    kept = ("folder", "held_out_accuracy", "seconds")
    results = [{name: result.get(name) for name in kept} for result in results]
    report = {"settings": dataclasses.asdict(preset_of(asked)), "searches": results, "rows": rows, **found}
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "chance.json").write_text(encoded(report, indent=1) + "\n", encoding="utf-8")
    (asked.output / "chance.html").write_text(shown(found, results), encoding="utf-8")
    print(verdict(found))


if __name__ == "__main__":
    main()
