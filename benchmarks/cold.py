"""A search step from empty caches: seconds until it has its speed.

    python benchmarks/cold.py [--unknown | --related | --shipped FOLDER] [--policy auto] [--seconds 120]
                              [--device cuda] [--quick] [--export FILE] [--stacks] [--limit SECONDS]
                              [--plain STEPS]

With ``--unknown`` the record of the package is hidden, as if nobody had measured any device, with
``--related`` that of this device alone; ``record`` names the devices that are left. Steps of a
patched DARTS network (8 cells, C = 16, batch 64 of 3 x 32 x 32, float32) run until the time is over. Printed
are the seconds to patch the network; from when its first step began, the seconds until that ended, and those
after which eleven steps in a row take at most 1.25 times the median of the last ones on average, the steps of
each second at most 1.1 times the mean of the last three seconds, and their median at most 1.1 times that of
the last five; what was compiled and raced, and the operators of problems that are undecided at the end.
The mean of a second has every delay in it, the host's too; its median is that of most steps.
``--export`` writes what was measured as a file of the package's record, ``--shipped`` takes the record from
another folder. ``NXCORE_WORKERS`` sets the number of workers, 0 for none. ``--stacks`` adds what the time
until the last step was spent on, by the stacks of all threads, and what was compiled, raced and pruned by
toolkit and operator. After ``--limit`` seconds the process prints what it knows and ends, within a step too.
``--plain`` times steps of the same network unpatched beforehand, and adds the steps of learning, all but the
first until full speed, relative to these: their mean, and their median, which has no capture; and the time
until the last capture ends, relative to as many of these.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from nxcore.store.encoding import encoded

FULL, NEAR = 1.25, 1.1
"""The largest time of a step at full speed, relative to the median of the last ones, and to their mean."""

SECOND, LAST_S, LONG_S = 1.0, 3.0, 5.0
"""Seconds of steps that are looked at together, and those of the last ones, for a mean and for a median."""

BESIDE = ("on_request", "machine", "policy", "device")
"""The codes of refusals that are no news."""

CAPTURES = 3.0
"""The time of a step in which something is captured, relative to a plain one, at least."""

LAST = 11
"""The number of last steps."""


def empty_caches(folder: Path) -> None:
    """Have nxcore and its toolkits keep what they compile and measure in new folders."""
    for variable in ("NXCORE_CACHE", "NXCORE_CUDA_CACHE", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR"):
        # As set: empty caches are what is measured.
        os.environ[variable] = str(folder / variable.lower())


replayed: list[str] = []
"""The state of the replay of the whole network, at the end."""

patched: list[float] = []
"""The seconds that it took to patch the network, before the first step began."""

Steps = list[tuple[float, float]]
"""When each step ended, from when the first began, and how long it took, in seconds."""


def run(
    device: str,
    seconds: float,
    steps: Steps | None = None,
    plain: list[float] | None = None,
    *,
    shipped: Path | None,
    quick: bool,
    unpatched: int = 0,
) -> dict[str, Any]:
    """Run steps for some seconds; return when they had their speed.

    Parameters
    ----------
    device : str
    seconds : float
    steps : list, optional
        Each step is added to it.
    plain : list of float, optional
        The seconds of unpatched steps are added to it.
    shipped : Path, optional
        The folder that stands in for the package's record.
    quick : bool
        Whether the network is a small one.
    unpatched : int
        How many steps run before the network is patched.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from nxcore import nas
    from nxcore.store import transfer

    sys.path.append(str(Path(__file__).parents[1]))
    from tests.nas import darts  # the plain network, which is no part of the package

    steps = Steps() if steps is None else steps
    transfer.SHIPPED = shipped or transfer.SHIPPED
    torch.manual_seed(0)
    size, cells, batch, side = (4, 3, 2, 8) if quick else (16, 8, 64, 32)
    net = darts.Network(size, 10, cells, 4).to(device)
    images, labels = torch.randn(batch, 3, side, side, device=device), torch.randint(10, (batch,)).to(device)
    logits = torch.zeros(2, 14, 8, device=device, requires_grad=True)

    def step() -> float:
        at = time.perf_counter()
        loss = cross_entropy(net(images, *logits.unbind(0)), labels)
        torch.autograd.grad(loss, [logits, *net.parameters()])
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - at

    plain = [] if plain is None else plain
    plain += [step() for _ in range(unpatched)]
    began = time.perf_counter()
    nas.patch(net)
    patched.append(time.perf_counter() - began)
    began = time.perf_counter()
    while not steps or time.perf_counter() - began < seconds:
        taken = step()
        steps.append((time.perf_counter() - began, taken))
    replayed.append(nas.replays(net).get("", "no network is replayed whole"))
    return found(steps, plain)


