"""Models of other libraries as a user trains them: plain, accelerated, and by torch's own compilers.

    python benchmarks/programs.py [--seconds 16] [--plain 6] [--json FILE] [--way WAY ...] [NAME ...]

Each row is one model and one way to run it, in a process of its own that has an empty cache: ``plain``;
``accelerated`` by ``nxcore.accelerate``; ``nxcore``, ``cudagraphs``, ``default`` and ``reduce-overhead``
are what ``torch.compile`` is called with. A step is forward under bfloat16's autocast, backward and the
optimizer. The process trains for ``--seconds`` after its first eight steps, or for ``--plain`` where the
way isn't nxcore's. ``ms`` is the median of its steps after the first 10 s, or of the later half. ``ready``
is when steps began to take at most 1.1 times that, with all that came before. ``worst`` is of the slowest
five seconds after the first ten. ``GiB`` is the memory that the process has reserved at the end. Ratios are
plain's time over a way's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.store.encoding import encoded

WAYS = ("plain", "accelerated", "nxcore", "cudagraphs", "default", "reduce-overhead")
SETTLED_S, NEAR, BLOCK = 10.0, 1.1, 4
"""Seconds after which steps count; the ratio from which on they are near that; the steps of one mark."""

MOST_S = 90.0
"""The most seconds of a way, first steps included."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one way has taken.

    Attributes
    ----------
    ms : float
        Of a step, late.
    ready : float
        Seconds until steps took about as long.
    gib : float
        Reserved memory.
    worst : float
        The longest mean step, in ms, of any five seconds after the first ten; 0 where there are none.
    report : list of str
        What the watch over an accelerated model says.
    why : str
        The error of a way that ended with one.
    """

    name: str
    way: str
    ms: float = 0.0
    ready: float = 0.0
    gib: float = 0.0
    worst: float = 0.0
    report: list[str] = field(default_factory=list)
    why: str = ""
    device: str = ""


Made = tuple[nn.Module, Callable[[nn.Module], Tensor]]
"""A model, and what returns its loss."""


def images(make: Callable[[], nn.Module], batch: int = 64) -> Callable[[torch.device], Made]:
    """Return the constructor of a classifier and its loss."""

    def build(device: torch.device) -> Made:
        model = make().to(device, memory_format=torch.channels_last)
        x = torch.randn(batch, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
        y = torch.randint(1000, (batch,), device=device)
        return model, lambda net: nn.functional.cross_entropy(net(x), y)

    return build


def words(
    make: Callable[[], nn.Module], batch: int = 16, length: int = 128
) -> Callable[[torch.device], Made]:
    """Return the constructor of a language model and its loss."""

    def build(device: torch.device) -> Made:
        ids = torch.randint(5000, (batch, length), device=device)
        return make().to(device), lambda net: net(input_ids=ids, labels=ids).loss

    return build


def _timm(name: str) -> Callable[[torch.device], Made]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name)

    return images(make)


def _torchvision(name: str) -> Callable[[torch.device], Made]:
    def make() -> nn.Module:
        from torchvision import models

        return getattr(models, name)()

    return images(make)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=512, n_head=8))


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6, "num_attention_heads": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32000, **sizes))


TIMM = ("resnet50d", "efficientnet_b0", "convnext_tiny", "vit_small_patch16_224", "mobilenetv3_large_100")
MODELS: dict[str, Callable[[torch.device], Made]] = {
    **{name: _timm(name) for name in TIMM},
    "gpt2-6x512": words(_gpt2),
    "llama-6x512": words(_llama),
    "torchvision-resnet50": _torchvision("resnet50"),
}
"""Name -> constructor."""


def run(name: str, way: str, seconds: float) -> Row:
    """Train a model in one way, and return its row."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model, loss_of = MODELS[name](device)
    report: Callable[[], Sequence[str]] = list
    began = time.perf_counter()
    net: Any = model
    if way in ("accelerated", "nxcore"):
        import nxcore
        from nxcore.nn import watching
        from nxcore.program import front

        if way == "accelerated":
            print(str(nxcore.accelerate(model)).splitlines()[-1], file=sys.stderr)
            report = lambda: watching.report(model)  # noqa: E731  one of two
        else:
            net = torch.compile(model, backend=front.nxcore)
            report = lambda: [p.report for p in front.programs_of(model)]  # noqa: E731
    elif way == "cudagraphs":
        net = torch.compile(model, backend="cudagraphs")
    elif way != "plain":
        net = torch.compile(model, mode=way)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    marks: list[float] = []
    steady = 0.0
    while True:
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(net)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        count = len(marks)
        if count % BLOCK == 0 and device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter() - began
        marks.append(now)
        if count == 2 * BLOCK:
            steady = now
        if count > 4 * BLOCK and (now > steady + seconds or now > MOST_S):
            break
    return _row(name, way, marks, device, [*report()])


