"""What the images allow: a small network that is known to reach 94, 95 or 96% of CIFAR-10 in seconds.

    python benchmarks/calibrate.py --root FILE [--recipes 94 95 96] [--seed 0] [--seeds 1] [--epochs N]
                                   [--width C] [--depth 2|3] [--device cuda] [--images N] [--output FILE]

``--root`` is what ``nxcore search --data cifar10 --root`` takes, and the project's loader reads it. Less
than the recipe's name means that the images cost something, or that the loader is wrong. The recipes are
those of Jordan 2024, arXiv:2404.00498, and of its later forms: a first layer of 2x2 that whitens and is
frozen, three blocks of convolutions, pool, batch norm without weights and GELU, Nesterov SGD with decoupled
decay (94: Muon for filters), biases that learn 64 times as fast, label smoothing, mirroring that alternates
by epochs, shifts, cutout, a slow copy of the weights, test images mirrored and shifted, and bfloat16.

``--epochs``, ``--width`` (of the first block) and ``--depth`` replace the recipe's. ``--images`` takes a part
of the images, for a CPU. Seconds have all but the decoding; the first seed's also what cuDNN tries.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from nxcore.nas import data
from nxcore.store.encoding import encoded

MOMENTUM = 0.85


@dataclass(frozen=True)
class Recipe:
    """Settings; ``rate`` and ``decay`` are for 1,024 images and independent of each other and of momentum."""

    epochs: int
    batch: int
    widths: tuple[int, int, int]
    depth: int = 2
    shift: int = 2
    cutout: int = 0
    rate: float = 10.0
    decay: float = 0.0153
    warmup: float = 0.1
    keeps: float = 0.6  # of a norm's running statistics, in a step
    muon: bool = False


RECIPES = {
    "94": Recipe(8, 2000, (64, 256, 256), warmup=0.0, muon=True),
    "95": Recipe(15, 1024, (128, 384, 384)),
    "96": Recipe(31, 1024, (128, 512, 512), 3, shift=4, cutout=12, rate=9.0, decay=0.012, keeps=0.9),
}


class Block(nn.Module):
    """Convolution, pool, norm, GELU; one or two more convolutions, the second added to the first's output."""

    def __init__(self, before: int, channels: int, depth: int, keeps: float) -> None:
        super().__init__()
        pairs = itertools.pairwise([before, *[channels] * depth])
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels, 1e-12, 1 - keeps) for _ in range(depth))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            nn.init.dirac_(conv.weight.data[: conv.in_channels])
            norm.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = first = functional.gelu(self.norms[0](functional.max_pool2d(self.convs[0](x), 2)))
        for place, (conv, norm) in enumerate(zip(self.convs[1:], self.norms[1:], strict=True), 1):
            x = norm(conv(x))
            x = functional.gelu(x + first if place == 2 else x)
        return x


