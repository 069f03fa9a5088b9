"""Models as a user trains them: plain and accelerated in turns, and what the watch over steps has found.

    python benchmarks/steps.py [--seconds 60] [--beside 0] [--limit SECONDS] [--policy POLICY ...] [--half]
                               [--eval] [--cache DIR] [--json FILE] [--export DIR] [--shipped DIR] [--same]
                               [NAME ...]

The accelerated model runs in another process, from an empty cache, or from that of ``--cache``. Each turn
runs it for a second, or 24 steps, and the plain one for half of that, on the same images. A process that
doesn't run is stopped, so that nothing that nxcore does beside the model is paid by the plain one. With
``--beside`` the plain model has turns from so many seconds on; its turn before them counts until then. A
turn's ratio is the plain model's time of a step over the accelerated one's. A window is of consecutive turns
that take the accelerated model five seconds, and begins after its first 10 s: its ratio is the time of as
many plain steps, each by the turn beside it, over that of all its steps. Time is the clock's; ``cpu`` is the
processor time of all threads of the process. Each ``--policy`` has a row of its own; without one the policy
is that of the environment. ``good`` is the end of the last window that was slower than plain by more than 2%,
and ``worst`` the lowest ratio of a window; ``reached`` is when the accelerated model began to take at most
1.1 times what it takes in the later half. ``first`` is the time of the first step, and of the plain
process's, and ``10 s`` what the first ten seconds cost beyond as many plain steps. ``GiB`` is the device's
memory that the process has reserved, and the plain one's. Then come the kernels compiled and the races held
in that process, up to the first 10 s and in all, the verdicts of the watch, and in the file what ``explain``
shows, and the problems that the process measured. ``--export`` writes what was measured as a file of the
package's record, one a model; ``--shipped`` takes the package's record from a folder. With ``--same`` the
other process runs the plain model too: the ratios are what the machine's noise gives.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.store.encoding import encoded

sys.path.append(str(Path(__file__).parents[1]))
from tests.nas import darts
from tests.nn import networks

OURS_S, PLAIN_S, LOSS = 1.0, 0.5, 0.02
FEWEST = 24
"""The fewest steps of a turn: the watch's pairs take 11 to 14, and none outlives the pause."""
WINDOW_S, LEARNING_S = 5.0, 10.0
NEAR = 1.1
"""The time of a step over that of a late one, from which on the model counts as fast."""


class Darts(nn.Module):
    """DARTS' own network with its architecture's weights."""

    def __init__(self, channels: int = 16, layers: int = 8, nodes: int = 4) -> None:
        super().__init__()
        self.network = darts.Network(channels, 10, layers, nodes)
        edges = nodes * (nodes + 3) // 2
        self.normal, self.reduce = (nn.Parameter(1e-3 * torch.randn(edges, 8)) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        return self.network(x, self.normal.softmax(-1), self.reduce.softmax(-1))


class Stacked(nn.Module):
    """An edge whose outputs are stacked and weighted by one product, which ``nas.patch`` leaves as it is."""

    def __init__(self, mixed: networks.MixedOp) -> None:
        super().__init__()
        self.candidates = mixed.candidates

    def forward(self, x: Tensor, logits: Tensor) -> Tensor:
        made = torch.stack([candidate(x) for candidate in self.candidates])
        return torch.einsum("n,nbchw->bchw", logits.softmax(0), made)


def stacked() -> nn.Module:
    """Return a search network of such edges."""
    network = networks.Darts(16)
    for cell in network.cells:
        cell.edges = nn.ModuleList(map(Stacked, cell.edges))
    return network


def torchvisions(name: str) -> Callable[[], nn.Module]:
    """Return the constructor of a model of torchvision."""

    def build() -> nn.Module:
        from torchvision import models

        return getattr(models, name)()

    return build


TORCHVISION = ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "regnet_y_800mf")
SMALL = {"resnet18": 64, "resnet50": 64, "mobilenet_v3_large": 96, "efficientnet_b0": 96, "convnext_tiny": 64}
MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "mobilenet-small": (networks.mobilenet, 8, 48),
    "darts-unrecognised": (networks.Darts, 8, 24),
    "darts-lists": (lambda: networks.Darts(16), 64, 32),
    "darts-stacked": (stacked, 64, 32),
    "darts-small": (lambda: Darts(8, 3, 2), 8, 16),
    "darts": (Darts, 64, 32),
    **{f"{name}-small": (torchvisions(name), 4, size) for name, size in SMALL.items()},
    **{name: (torchvisions(name), 64, 224) for name in TORCHVISION},
}
"""Name -> constructor, batch, and extent of the images; ``small`` ones are for a CPU."""


