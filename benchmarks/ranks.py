"""What a pass of a search takes on one GPU, and on several of one host with as many images each.

    python benchmarks/ranks.py --output one.json [--images 64] [--passes 80] [--epochs 12]
    torchrun --nproc-per-node 2 benchmarks/ranks.py --output two.json

Epochs of ``nxcore.nas.Trainer`` with the settings of the paper, on images of noise: weights and architecture
learn in turn, with all that an epoch has. The first half of the epochs, which compile, capture and learn, is
recorded and isn't counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import replace
from pathlib import Path

import torch
from torch import distributed

from nxcore import nas
from nxcore.nas.data import Data, Split
from nxcore.store.encoding import encoded


def noise(images: int, side: int, device: torch.device) -> Data:
    """Return images of noise: so many for the weights, as many for the architecture."""
    torch.manual_seed(0)
    parts = [
        Split(torch.randn(images, 3, side, side, device=device), torch.arange(images, device=device) % 10)
        for _ in range(3)
    ]
    return Data("noise", tuple("0123456789"), *parts)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--preset", default="darts")
    parser.add_argument("--images", type=int, default=64, help="in a step of one rank")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--passes", type=int, default=80, help="of an epoch; half of them learn weights")
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args(arguments)
    rank, world = (
        int(os.environ.get(name, default)) for name, default in (("LOCAL_RANK", 0), ("WORLD_SIZE", 1))
    )
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    batch = given.images * world
    preset = replace(nas.PRESETS[given.preset], warmup=0, batch=batch, epochs=given.epochs, retrain_epochs=0)
    trainer = nas.Trainer(noise(batch * given.passes // 2, given.side, device), preset, device=device)
    seconds = [trainer.advance()["seconds"] for _ in range(given.epochs)]
    if world > 1:
        distributed.destroy_process_group()
    if rank == 0:
        ms = [1e3 * s / given.passes for s in seconds]
        settled = statistics.median(ms[given.epochs // 2 :])
        record = {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            "torch": torch.__version__,
            "ranks": world,
            "images_of_a_rank": given.images,
            "passes": given.passes,
            "first_s": seconds[0],
            "pass_ms": ms,
            "settled_ms": settled,
            "images_per_s": batch / settled * 1e3,
        }
        given.output.write_text(encoded(record, indent=1) + "\n", encoding="utf-8")
        told = ", ".join(f"{m:.2f}" for m in ms)
        print(f"{world} ranks: {told} ms a pass by epochs, {settled:.2f} settled")


if __name__ == "__main__":
    main()