def others(folder: Path) -> Path:
    """Write the package's record of other devices of this type into a folder; return that."""
    import torch

    from nxcore.store import transfer

    folder.mkdir()
    for path in transfer.SHIPPED.glob("cuda-*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        left = [e for e in record["environments"] if e["facts"]["name"] != torch.cuda.get_device_name()]
        (folder / path.name).write_text(encoded(record | {"environments": left}), encoding="utf-8")
    return folder


def recorded(folder: Path) -> list[str]:
    """Return the devices that a record holds."""
    records = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("cuda-*.json")))
    return [e["facts"]["name"] for record in records for e in record["environments"]]


def full_speed_s(steps: Steps, final: float) -> float:
    """Return when the last step ended that begins eleven which are slow on average: one may be by chance.

    Parameters
    ----------
    steps : list
    final : float
        The seconds of a step at full speed.
    """
    groups = [steps[i : i + LAST] for i in range(max(len(steps) - LAST + 1, 1))]
    slow = (g[0][0] for g in groups if g and statistics.fmean(s for _, s in g) > FULL * final)
    return max(slow, default=0.0)


def near_full_speed_s(
    steps: Steps, middle: Callable[[Iterable[float]], float] = statistics.fmean, last_s: float = LAST_S
) -> float:
    """Return when the last slow step ended of a second whose steps take a tenth more than the last ones.

    The mean of eleven steps of 20 ms changes by a tenth with every short disturbance of the host. So does
    that of the few steps of a second which isn't over at the end; it is part of others.

    Parameters
    ----------
    steps : list
    middle : callable
        The mean or the median, of a second's steps and of the last ones.
    last_s : float
        The seconds of the last ones.
    """
    if not steps:
        return 0.0
    final = middle(s for at, s in steps if at > steps[-1][0] - last_s)
    found = 0.0
    for i, (began, _) in enumerate(steps):
        group = [step for step in steps[i:] if step[0] - step[1] < began + SECOND]
        if i and began + SECOND > steps[-1][0]:
            break
        if middle(s for _, s in group) > NEAR * final:
            found = max(at for at, s in group if s > NEAR * final)
    return found


