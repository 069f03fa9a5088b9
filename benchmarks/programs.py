"""Models of other libraries as a user trains them: plain, accelerated, and by torch's own compilers.

    python benchmarks/programs.py [--seconds 16] [--plain 6] [--float32] [--eval] [--json FILE]
                                  [--way WAY ...] [NAME ...]

Each row is one model and one way to run it, in a process of its own that has an empty cache: ``plain``;
``accelerated`` by ``nxcore.accelerate``; ``nxcore``, ``cudagraphs``, ``default`` and ``reduce-overhead``
are what ``torch.compile`` is called with. A step is forward under bfloat16's autocast, backward and the
optimizer. The process trains for ``--seconds`` after its first eight steps, or for ``--plain`` where the
way isn't nxcore's. ``ms`` is the median of its steps after the first 10 s, or of the later half. ``ready``
is when steps began to take at most 1.1 times that, with all that came before. ``worst`` is of the slowest
five seconds after the first ten. ``GiB`` is the memory that the process has reserved at the end. Ratios are
those of the first way's time over a way's. Of several GPUs each has a model and a part of the cores.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import multiprocessing
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


def images(make: Callable[[], nn.Module], batch: int = 64, size: int = 224) -> Callable[[torch.device], Made]:
    """Return the constructor of a classifier, or of what returns images, and its loss."""

    def build(device: torch.device) -> Made:
        model = make().to(device, memory_format=torch.channels_last)
        x = torch.randn(batch, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
        y = torch.randint(2, (batch, 1, size, size), device=device)

        def loss(net: nn.Module) -> Tensor:
            out = net(x)
            return nn.functional.cross_entropy(out, y[:, 0] if out.dim() == 4 else y[:, 0, 0, 0])

        return model, loss

    return build


def words(name: str, batch: int = 16, length: int = 128, **sizes: int) -> Callable[[torch.device], Made]:
    """Return the constructor of a language model of transformers' and its loss."""

    def build(device: torch.device) -> Made:
        transformers = importlib.import_module("transformers")
        base = next(
            name.removesuffix(s)
            for s in ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")
            if name.endswith(s)
        )
        config = getattr(transformers, f"{base}Config")(**sizes)
        ids = torch.randint(5000, (batch, length), device=device)
        model = getattr(transformers, name)(config).to(device)
        return model, lambda net: net(input_ids=ids, labels=ids).loss

    return build


def named(library: str, make: str, *args: Any) -> Callable[[torch.device], Made]:
    """Return the constructor of a classifier of a library's."""
    return images(lambda: getattr(importlib.import_module(library), make)(*args))


class UNet(nn.Module):
    """Halves and doubles an image four times, with what was there before beside it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width << i for i in range(5)]
        self.down = nn.ModuleList(map(self.block, [3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[:-1])
        self.join = nn.ModuleList(self.block(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def block(ins: int, outs: int) -> nn.Module:
        """Return two convolutions."""
        convs = (nn.Conv2d(i, outs, 3, padding=1, bias=False) for i in (ins, outs))
        return nn.Sequential(*(m for c in convs for m in (c, nn.BatchNorm2d(outs), nn.ReLU(True))))

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            kept.append(x := block(x if not kept else nn.functional.max_pool2d(x, 2)))
        for i in reversed(range(len(self.up))):
            x = self.join[i](torch.cat((self.up[i](x), kept[i]), 1))
        out: Tensor = self.head(x)
        return out


def graphs(device: torch.device, nodes: int = 4096, edges: int = 65_536, width: int = 128) -> Made:
    """Return a graph network of torch_geometric's and its loss."""
    gnn = importlib.import_module("torch_geometric.nn").GraphSAGE(width, width, 3, 40).to(device)
    x, y = torch.randn(nodes, width, device=device), torch.randint(40, (nodes,), device=device)
    edge = torch.randint(nodes, (2, edges), device=device)
    return gnn, lambda net: nn.functional.cross_entropy(net(x, edge), y)


