"""What learning from the calls costs: 10,000 calls of a new problem, against as many settled ones.

    python benchmarks/online.py [--calls 10000]

Both run in turns of a hundred calls, so that drift hits both; the settled session was measured before. The
kernels are compiled and verified in the background, which takes its share of the machine's cores too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from nxcore.session import Session
from nxcore.settings import Settings

TURN = 100

CASES: dict[str, tuple[str, Callable[[], tuple[Any, ...]]]] = {
    "add of 4,096": ("add", lambda: (torch.randn(4096), torch.randn(4096))),
    "sum of (512, 512) over 0": ("sum", lambda: (torch.randn(512, 512), 0)),
    "softmax_sum of 8 x (8, 16, 16, 16)": (
        "softmax_sum",
        lambda: (tuple(torch.randn(8, 16, 16, 16) for _ in range(8)), torch.randn(8)),
    ),
}


def main() -> None:
    """Run the cases, and print a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=10_000)
    calls = parser.parse_args().calls
    for name, (op, make) in CASES.items():
        args = make()
        settled = Session(Settings(policy="measure"))
        settled.op(op)(*args)
        chosen = settled.explain(op, *args).decision.chosen
        learning = Session(Settings(policy="online"))
        spent = {"settled": 0.0, "online": 0.0}
        for _ in range(calls // TURN):
            for which, session in (("settled", settled), ("online", learning)):
                operator = session.op(op)
                started = time.perf_counter()
                for _ in range(TURN):
                    operator(*args)
                spent[which] += time.perf_counter() - started
        for thread in learning.chooser.learner.threads:
            thread.join()
        learnt = learning.explain(op, *args).decision
        cost = spent["online"] / spent["settled"] - 1
        print(
            f"{name}: {cost:+.1%} over {calls:,} calls ({spent['settled']:.2f} s); "
            f"measured {chosen}, learnt {learnt.chosen} ({learnt.rule})"
        )


if __name__ == "__main__":
    main()
