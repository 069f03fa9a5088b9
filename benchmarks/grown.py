"""Growing against training from scratch: held-out images over seconds of training, of both.

    python benchmarks/grown.py --root FILE --grow EPOCH:KIND[:SIZE] ... [--data cifar10] [--images N]
                               [--preset darts] [--set NAME=VALUE ...] [--seeds 1] [--device cuda] [-o FOLDER]

A supernet searches and grows as ``nxcore search --grow`` has it. Beside it, the network that it ends as
searches from new weights for as many seconds of training, one after the other. Both have the preset's
settings, without warm-up and retraining; the learning rate of one ends its cosine with its epochs, that of
the other with the time. After each epoch the held-out images are evaluated; that time isn't counted.
``--images`` takes a part of the images, for a CPU. ``grown.json`` and ``grown.html`` have all curves.
"""

import argparse
import dataclasses
import itertools
from pathlib import Path

import torch

import nxcore
from nxcore import nas
from nxcore.cli.search import mutation, settings
from nxcore.nas.picture import drawn, page
from nxcore.store.encoding import encoded

WHOLE = 10**6
COLOURS = {"grown": "#1a7f4b", "from scratch": "#b35900"}


def ended(preset: nas.Preset) -> nas.Preset:
    """Return the settings of the network that a search with these ends as, from its beginning."""
    nodes = sum(m.kind == "node" for m in preset.mutations)
    widths = [m.size for m in preset.mutations if m.kind == "widen"]
    cells = tuple(dataclasses.replace(m, epoch=0) for m in preset.mutations if m.kind == "deepen")
    sizes = {"steps": preset.steps + nodes, "multiplier": preset.multiplier + nodes}
    return dataclasses.replace(preset, C=(widths or [preset.C])[-1], mutations=cells, **sizes)


def followed(trainer: nas.Trainer, name: str) -> dict:
    """Train to the end; return the seconds, the held-out images that are correct, and what grew, by epoch."""
    rows = []
    for row in trainer.run():
        if row["phase"] == "mutation":
            rows.append({"spent_s": trainer.spent_s, "grown": row["grown"], "weights": row["parameters"]})
            continue
        loss, correct = trainer.evaluate(trainer.data.held_out)
        rows.append({"spent_s": trainer.spent_s, "correct": correct, "loss": loss})
        print(f"{name}, {trainer.spent_s:.0f} s: {correct:.2%} of held-out images", flush=True)
    weights = sum(p.numel() for p in trainer.net.parameters())
    return {"seconds": trainer.spent_s, "weights": weights, "rows": rows}


def raced(data: nas.data.Data, preset: nas.Preset, seed: int, device: torch.device | str) -> dict:
    """Return the curve of a search that grows, and of what it ends as."""
    grown = followed(nas.Trainer(data, preset, seed=seed, device=device), f"grown, seed {seed}")
    # A search has half of a budget.
    whole = dataclasses.replace(ended(preset), epochs=WHOLE, budget_s=2 * grown["seconds"])
    scratch = nas.Trainer(data, whole, seed=seed, device=device)
    return {"grown": grown, "from scratch": followed(scratch, f"from scratch, seed {seed}")}


def chart(runs: list[dict]) -> str:
    """Return the curves of all seeds."""
    traces = []
    for seed, (name, color) in itertools.product(range(len(runs)), COLOURS.items()):
        points = [row for row in runs[seed][name]["rows"] if "correct" in row]
        axes = {"x": [row["spent_s"] for row in points], "y": [100 * row["correct"] for row in points]}
        traces.append({**axes, "name": name, "line": {"color": color}, "showlegend": not seed})
    titles = {"xaxis": "seconds of training", "yaxis": "held-out images, correct, %"}
    return drawn("chart", [traces, {axis: {"title": {"text": text}} for axis, text in titles.items()}])


def part(data: nas.data.Data, images: int | None) -> nas.data.Data:
    """Return the first so many images of each split."""
    splits = ("train", "validation", "held_out")
    cut = {name: nas.data.Split(*(t[:images] for t in getattr(data, name))) for name in splits}
    return dataclasses.replace(data, **cut)


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__.replace("%", "%%"))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--preset", default="darts", choices=nas.PRESETS)
    for name in ("grow", "set"):
        parser.add_argument(f"--{name}", nargs="*", default=[])
    parser.add_argument("--images", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output", type=Path, default=Path("grown"))
    asked = parser.parse_args()
    own = {"warmup": 0, "retrain_epochs": 0, "mutations": tuple(map(mutation, asked.grow))}
    preset = dataclasses.replace(nas.PRESETS[asked.preset], **settings(asked.set), **own)
    runs = []
    with nxcore.policy("frozen" if asked.device == "cpu" else "auto"):
        for seed in range(asked.seeds):
            data = part(nas.data.load(asked.data, asked.root, seed=seed), asked.images).to(asked.device)
            runs.append(raced(data, preset, seed, asked.device))
    asked.output.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if "cuda" in asked.device else asked.device
    report = {"device": device, "torch": torch.__version__, "settings": dataclasses.asdict(preset)}
    report |= {"counts": data.counts, "seeds": runs}
    (asked.output / "grown.json").write_text(encoded(report, indent=1) + "\n", encoding="utf-8")
    (asked.output / "grown.html").write_text(page("Growing and training from scratch", chart(runs)), "utf-8")
    for seed, run in enumerate(runs):
        last = {name: run[name]["rows"][-1]["correct"] for name in COLOURS}
        told = ", ".join(f"{name} {correct:.2%}" for name, correct in last.items())
        print(f"seed {seed}, {run['grown']['seconds']:.0f} s each: {told}")


if __name__ == "__main__":
    main()