TIMM = (
    *("resnet50d", "efficientnet_b0", "convnext_tiny", "vit_small_patch16_224", "mobilenetv3_large_100"),
    *("regnety_016", "densenet121", "swin_tiny_patch4_window7_224", "mixer_s16_224", "ghostnet_100"),
)
VISION = ("resnet50", "efficientnet_b0", "mobilenet_v3_large", "convnext_tiny", "regnet_y_400mf")
MODELS: dict[str, Callable[[torch.device], Made]] = {
    **{name: named("timm", "create_model", name) for name in TIMM},
    **{f"torchvision-{name}": named("torchvision.models", name) for name in VISION},
    "gpt2-6x512": words("GPT2LMHeadModel", n_layer=6, n_embd=512, n_head=8),
    "llama-6x512": words(
        "LlamaForCausalLM",
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=6,
        num_attention_heads=8,
    ),
    "bert-6x512": words(
        "BertForMaskedLM", hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8
    ),
    "t5-6x512": words(
        "T5ForConditionalGeneration", d_model=512, num_layers=6, num_heads=8, decoder_start_token_id=0
    ),
    "unet": images(UNet, 16),
    "graphsage": graphs,
}
"""Name -> constructor."""


def run(name: str, way: str, seconds: float, *, half: bool = True, learns: bool = True) -> Row:
    """Train a model in one way, or ask it, and return its row."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model, loss_of = MODELS[name](device)
    model.train(learns)
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
            report = lambda: front.report(model)  # noqa: E731
    elif way == "cudagraphs":
        net = torch.compile(model, backend="cudagraphs")
    elif way != "plain":
        net = torch.compile(model, mode=way)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    marks: list[float] = []
    steady = 0.0
    while True:
        with torch.autocast(device.type, torch.bfloat16, enabled=half), torch.set_grad_enabled(learns):
            loss = loss_of(net)
        if learns:
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


def apart(name: str, way: str, seconds: float, given: argparse.Namespace) -> Row:
    """Return the row of a process of its own, a fork of this one, which has imported what takes seconds."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        # As set: what earlier programs left on disk doesn't count.
        os.environ["NXCORE_CACHE"] = tempfile.mkdtemp()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
        try:
            row = run(name, way, seconds, half=not given.float32, learns=not given.eval)
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


def lane(places: Any, count: int) -> None:
    """Give this process a GPU and a part of the cores of its own."""
    # As set: each lane has what a user of one GPU would have.
    place, cores = places.get(), sorted(os.sched_getaffinity(0))
    part = max(1, len(cores) // count)
    given = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    os.environ["CUDA_VISIBLE_DEVICES"] = given.split(",")[place]
    os.sched_setaffinity(0, cores[place * part : (place + 1) * part])


def rows_of(name: str, given: argparse.Namespace, began: float) -> list[Row]:
    """Return a model's rows, printed as they come."""
    rows = list[Row]()
    for way in given.way or WAYS:
        if time.perf_counter() - began > given.limit:
            break
        seconds = given.seconds if way in ("accelerated", "nxcore") else given.plain
        row = apart(name, way, seconds, given)
        rows.append(row)
        ratio = rows[0].ms / row.ms if row.ms else 0.0
        worst = rows[0].ms / row.worst if row.worst else 0.0
        figures = f"{row.ms:8.2f} ms {ratio:5.2f}x worst {worst:5.2f}x ready {row.ready:5.1f} s"
        said = f"{row.why}{' | '.join(row.report)[:600]}"
        print(f"{name:28} {way:16} {figures} {row.gib:6.2f} GiB {said}", flush=True)
    return rows


def main() -> None:
    """Print a row for each model and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*MODELS])
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--seconds", type=float, default=16.0)
    parser.add_argument("--plain", type=float, default=6.0)
    parser.add_argument("--limit", type=float, default=570.0, help="seconds after which no row begins")
    parser.add_argument("--float32", action="store_true", help="without autocast")
    parser.add_argument("--eval", action="store_true", help="predictions alone, without gradients")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    for module in ("timm", "torchvision", "transformers"):
        if importlib.util.find_spec(module):
            importlib.import_module(module)
    count, began = max(1, torch.cuda.device_count()), time.perf_counter()
    forks, rows = multiprocessing.get_context("fork"), list[Row]()
    places = forks.SimpleQueue()
    for place in range(count):
        places.put(place)
    with forks.Pool(count, lane, (places, count)) as pool:
        ask = functools.partial(rows_of, given=given, began=began)
        for found in pool.imap_unordered(ask, given.names):
            rows += found
            if given.json is not None:
                device = rows[0].device
                lines = {"device": device, "torch": torch.__version__, "rows": [asdict(r) for r in rows]}
                given.json.write_text(encoded(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
