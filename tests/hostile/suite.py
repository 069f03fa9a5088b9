"""The kernels of the suite, drawn by a seed, and what became of them in processes of their own."""

import multiprocessing
import random
from collections.abc import Iterator
from typing import NamedTuple

import torch

from tests.hostile.grammar import CONDITIONS, HOWS, RATE, conditional, mutants
from tests.hostile.orders import ORDERS, SUMS, ordered
from tests.hostile.plain import PLAIN
from tests.hostile.use import Made, Used, bare, used

MUTANT, CONDITION, RIGHT = "mutant", "condition", "right"

DRAWN = 8
"""How often each condition is drawn at most."""


class Recipe(NamedTuple):
    """What makes a kernel, as another process can read it."""

    rule: str
    op: str
    what: str
    how: str
    seed: int

    def made(self) -> Made:
        """Return the kernel."""
        if self.rule == RIGHT:
            return Made(self.op, self.what, ordered(self.op, self.what))
        if self.rule == MUTANT:
            place, make = list(mutants(self.op))[self.seed]
            return Made(self.op, place, make, RATE)  # many are wrong for some numbers alone
        name = f"{self.what}: {self.how}"
        return Made(
            self.op, name, conditional(self.op, self.what, self.how, self.seed), CONDITIONS[self.what].promise
        )


def recipes(dice: random.Random) -> dict[str, list[Recipe]]:
    """Return the kernels of each rule, in an order of chance."""
    mutated = [Recipe(MUTANT, op, "", "", i) for op in PLAIN for i, _ in enumerate(mutants(op))]
    drawn = []
    for _ in range(DRAWN):  # each condition in turn, with an operator and a way to be wrong
        for name, condition in CONDITIONS.items():
            op, how = dice.choice(condition.ops), dice.choice(list(HOWS))
            drawn.append(Recipe(CONDITION, op, name, how, dice.randrange(1 << 30)))
    right = [Recipe(RIGHT, op, order, "", 0) for op in SUMS for order in ORDERS]
    dice.shuffle(mutated)
    return {MUTANT: mutated, CONDITION: drawn, RIGHT: right}


def outcome(recipe: Recipe, seed: int, calls: int) -> tuple[Recipe, Used | None]:
    """Use a kernel; None if it is meant to be wrong and isn't, in this program."""
    torch.set_num_threads(1)
    made = recipe.made()
    if recipe.rule != RIGHT and not any(bare(made, seed, calls // 4)):
        return recipe, None
    return recipe, used(made, seed, calls)


def outcomes(wanted: dict[str, int], seed: int, calls: int, workers: int) -> Iterator[tuple[Recipe, Used]]:
    """Yield what became of kernels of each rule, until there are as many as wanted."""
    lists = {rule: iter(found) for rule, found in recipes(random.Random(seed)).items()}
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers) as pool:
        for rule, count in wanted.items():
            left, waiting = count, []
            while left > 0 or waiting:
                while len(waiting) < min(2 * workers, left + workers) and (one := next(lists[rule], None)):
                    waiting.append(pool.apply_async(outcome, (one, seed, calls)))
                if not waiting:
                    break
                recipe, found = waiting.pop(0).get()
                if found is not None and left > 0:
                    left -= 1
                    yield recipe, found
                if left <= 0:
                    waiting = []