class Collections:
    """Counts Python's collections of garbage.

    Attributes
    ----------
    found : list
        When each ended, by ``time.perf_counter``, its generation, and how many seconds it took.
    """

    def __init__(self) -> None:
        self.found: list[tuple[float, int, float]] = []
        self._began = 0.0

    def __enter__(self) -> Self:
        """Begin to count."""
        gc.callbacks.append(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        """Count no more."""
        gc.callbacks.remove(self._seen)

    def _seen(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began = now
        else:
            self.found.append((now, info["generation"], now - self._began))

    def told(self) -> dict[str, Any]:
        """Return the seconds of all, and the longest."""
        longest = sorted(self.found, key=lambda one: one[2])[-LAST:]
        began = self.found[0][0] if self.found else 0.0
        return {
            "collections_s": sum(s for *_, s in self.found),
            "longest_collections": [f"at {at - began:.1f} s: {s:.3f} s" for at, _, s in sorted(longest)],
        }


def relative(steps: Steps, plain: list[float]) -> dict[str, float]:
    """Return the median of unpatched steps, and the mean of those of learning relative to it.

    The first step of both doesn't count, nor do steps at full speed. There is nothing without plain steps.
    Of all steps until the last capture's, which is the last long one, the time is relative to as many.
    """
    if len(plain) < 2 or len(steps) < 2:
        return {}
    usual = statistics.median(plain[1:])
    until = full_speed_s(steps, statistics.median(s for _, s in steps[-LAST:]))
    slow = [s for at, s in steps[1:] if at <= until] or [steps[-1][1]]
    captured = max((i for i, (_, s) in enumerate(steps) if s > CAPTURES * usual), default=0)
    return {
        "plain_ms": usual * 1e3,
        "captured_s": steps[captured][0],
        "until_captured": steps[captured][0] / (usual * (captured + 1)),
        "learning": statistics.fmean(slow) / usual,
        "learning_median": statistics.median(slow) / usual,
    }


def found(steps: Steps, plain: list[float] | None = None) -> dict[str, Any]:
    """Return when steps had their speed, and what was compiled, raced and decided until now."""
    import nxcore

    final = statistics.median(s for _, s in steps[-LAST:]) if steps else 0.0
    longest = sorted(steps, key=lambda step: step[1])[-LAST:]
    status = nxcore.status().to_dict()
    return {
        "first_s": steps[0][0] if steps else None,
        "full_speed_s": full_speed_s(steps, final),
        "near_full_speed_s": near_full_speed_s(steps),
        "median_full_speed_s": near_full_speed_s(steps, statistics.median, LONG_S),
        "final_ms": final * 1e3,
        "steps": len(steps),
        "replays": replayed,
        "patch_s": sum(patched),
        **relative(steps, plain or []),
        "longest": [f"until {at:.1f} s: {s:.2f} s" for at, s in sorted(longest)],
        "tally": status["tally"],
        "measured": measured(),
        "counts": status["counts"],
        "undecided": Counter(
            f"{row['problem']['op']}, {row['state']}: {row['reason']}"
            for row in status["rows"]
            if row["state"] in ("learning", "unknown")
        ).most_common(),
    }


def measured() -> list[str]:
    """Return the problems and pairs that this process has measured, each with its winner and the reason."""
    import torch

    from nxcore import session

    if not torch.cuda.is_available():
        return []
    pages = session.default().wisdom.pages(torch.device("cuda", torch.cuda.current_device()))
    return [f"{named(key)}: {page.decision.chosen}: {page.decision.reason}" for key, page in pages]


def named(key: dict[str, Any]) -> str:
    """Return the operator of a page's key, and the shapes of its tensors."""
    shapes: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict) and "shape" in value:
            shapes.append("x".join(map(str, value["shape"])))
        elif isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                look(inner)

    look(key)
    return f"{key['op']}({', '.join(shapes[:3])}{', ...' * (len(shapes) > 3)})"


def by_toolkit() -> dict[str, Any]:
    """Return how many problems' kernels were raced or refused, by operator, kernel and the refusal's code."""
    from nxcore import session

    chooser = session.default().chooser
    seen: dict[str, Counter[str]] = {}
    for (problem, *_), choice in list(chooser.choices.items()):
        for c in choice.decision.candidates:
            if c.timing or (c.refusal and str(c.refusal.code) not in BESIDE):
                what = f"{c.label} {c.refusal.code if c.refusal else 'raced'}"
                seen.setdefault(problem.op, Counter())[what] += 1
    return {op: dict(counts) for op, counts in sorted(seen.items())} | {"pairs": chooser.pairs.made}


def export(path: Path) -> None:
    """Write what this process measured as a file of the package's record."""
    from nxcore import session
    from nxcore.store import transfer

    transfer.write(path, transfer.exported(session.default().wisdom.store))


def main(words: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    hidden = parser.add_mutually_exclusive_group()
    hidden.add_argument("--unknown", action="store_true", help="hide the record of the package")
    hidden.add_argument("--related", action="store_true", help="hide the record of this device")
    hidden.add_argument("--shipped", type=Path, help="the folder of another record")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="a small network")
    parser.add_argument("--export", type=Path, help="write what was measured")
    parser.add_argument("--stacks", action="store_true", help="look at the stacks of all threads")
    parser.add_argument("--limit", type=float, help="seconds after which the process ends")
    parser.add_argument("--plain", type=int, default=0, metavar="STEPS", help="time unpatched steps first")
    given = parser.parse_args(words)
    # As set: the policy is an argument, the default one without it.
    os.environ["NXCORE_POLICY"] = given.policy
    from stacks import Stacks  # beside this file

    collections, steps, stacks, plain = Collections(), Steps(), Stacks(), list[float]()
    imported: dict[str, Any] = {}

    def told() -> None:
        more = {"stacks": stacks.table(), "kernels": by_toolkit()} if given.stacks else {}
        print(encoded(found(steps, plain) | imported | collections.told() | more, indent=1), flush=True)

    def late() -> None:
        told()
        os._exit(3)

    if given.limit:
        timer = threading.Timer(given.limit, late)
        timer.daemon = True
        timer.start()
    # A thread may still write into the folder.
    with collections, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        empty_caches(Path(folder))
        shipped = Path(folder) / "none" if given.unknown else given.shipped
        if given.related:
            shipped = others(Path(folder) / "others")
        with stacks if given.stacks else contextlib.nullcontext():
            at = time.perf_counter()
            importlib.import_module("nxcore.nas")
            imported["imports_s"] = time.perf_counter() - at
            imported["record"] = recorded(shipped or importlib.import_module("nxcore.store.transfer").SHIPPED)
            how = {"shipped": shipped, "quick": given.quick, "unpatched": given.plain}
            run(given.device, given.seconds, steps, plain, **how)
        if given.export:
            export(given.export)
        told()  # while the folder has what was measured
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