class Network(nn.Module):
    def __init__(self, recipe: Recipe, images: Tensor) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad_(False)
        widths = [24, *recipe.widths]
        pairs = itertools.pairwise(widths)
        self.blocks = nn.Sequential(*(Block(a, b, recipe.depth, recipe.keeps) for a, b in pairs))
        self.head = nn.Linear(widths[-1], 10, bias=False)
        self.scale = 1 / widths[-1] if recipe.muon else 1 / 9
        if recipe.muon:
            self.head.weight.data /= self.head.weight.data.std()
        else:
            nn.init.zeros_(self.whiten.bias)
        patches = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12).double()
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors.T / (values[:, None] + 5e-4).sqrt()).flip(0).view(12, 3, 2, 2)
        self.whiten.weight.data.copy_(torch.cat((filters, -filters)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.gelu(self.whiten(x)))
        return self.head(functional.max_pool2d(x, 3).flatten(1)) * self.scale


class Muon(torch.optim.Optimizer):
    """Steps are orthogonal matrices near the momentum, by Newton and Schulz; weights keep their norm."""

    def __init__(self, weights: list[nn.Parameter], lr: float, momentum: float) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                moved = self.state[p].setdefault("momentum", torch.zeros_like(p))
                moved.mul_(group["momentum"]).add_(p.grad)
                x = p.grad.add(moved, alpha=group["momentum"]).reshape(len(p), -1).bfloat16()
                x = x / (x.norm() + 1e-7)
                x = x.T if x.shape[0] > x.shape[1] else x
                for _ in range(3):
                    square = x @ x.T
                    x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
                x = x.T if len(x) != len(p) else x
                p.mul_(len(p) ** 0.5 / p.norm()).sub_(x.reshape(p.shape), alpha=group["lr"])


def optimizers(net: Network, recipe: Recipe, *, fused: bool) -> list[torch.optim.Optimizer]:
    learn = [p for p in net.blocks.parameters() if p.requires_grad]
    filters, biases = ([p for p in learn if p.ndim == axes] for axes in (4, 1))
    if recipe.muon:
        decay = 2e-6 * recipe.batch
        shares = [([net.whiten.bias, *biases], 0.053), ([net.head.weight], 0.67)]
    else:
        scale = 1024 * (1 + 1 / (1 - MOMENTUM))  # Nesterov's steps are so much longer than a gradient
        decay, rate = recipe.decay * recipe.batch / scale, recipe.rate / scale
        shares = [([net.whiten.bias, net.head.weight, *filters], rate), (biases, 64 * rate)]
    groups = [{"params": params, "lr": rate, "weight_decay": decay / rate} for params, rate in shares]
    made = [torch.optim.SGD(groups, momentum=MOMENTUM, nesterov=True, fused=fused)]
    made += [Muon(filters, 0.24, 0.6)] * recipe.muon
    for group in (group for optimizer in made for group in optimizer.param_groups):
        group["peak"] = group["lr"]
    return made


def batches(padded: Tensor, labels: Tensor, recipe: Recipe, mirrored: Tensor):
    """Yield an epoch's batches: shifted, mirrored as told, cut out. Images are padded, channels last."""
    device, side = labels.device, padded.shape[1] - 2 * recipe.shift
    along = torch.arange(side, device=device)
    order = torch.randperm(len(labels), device=device)
    size = min(recipe.batch, len(order))
    for at in order[: len(order) // size * size].view(-1, size):
        y, x = (torch.randint(2 * recipe.shift + 1, (size, 1), device=device) + along for _ in range(2))
        x = torch.where(mirrored[at][:, None], x.flip(1), x)
        images = padded[at[:, None, None], y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)
        if recipe.cutout:
            first = (torch.randint(side - recipe.cutout + 1, (size, 1), device=device) for _ in range(2))
            down, across = ((along >= f) & (along < f + recipe.cutout) for f in first)
            images = images.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0.0)
        yield images, labels[at]


@torch.no_grad()
def correct(net: nn.Module, part: data.Split) -> tuple[float, float]:
    """Return the share of correct images, as they are, and by six views: mirrored, shifted by a pixel."""
    plain = views = 0
    for images, labels in zip(part.images.split(2000), part.labels.split(2000), strict=True):
        wide = functional.pad(images, (1, 1, 1, 1), "reflect")
        with torch.autocast(images.device.type, torch.bfloat16):
            shifted = (images, wide[:, :, :-2, :-2], wide[:, :, 2:, 2:])
            scores = [net(x).float() for y in shifted for x in (y, y.flip(3))]
        mean = 2 * (scores[0] + scores[1]) + sum(scores[2:])
        plain += (scores[0].argmax(1) == labels).sum().item()
        views += (mean.argmax(1) == labels).sum().item()
    return plain / len(part.labels), views / len(part.labels)


def trained(recipe: Recipe, train: data.Split, held_out: data.Split, seed: int) -> dict[str, float]:
    """Train one network; return its shares of correct images, its seconds and its last loss."""
    torch.manual_seed(seed)
    device, began = train.labels.device, time.perf_counter()
    net = Network(recipe, train.images[:5000].cpu()).to(device, memory_format=torch.channels_last)
    moved = optimizers(net, recipe, fused=device.type == "cuda")
    padded = functional.pad(train.images, (recipe.shift,) * 4, "reflect")
    padded = padded.permute(0, 2, 3, 1).bfloat16().contiguous()
    first = torch.rand(len(padded), device=device) < 0.5
    steps = recipe.epochs * max(1, len(train.labels) // recipe.batch)
    held = [t.detach() for t in (*net.parameters(), *net.buffers()) if t.is_floating_point()]
    slow, done = [t.clone() for t in held], 0
    for epoch in range(recipe.epochs):
        net.whiten.bias.requires_grad_(epoch < 3)
        for images, labels in batches(padded, train.labels, recipe, first ^ bool(epoch % 2)):
            rises = 0.2 + 0.8 * done / (recipe.warmup * steps) if done < recipe.warmup * steps else 1.0
            rate = min(rises, (steps - done) / (steps - int(recipe.warmup * steps)))
            for group in (group for optimizer in moved for group in optimizer.param_groups):
                group["lr"] = group["peak"] * rate
            with torch.autocast(device.type, torch.bfloat16):
                scores = net(images)
            loss = functional.cross_entropy(scores.float(), labels, label_smoothing=0.2, reduction="sum")
            net.zero_grad()
            loss.backward()
            for optimizer in moved:
                optimizer.step()
            done += 1
            if (done % 5 == 0 or done == steps) and not recipe.muon:
                share = 1 - 0.95**5 * (done / steps) ** 3 if done < steps else 0.0
                torch._foreach_lerp_(slow, held, share)
                torch._foreach_copy_(held, slow)
    net.eval()
    plain, views = correct(net, held_out)  # waits for the device
    seconds = time.perf_counter() - began
    return {"plain": plain, "views": views, "seconds": seconds, "loss": loss.item() / len(labels)}


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__.replace("%", "%%"))
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=[*RECIPES])
    for name in ("epochs", "width", "depth", "images", "seed", "seeds"):
        parser.add_argument(f"--{name}", type=int, default={"seed": 0, "seeds": 1}.get(name))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    began, report = time.perf_counter(), {"torch": torch.__version__, "recipes": {}}
    loaded, n = data.load("cifar10", asked.root), asked.images
    train, held_out = (
        data.Split(*(t[:n].to(asked.device) for t in part)) for part in (loaded.both, loaded.held_out)
    )
    report["device"] = torch.cuda.get_device_name() if "cuda" in asked.device else asked.device
    print(f"{report['device']}, images read in {time.perf_counter() - began:.1f} s")
    for name in asked.recipes:
        given = {key: getattr(asked, key) for key in ("epochs", "depth") if getattr(asked, key)}
        recipe = replace(RECIPES[name], **given)
        wider = (asked.width or recipe.widths[0]) / recipe.widths[0]
        recipe = replace(recipe, widths=tuple(int(w * wider) for w in recipe.widths))
        runs = []
        for seed in range(asked.seed, asked.seed + asked.seeds):
            runs.append({"seed": seed, **trained(recipe, train, held_out, seed)})
            print(f"{name}, seed {seed}: " + ", ".join(f"{k} {v:.4f}" for k, v in [*runs[-1].items()][1:]))
        report["recipes"][name] = {"settings": asdict(recipe), "runs": runs}
    print(f"{'recipe':8}{'seeds':>6}{'correct':>10}{'six views':>11}{'seconds':>9}")
    for name, of in report["recipes"].items():
        columns = ([run[key] for run in of["runs"]] for key in ("plain", "views", "seconds"))
        plain, views, seconds = map(statistics.mean, columns)
        print(f"{name:8}{len(of['runs']):6}{plain:10.2%}{views:11.2%}{seconds:9.1f}")
    if asked.output:
        asked.output.write_text(encoded(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