@dataclass(frozen=True, slots=True)
class How:
    """A model and how it is called; the policy is that of the environment if it is empty."""

    name: str
    half: bool
    evaluation: bool
    same: bool = False
    policy: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """Steps of one model.

    Attributes
    ----------
    seconds, cpu : float
        Of a step: of the clock, and of the processor in all threads of the process.
    steps : int
    report : list of str
        The watch's.
    tally : dict
        What the process has compiled and measured so far; empty of plain steps.
    memory : int
        The bytes of the device's memory that the process has reserved.
    first : float
        The seconds of the plain process's first step.
    apart : bool
        Whether it was run before the turns, not beside one.
    """

    seconds: float
    cpu: float
    steps: int
    report: list[str]
    tally: dict[str, int] = field(default_factory=dict)
    memory: int = 0
    first: float = 0.0
    apart: bool = False


def step(model: nn.Module, x: Tensor, how: How) -> None:
    """Run forward, and backward unless in evaluation."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=how.half):
        if how.evaluation:
            with torch.inference_mode():
                model(x)
            return
        model.zero_grad()
        scores = model(x)
    scores = scores[0] if isinstance(scores, tuple) else scores
    scores.float().square().mean().backward()


def turn(model: nn.Module, x: Tensor, how: How, seconds: float, least: int = FEWEST // 2) -> Turn:
    """Run steps for so many seconds, and ``least`` steps at least."""
    count, began, busy = 0, time.perf_counter(), time.process_time()
    while count < least or (now := time.perf_counter() - began) < seconds:
        step(model, x, how)
        count += 1
        if x.is_cuda and count % 8 == 0:
            torch.cuda.current_stream().synchronize()  # else the host runs ahead of the limit
    if x.is_cuda:
        torch.cuda.synchronize()
    now = time.perf_counter() - began
    reserved = torch.cuda.memory_reserved() if x.is_cuda else 0
    return Turn(now / count, (time.process_time() - busy) / count, count, [], memory=reserved)


def made(how: How) -> tuple[nn.Module, Tensor]:
    """Return the plain model and its images."""
    build, batch, extent = MODELS[how.name]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layout = torch.channels_last if how.half else torch.contiguous_format
    torch.manual_seed(0)
    model = build().to(device, memory_format=layout).train(not how.evaluation)
    return model, torch.randn(batch, 3, extent, extent, device=device).contiguous(memory_format=layout)


@functools.lru_cache(maxsize=1)
def plain_of(how: How) -> tuple[nn.Module, Tensor, float]:
    """Return the plain model and its images after a first step, and the seconds of that."""
    model, x = made(how)
    return model, x, turn(model, x, how, 0.0, 1).seconds


def problems(document: dict[str, Any]) -> list[str]:
    """Return what a process has measured: each problem and the kernel that was chosen."""
    found = [(e["page"]["decision"], e["key"]) for part in document["environments"] for e in part["entries"]]
    return [f"{made['chosen']}: {encoded(of, sort_keys=True)}" for made, of in found]


def serve(how: How, folder: Path | None = None, shipped: Path | None = None) -> None:
    """Accelerate the model; for each line with seconds, run a turn and print it.

    At the end what was measured is written into ``folder``; before it comes what ``explain`` shows.
    """
    import nxcore
    from nxcore import nas, session
    from nxcore.nn import watching
    from nxcore.spec.tally import tally
    from nxcore.store import transfer

    transfer.SHIPPED = shipped or transfer.SHIPPED
    model, x = made(how)
    for line in sys.stdin:
        if line.strip() == "explain":
            measured = problems(transfer.exported(session.default().wisdom.store))  # explain measures none
            with torch.autocast(x.device.type, torch.bfloat16, enabled=how.half):
                print(encoded([str(nxcore.explain(model, x)), *measured]), flush=True)
            continue
        if float(line) == 0:  # the first: what precedes it counts too
            began = time.perf_counter()
            if not how.same:
                (nas.patch if how.name.startswith("darts") else nxcore.accelerate)(model)
            step(model, x, how)
            found = Turn(time.perf_counter() - began, 0.0, 1, [])
        else:
            found = turn(model, x, how, float(line), FEWEST)
        # The report ends a block: no step holds the pause.
        row = asdict(found) | {"report": watching.report(model), "tally": asdict(tally())}
        print(encoded(row), flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{how.name}{'-half' * how.half}{'-eval' * how.evaluation}.json"
        transfer.write(file, transfer.exported(session.default().wisdom.store))


def turns(
    how: How,
    seconds: float,
    cache: str,
    limit: float = math.inf,
    folder: Path | None = None,
    explained: Callable[[str], None] | None = None,
    shipped: Path | None = None,
    beside: float = 0.0,
) -> Iterator[tuple[float, Turn, Turn]]:
    """Yield the accelerated model's seconds so far, and a turn of both models; the first is one step.

    No turn but the first begins after ``limit`` seconds. What was measured is written into ``folder``, and
    ``explained`` gets what ``serve`` prints at the end. The plain model has turns from ``beside`` on.
    """
    until = time.perf_counter() + limit
    given = ["--half"] * how.half + ["--eval"] * how.evaluation + ["--same"] * how.same
    given += [] if folder is None else ["--export", str(folder)]
    given += [] if shipped is None else ["--shipped", str(shipped)]
    # As set: the cache and the policy are arguments, the default ones without them.
    env = os.environ | {"NXCORE_CACHE": cache} | ({"NXCORE_POLICY": how.policy} if how.policy else {})
    command, pipe = [sys.executable, __file__, "--serve", *given, how.name], subprocess.PIPE
    child = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
    assert child.stdin
    assert child.stdout
    model, x, first = plain_of(replace(how, policy=""))
    plain = replace(turn(model, x, how, PLAIN_S), first=first, apart=True)
    spent, wanted = 0.0, 0.0
    try:
        while not wanted or (spent < seconds and time.perf_counter() < until):
            child.stdin.write(f"{wanted}\n")
            child.stdin.flush()
            own = Turn(**json.loads(child.stdout.readline()))
            spent += own.seconds * own.steps
            if spent >= beside:
                child.send_signal(signal.SIGSTOP)
                plain = replace(turn(model, x, how, PLAIN_S), first=first)
                child.send_signal(signal.SIGCONT)
            wanted = OURS_S
            yield spent, plain, own
        if explained is not None:
            child.stdin.write("explain\n")
            child.stdin.flush()
            for text in json.loads(child.stdout.readline()):
                explained(text)
    finally:
        child.stdin.close()
        child.wait()


def windows(found: list[tuple[float, Turn, Turn]]) -> Iterator[tuple[float, float]]:
    """Yield the end of each window of five seconds after the first ten, and its ratio."""
    for at, (began, _, _) in enumerate(found):
        if began < LEARNING_S:
            continue
        plain = own = 0.0
        for end, p, o in found[at + 1 :]:
            plain, own = plain + o.steps * p.seconds, own + o.steps * o.seconds
            if own >= WINDOW_S:
                yield end, plain / own
                break


def reached(found: list[tuple[float, Turn, Turn]]) -> float:
    """Return the seconds after which every turn is near the usual one of the later half."""
    usual = statistics.median(own.seconds for _, _, own in found[len(found) // 2 :])
    slow = [at for at, _, own in found if own.seconds > NEAR * usual]
    return max(slow, default=0.0)


def line(how: How, found: list[tuple[float, Turn, Turn]]) -> str:
    """Return a row of the table."""
    late = [row for row in found[len(found) // 2 :] if not row[1].apart] or found[-1:]
    plain, own = (1e3 * statistics.median(row[i].seconds for row in late) for i in (1, 2))
    ratios = sorted(p.seconds / o.seconds for _, p, o in late)
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    # No processor time is known of the first step, which is all of a run that ends with it.
    busy = statistics.median([p.cpu / o.cpu for _, p, o in late if o.cpu] or [math.nan])
    ratio_at = dict(windows(found))
    bad = [end for end, ratio in ratio_at.items() if ratio < 1 - LOSS]
    worst = min(ratio_at.values(), default=math.nan)
    early = [(p, o) for at, p, o in found if at <= LEARNING_S]
    cost = sum(o.steps * (o.seconds - p.seconds) for p, o in early)
    mode = f"{'eval' if how.evaluation else 'train'}{' half' * how.half}{' same' * how.same} {how.policy}"
    first, good = found[0][2].seconds, max(bad, default=0.0)
    return (
        f"{how.name:20} {mode:18} {plain:8.2f} {own:8.2f} ms  {middle:.3f} [{low:.3f}, {high:.3f}] "
        f"cpu {busy:.3f}  good {good:3.0f} s  worst {worst:.3f}  reached {reached(found):4.1f} s  "
        f"first {first:5.2f} s ({found[0][1].first:.2f})  10 s: {cost:+.2f} s  "
        f"{found[-1][2].memory / 2**30:.1f} GiB ({found[-1][1].memory / 2**30:.1f})  {counts(found)}"
    )


def counts(found: list[tuple[float, Turn, Turn]]) -> str:
    """Return what was compiled and raced in the first ten seconds, and in all."""
    early = [own.tally for at, _, own in found if at <= LEARNING_S or own is found[0][2]]
    first, last = early[-1], found[-1][2].tally
    return ", ".join(f"{first.get(n, 0)}/{last.get(n, 0)} {n}" for n in ("compilations", "races"))


def device() -> str:
    """Return the name of the device."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Print a line a model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[*MODELS], metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--beside", type=float, default=0.0, help="plain turns from so many seconds on")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin no turn after so many seconds")
    parser.add_argument("--policy", action="append", help="a row for each; that of the environment without")
    parser.add_argument("--half", action="store_true", help="bfloat16 autocast, channels_last")
    parser.add_argument("--eval", action="store_true", help="forward alone, in evaluation and inference mode")
    parser.add_argument("--cache", help="nxcore's folder; without it, a new one a model")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--export", type=Path, metavar="DIR", help="write what was measured, a file a model")
    parser.add_argument("--shipped", type=Path, metavar="DIR", help="the folder of another record")
    parser.add_argument("--same", action="store_true", help="plain beside plain")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    usual = os.environ.get("NXCORE_POLICY", "auto")
    for name, rule in itertools.product(given.names, given.policy or [usual]):
        how = How(name, given.half, given.eval, given.same, rule)
        if given.serve:
            serve(how, given.export, given.shipped)
            return
        shown: list[str] = []
        with tempfile.TemporaryDirectory(prefix="nxcore-steps-") as folder:
            cache = given.cache or folder
            more = given.export, shown.append, given.shipped, given.beside
            found = list(turns(how, given.seconds, cache, given.limit, *more))
        print(line(how, found), *(f"    {row}" for row in found[-1][2].report), sep="\n", flush=True)
        if given.json:
            rows = [(at, asdict(p), asdict(o)) for at, p, o in found]
            row = asdict(how) | {"device": device(), "turns": rows, "explain": shown}
            with given.json.open("a", encoding="utf-8") as file:
                file.write(encoded(row) + "\n")


if __name__ == "__main__":
    main()
