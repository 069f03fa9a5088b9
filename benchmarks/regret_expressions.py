"""Regret on expressions: learn a few sizes of each, choose for others, then measure those in two rounds.

    python benchmarks/regret_expressions.py --output FILE.json [--device cuda] [--ahead 16]

Twenty random expressions, a third of them gradients, a third broadcast; of each, eight sizes are learnt and
three held out. It begins with nothing known, whatever earlier programs measured. A size whose race is
unclear is raced again, as the next programs would, twice at most. ``--ahead`` compiles the kernels in so many
processes first. ``--after 12`` leaves out the first twelve expressions, and continues a FILE that has them.
It writes FILE after each expression, and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from workers import ahead, entered

import nxcore
from nxcore.measure.decision import Decision
from nxcore.measure.race import Effort
from nxcore.offline import audit
from nxcore.session import Session, default
from nxcore.spec.device import available, describe
from nxcore.store.encoding import encoded
from nxcore.store.pages import RACES

COUNT, LEARNT, HELD = 20, 8, 3
LEARN = Effort(looks=(12, 20, 40), warm_s=0.02, budget_s=0.5)
JUDGE = Effort(looks=(20,), warm_s=0.02, budget_s=0.6)
RANGE = {"cpu": (1 << 10, 1 << 22), "cuda": (1 << 10, 1 << 26)}
DTYPES = (torch.float32, torch.float32, torch.bfloat16)

FUNCTIONS = (
    "relu({})",
    "gelu({})",
    "gelu_tanh({})",
    "silu({})",
    "mish({})",
    "tanh({})",
    "sigmoid({})",
    "softplus({})",
    "leaky_relu({}, 0.1)",
    "elu({})",
    "hardswish({})",
    "square({})",
    "exp(-abs({}))",
    "log1p(abs({}))",
    "sqrt(abs({}) + 1e-5)",
    "clamp({}, -1, 1)",
    "where({0} > 0, {0}, 0.2 * {0})",
)
JOINED = ("{} * {}", "{} + {}", "{} - {}", "maximum({}, {})", "{} * sigmoid({})", "{0} + 0.5 * ({1} - {0})")
NAMES = "xyz"


Call = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Family:
    """One expression in several sizes.

    Attributes
    ----------
    text : str
    dtype : torch.dtype
    row : int
        The length of the last tensor, which is broadcast; 0 where all tensors are alike.
    gradient : bool
        Whether its backward operator is called.
    learnt, held : tuple of int
        Numbers of elements.
    """

    text: str
    dtype: torch.dtype
    row: int
    gradient: bool
    learnt: tuple[int, ...]
    held: tuple[int, ...]

    def call(self, n: int, device: torch.device) -> Call:
        """Return the operator's name and the arguments of a call of about ``n`` elements."""
        spec = nxcore.pointwise(self.text).spec
        count = len(spec.expression.tensors)
        shape = (max(n // self.row, 1), self.row) if self.row else (n,)
        shapes = [*[shape] * (count - 1), shape[-1:] if count > 1 else shape]
        args = (*(torch.randn(s, device=device, dtype=self.dtype) for s in shapes), None)
        if not self.gradient or spec.gradient is None:
            return spec.name, args
        grad = torch.randn(shape, device=device, dtype=self.dtype)
        return spec.gradient.op, spec.gradient.args(grad, (True,) * count, *args)


def families(device: str, count: int = COUNT) -> Iterator[Family]:
    """Yield the first ``count`` families, the same ones each time."""
    dice = random.Random("held-out expressions")
    low, high = RANGE[device]
    steps = range(LEARNT)
    for turn in range(count):
        names = NAMES[: dice.randint(1, 3)]
        text = dice.choice(FUNCTIONS).format(names[0])
        for name in names[1:]:
            other = dice.choice(FUNCTIONS).format(name) if dice.random() < 0.4 else name
            text = dice.choice(JOINED).format(f"({text})", f"({other})")
            if dice.random() < 0.4:
                text = dice.choice(FUNCTIONS).format(f"({text})")
        row = round(16 * 64 ** dice.random()) if turn % 3 == 1 else 0
        learnt = tuple(round(low * (high / low) ** (i / (LEARNT - 1))) for i in steps)
        held = tuple(round(low * (high / low) ** dice.random()) for _ in range(HELD))
        yield Family(text, DTYPES[turn % len(DTYPES)], row, turn // 3 % 3 == 2, learnt, held)


def learnt(session: Session, op: str, args: tuple[Any, ...]) -> Decision:
    """Measure one problem; again where the race is unclear, as the next processes do."""
    decision = audit.learn(session, op, args)
    for _ in range(RACES - 1):
        if not decision.unclear:
            break
        session.chooser.hold(
            session.chooser.lock, session.chooser.settings
        )  # forgets what this process chose
        decision = audit.learn(session, op, args)
    return decision


def told(n: int, decision: Decision) -> dict[str, Any]:
    """Return a learnt size, what was chosen and each kernel's microseconds."""
    times = {c.label: round(c.timing.median_us, 2) for c in decision.candidates if c.timing}
    return {"elements": n, "chosen": decision.chosen, "noise": round(decision.noise, 4), "us": times}


def record(path: Path, device: torch.device, policy: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows so far, and their summary."""
    found = [audit.Row(**r["row"]) for r in rows if r["row"]]
    document = {
        "device": describe(device).to_dict(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "policy": policy,
        "summary": audit.summary(found)[-1] if found else None,
        "rows": rows,
    }
    path.write_text(encoded(document, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Choose and measure; return 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", help="cpu or cuda; by default cuda if available")
    parser.add_argument("--policy", default="estimate", help="the policy that chooses")
    parser.add_argument("--ahead", type=int, default=0, help="processes that compile first")
    parser.add_argument("--seconds", type=float, default=500, help="start no expression after so many")
    parser.add_argument("--families", type=int, default=COUNT, help="only so many expressions")
    parser.add_argument("--after", type=int, default=0, help="leave out so many expressions")
    parser.add_argument("--cache", help="a folder of measurements and kernels; by default a new one")
    parser.add_argument("--part", type=int, nargs=2, help="compile this part of so many, and end")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if not given.part:  # a process that compiles ahead has that of its parent
            # As set: an empty cache is what is measured.
            os.environ["NXCORE_CACHE"] = given.cache or folder
        return measured(given)


def measured(given: argparse.Namespace) -> int:
    """Choose and measure, with what the folder in ``NXCORE_CACHE`` has."""
    device = available(given.device)
    session = default()
    session.tuner.effort = LEARN
    wanted = list(families(device.type, given.families))[given.after :]
    if given.part:
        number, count = given.part
        mine = wanted[number::count]
        entered(session, (family.call(n, device) for family in mine for n in family.learnt))
        return 0
    ahead(given.ahead)
    ends = time.monotonic() + given.seconds
    rows: list[dict[str, Any]] = []
    if given.after and given.output.exists():
        rows = json.loads(given.output.read_text(encoding="utf-8"))["rows"][: given.after * HELD]
    for family in wanted:
        if time.monotonic() > ends:
            break
        known = [told(n, learnt(session, *family.call(n, device))) for n in family.learnt]
        calls = [family.call(n, device) for n in family.held]
        judged = audit.hold_out(session, calls[0][0], [args for _, args in calls], given.policy, JUDGE)
        rows += [
            {
                "text": family.text,
                "gradient": family.gradient,
                "elements": n,
                "learnt": known,
                "row": asdict(r) if r else None,
            }
            for n, r in zip(family.held, judged, strict=True)
        ]
        record(given.output, device, given.policy, rows)  # a run that is ended keeps its rows
    found = [audit.Row(**r["row"]) for r in rows if r["row"]]
    whole = audit.summary(found)[-1]
    print(
        f"{len(rows)} of {given.families * HELD} problems, torch alone in {len(rows) - len(found)};", end=" "
    )
    print(", ".join(f"{name} {whole[name]}" for name in ("p50", "p95", "max", "slower", "others", "rules")))
    for row in sorted(found, key=lambda r: -r.regret)[:6]:
        print(f"{row.regret:.3f} {row.rule} {row.chosen}, best {row.best}: {row.problem[:90]} {row.us[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