def _row(name: str, way: str, marks: Sequence[float], device: torch.device, report: list[str]) -> Row:
    blocks = [(marks[i], (marks[i] - marks[i - BLOCK]) / BLOCK) for i in range(BLOCK, len(marks), BLOCK)]
    late = [s for at, s in blocks if at > SETTLED_S] or [s for _, s in blocks[len(blocks) // 2 :]]
    usual = statistics.median(late)
    slow = [at for at, s in blocks[: len(blocks) // 2 + 1] if s > NEAR * usual]
    windows = []
    for i, (at, _) in enumerate(blocks):
        after = [t for t, _ in blocks[i:] if t >= at + 5.0]
        if at >= SETTLED_S and after:
            windows.append((after[0] - at) / (BLOCK * sum(at < t <= after[0] for t, _ in blocks)))
    gib = torch.cuda.memory_reserved(device) / 2**30 if device.type == "cuda" else 0.0
    ready = slow[-1] if slow else blocks[0][0]
    on = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return Row(name, way, 1e3 * usual, ready, gib, 1e3 * max(windows, default=0.0), report, device=on)


def apart(name: str, way: str, seconds: float) -> Row:
    """Return the row of a process of its own, a fork of this one, which has imported what takes seconds."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        # As set: what earlier programs left on disk doesn't count.
        os.environ["NXCORE_CACHE"] = tempfile.mkdtemp()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
        try:
            row = run(name, way, seconds)
        except Exception as error:  # noqa: BLE001  a row says so
            row = Row(name, way, why=f"{type(error).__name__}: {error}"[:400])
        with os.fdopen(writes, "w") as out:
            out.write(encoded(asdict(row)))
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as found:
        text = found.read()
    os.waitpid(child, 0)
    return Row(**json.loads(text)) if text else Row(name, way, why="its process ended")


def main() -> None:
    """Print a row for each model and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*MODELS])
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--seconds", type=float, default=16.0)
    parser.add_argument("--plain", type=float, default=6.0)
    parser.add_argument("--limit", type=float, default=570.0, help="seconds after which no row begins")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    for module in ("timm", "torchvision.models", "transformers"):
        __import__(module)
    began, rows = time.perf_counter(), list[Row]()
    for name in given.names:
        plain = 0.0
        for way in given.way or WAYS:
            if time.perf_counter() - began > given.limit:
                break
            seconds = given.seconds if way in ("accelerated", "nxcore") else given.plain
            row = apart(name, way, seconds)
            rows.append(row)
            plain = row.ms if way == "plain" else plain
            ratio = plain / row.ms if row.ms else 0.0
            worst = plain / row.worst if row.worst else 0.0
            figures = f"{row.ms:8.2f} ms {ratio:5.2f}x worst {worst:5.2f}x ready {row.ready:5.1f} s"
            said = f"{row.why}{' | '.join(row.report)[:600]}"
            print(f"{name:24} {way:16} {figures} {row.gib:6.2f} GiB {said}", flush=True)
            if given.json is not None:
                device = row.device
                lines = {"device": device, "torch": torch.__version__, "rows": [asdict(r) for r in rows]}
                given.json.write_text(encoded(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
