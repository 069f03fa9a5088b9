"""Found cells against chance: random genotypes of the same space, each trained the same short time.

    python benchmarks/chance.py --root FILE [--found FILE ...] [--genotypes 12] [--seeds 1] [--epochs 5]
                                [--processes 3] [--set NAME=VALUE ...] [--device cuda] [--output FILE]

``--found`` takes the ``result.json`` of searches. All networks have the same settings (of the preset
``darts``, 8 cells of 16 channels, batches of 256, under autocast; ``--set`` changes them as that of
``nxcore search`` does) and are trained on all images that aren't held out. So many ``--processes`` train at
once on the device, each with a share of the networks. Printed are the held-out images that each has right,
the mean, the deviation and the 95th percentile of the random ones, and for each found cell how many of these
it beats. With 12 cells the 95th percentile lies between the two best ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import nxcore
from nxcore import nas
from nxcore.cli.search import settings
from nxcore.nas.genotype import Genotype, drawn
from nxcore.store.encoding import encoded

SHORT = {"retrain_C": 16, "retrain_layers": 8, "retrain_batch": 256, "retrain_lr": 0.1, "weight_decay": 5e-4}
SHORT |= {"drop_path": 0.0, "cutout": 8, "held_out_every": 1000, "retrain_autocast": True}
SHORT |= {"retrain_smoothing": 0.1, "retrain_alternate": True}


def entrants(preset: nas.Preset, found: list[Path], genotypes: int) -> list[tuple[str, Genotype]]:
    """Return names and genotypes: those found, then random ones of seeds from 0."""
    held = [(str(file), Genotype.of(json.loads(file.read_text())["genotype"])) for file in found]
    for seed in range(genotypes):
        draw = torch.Generator().manual_seed(seed)
        genotype = drawn(preset.primitives, preset.steps, preset.multiplier, draw)
        held.append((f"random {seed}", genotype))
    return held


def trained(data: nas.data.Data, preset: nas.Preset, genotype: Genotype, seed: int, device: str) -> dict:
    """Train one network; return its held-out accuracy, its weights and its seconds."""
    began = time.perf_counter()
    trainer = nas.Trainer(data, preset, seed=seed, device=device)
    trainer.train(genotype)
    *_, last = trainer.run()
    weights = sum(p.numel() for p in trainer.net.parameters())
    seconds = time.perf_counter() - began
    return {
        "correct": last["held_out_accuracy"],
        "loss": last["loss"],
        "weights": weights,
        "seconds": seconds,
    }


def work(asked: argparse.Namespace) -> None:
    """Train this process's share of all networks, and print a line of JSON for each."""
    preset = preset_of(asked)
    data = nas.data.load(asked.data, asked.root).to(asked.device)
    jobs = [
        (name, genotype, seed)
        for seed in range(asked.seeds)
        for name, genotype in entrants(preset, asked.found, asked.genotypes)
    ]
    policy = "frozen" if asked.device == "cpu" else asked.policy
    with nxcore.policy(policy):
        for name, genotype, seed in jobs[asked.share :: asked.processes]:
            row = trained(data, preset, genotype, seed, asked.device)
            print(encoded({"name": name, "seed": seed, **row}), flush=True)


def preset_of(asked: argparse.Namespace) -> nas.Preset:
    """Return the settings of all networks."""
    own = {"retrain_epochs": asked.epochs, "warmup": 0, **SHORT, **settings(asked.set)}
    return dataclasses.replace(nas.PRESETS["darts"], **own)


def summary(rows: list[dict], found: list[str]) -> dict:
    """Return the random cells' distribution, and each found cell's place in it, by means over seeds."""
    by_name: dict[str, list[float]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row["correct"])
    means = {name: statistics.mean(values) for name, values in by_name.items()}
    chance = sorted(value for name, value in means.items() if name not in found)
    at = 0.95 * (len(chance) - 1)
    low = chance[int(at)]
    high = chance[min(int(at) + 1, len(chance) - 1)]
    return {
        "mean": statistics.mean(chance),
        "deviation": statistics.stdev(chance),
        "percentile_95": low + (at - int(at)) * (high - low),
        "random": chance,
        "found": {n: {"correct": means[n], "beats": sum(means[n] > c for c in chance)} for n in found},
    }


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__.replace("%", "%%"))
    parser.add_argument("--data", default="cifar10")
    for name in ("root", "output"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--found", type=Path, nargs="*", default=[])
    parser.add_argument("--set", nargs="*", default=[])
    for name, usual in (("genotypes", 12), ("seeds", 1), ("epochs", 5), ("processes", 3), ("share", -1)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--policy", default="auto")
    asked = parser.parse_args()
    if asked.share >= 0:
        work(asked)
        return
    began = time.perf_counter()
    own = [sys.executable, __file__, *sys.argv[1:], "--share"]
    shares = range(asked.processes)
    running = [subprocess.Popen([*own, str(share)], stdout=subprocess.PIPE, text=True) for share in shares]
    rows = []
    for process in running:  # the pipes hold all that the others print meanwhile
        for line in process.stdout:
            if line.startswith("{"):
                rows.append(json.loads(line))
                print(line, end="", flush=True)
        if process.wait():
            sys.exit(f"a process ended with status {process.returncode}")
    found = summary(rows, [str(file) for file in asked.found])
    print(
        f"{len(found['random'])} random cells: mean {found['mean']:.2%}, deviation {found['deviation']:.2%},"
    )
    print(f"95th percentile {found['percentile_95']:.2%}; {time.perf_counter() - began:.0f} s in all")
    for name, its in found["found"].items():
        verdict = "beats" if its["correct"] > found["percentile_95"] else "does not beat"
        print(f"{name}: {its['correct']:.2%}, above {its['beats']} of them: {verdict} chance")
    if asked.output:
        report = {"settings": dataclasses.asdict(preset_of(asked)), "rows": rows, **found}
        asked.output.write_text(encoded(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
