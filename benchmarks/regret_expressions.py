"""Regret on expressions that were never seen: choose by a policy, then measure every candidate in two rounds.

    python benchmarks/regret_expressions.py --output FILE.json [--device cuda] [--policy online] [--ahead 16]

Each problem is an expression of its own, of a size of its own; a third are gradients, a third broadcast.
``--ahead`` compiles the kernels in so many processes first. At the end it writes FILE and prints a table.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from workers import ahead, entered

import nxcore
from nxcore.measure.race import Effort
from nxcore.offline import audit
from nxcore.session import default
from nxcore.spec.device import available, describe

COUNT = 60
JUDGE = Effort(looks=(20,), warm_s=0.03, budget_s=0.7)
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


@dataclass(frozen=True)
class Held:
    """One problem: an expression, the shape of its tensors, and of the last one, which may be a row."""

    text: str
    shape: tuple[int, ...]
    last: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool

    def built(self, device: torch.device) -> tuple[str, tuple[Any, ...]]:
        """Return the operator's name and the arguments of a call."""
        spec = nxcore.pointwise(self.text).spec
        count = len(spec.expression.tensors)
        shapes = [*[self.shape] * (count - 1), self.last if count > 1 else self.shape]
        args = (*(torch.randn(s, device=device, dtype=self.dtype) for s in shapes), None)
        if not self.gradient or spec.gradient is None:
            return spec.name, args
        grad = torch.randn(self.shape, device=device, dtype=self.dtype)
        return spec.gradient.op, spec.gradient.args(grad, (True,) * count, *args)


def drawn(device: str) -> Iterator[Held]:
    """Yield the problems, the same ones each time."""
    dice = random.Random("held-out expressions")
    low, high = RANGE[device]
    for turn in range(COUNT):
        names = NAMES[: dice.randint(1, 3)]
        text = dice.choice(FUNCTIONS).format(names[0])
        for name in names[1:]:
            other = dice.choice(FUNCTIONS).format(name) if dice.random() < 0.4 else name
            text = dice.choice(JOINED).format(f"({text})", f"({other})")
            if dice.random() < 0.4:
                text = dice.choice(FUNCTIONS).format(f"({text})")
        n = round(low * (high / low) ** dice.random())
        columns = min(n, round(16 * 256 ** dice.random()))
        flat = turn % 3 != 1
        shape = (n,) if flat else (n // columns, columns)
        yield Held(text, shape, shape if flat else (columns,), DTYPES[turn % len(DTYPES)], turn // 3 % 3 == 2)


def main() -> int:
    """Choose and measure; return 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", help="cpu or cuda; by default cuda if available")
    parser.add_argument("--policy", default="online", help="the policy that chooses")
    parser.add_argument("--ahead", type=int, default=0, help="processes that compile first")
    parser.add_argument("--seconds", type=float, default=500, help="start no problem after so many")
    parser.add_argument("--part", type=int, nargs=2, help="compile this part of so many, and end")
    given = parser.parse_args()
    device, session = available(given.device), default()
    if given.part:
        number, count = given.part
        entered(session, (held.built(device) for held in list(drawn(device.type))[number::count]))
        return 0
    ahead(given.ahead)
    ends = time.monotonic() + given.seconds
    rows = []
    for held in drawn(device.type):
        if time.monotonic() > ends:
            break
        op, args = held.built(device)
        (row,) = audit.hold_out(session, op, [args], given.policy, JUDGE)
        rows.append({"text": held.text, "gradient": held.gradient, "row": asdict(row) if row else None})
    found = [audit.Row(**r["row"]) for r in rows if r["row"]]
    whole = audit.summary(found)[-1]
    document = {
        "device": describe(device).to_dict(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "policy": given.policy,
        "summary": whole,
        "rows": rows,
    }
    given.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} of {COUNT} problems, torch alone in {len(rows) - len(found)};", end=" ")
    print(", ".join(f"{name} {whole[name]}" for name in ("p50", "p95", "max", "slower", "others", "rules")))
    for row in sorted(found, key=lambda r: -r.regret)[:6]:
        print(f"{row.regret:.3f} {row.rule} {row.chosen}, best {row.best}: {row.problem[:90]} {row.us[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
