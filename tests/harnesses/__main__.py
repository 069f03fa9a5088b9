"""Run the bake-off, and print its table: ``python -m tests.harnesses``."""

import sys
import warnings

import torch

from tests.harnesses import first, right, second
from tests.harnesses.rules import RULES, accepted, kernels

PATCHED = ("softmax",)
"""Functions of torch that a kernel replaces."""


def judged(seed: int = 0) -> dict[str, dict[str, list[str]]]:
    """Return for each rule the names that it accepts: of wrong kernels by module, and of right ones."""
    found = {rule: dict[str, list[str]]() for rule in RULES}
    kept = {name: getattr(torch, name) for name in PATCHED}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for rule, judge in RULES.items():
            for module in (first, second, right):
                names = found[rule].setdefault(module.__name__.rpartition(".")[2], [])
                for name, kernel, task in kernels(module):
                    forget()
                    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                        warnings.simplefilter("ignore")
                        if accepted(judge, kernel, task, seed):
                            names.append(name)
                    for attribute, was in kept.items():
                        setattr(torch, attribute, was)
                    torch.set_float32_matmul_precision("highest")
    finally:
        torch.set_num_threads(threads)
    return found


def forget() -> None:
    """Empty what kernels keep between calls."""
    first.SEEN.clear()
    second.KEPT.clear()
    for calls in (first.CALLS, second.CALLS):
        calls.update(dict.fromkeys(calls, 0))


def table(found: dict[str, dict[str, list[str]]]) -> str:
    """Return the table of the page."""
    sizes = {module.__name__.rpartition(".")[2]: len([*kernels(module)]) for module in (first, second, right)}
    rows = [
        f"| rules | of {sizes['first']} | of {sizes['second']} | caught | right, {sizes['right']} |",
        "|---|---|---|---|---|",
    ]
    for rule, names in found.items():
        caught = [sizes[part] - len(names[part]) for part in ("first", "second")]
        refused = sizes["right"] - len(names["right"])
        share = sum(caught) / (sizes["first"] + sizes["second"])
        rows.append(f"| {rule} | {caught[0]} | {caught[1]} | {share:.0%} | {refused} |")
    return "\n".join(rows)


def main() -> int:
    """Print the table, and what our rules miss or refuse."""
    found = judged()
    print(table(found))
    ours = found["`nxcore.testing.verify`"]
    names = {name for name, *_ in kernels(right)}
    print("missed:", ", ".join(ours["first"] + ours["second"]) or "none")
    print("refused:", ", ".join(sorted(names - set(ours["right"]))) or "none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
