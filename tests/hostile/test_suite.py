"""A part of the suite of kernels that are wrong by rule; ``python -m tests.hostile`` runs all of it."""

import ast
import inspect
import random

import pytest
import torch

from tests.hostile import grammar, plain
from tests.hostile.grammar import CONDITIONS, GATE, HOWS, KEY, LATE, RATE, mutants
from tests.hostile.innocent import convicted
from tests.hostile.orders import ORDERS, SUMS
from tests.hostile.plain import PLAIN
from tests.hostile.suite import CONDITION, MUTANT, RIGHT, Recipe, recipes
from tests.hostile.use import bare, most, used
from tests.table import for_each

SEED, CALLS = 1, 60
DRAWN = recipes(random.Random(SEED))
SOME = [Recipe(CONDITION, "add", c, "all", 7) for c in CONDITIONS if CONDITIONS[c].promise in (GATE, KEY)]
SOME += [Recipe(CONDITION, "sum", "calls from the n-th on", how, 3) for how in HOWS]
SOME += [r for r in DRAWN[MUTANT] if r.op in ("add", "sum", "amax", "weighted_sum")][:8]
FIRST = [Recipe(RIGHT, op, order, "", 0) for op, order in zip(SUMS, ORDERS, strict=False)]


@for_each("recipe", SOME)
def test_no_caller_sees_more_of_a_wrong_kernel_than_is_promised(recipe):
    found = used(recipe.made(), SEED, CALLS)
    assert found.seen <= found.most, (SEED, found)


@for_each("recipe", FIRST)
def test_a_right_kernel_is_convicted_in_no_order(recipe):
    found = used(recipe.made(), SEED, CALLS)
    assert not found.by, (SEED, found)


@for_each("op", PLAIN)
def test_a_plain_kernel_is_right_and_some_of_its_mutants_are_wrong(op):
    made = Recipe(RIGHT, op, "", "", 0)._replace(rule=MUTANT).made()
    right = type(made)(op, "plain", lambda world: PLAIN[op].call(PLAIN[op].kernel))
    assert not any(bare(right, SEED, 20)), SEED
    assert any(any(bare(type(made)(op, name, make), SEED, 8)) for name, make in mutants(op))


def test_a_machine_that_lacks_something_convicts_no_kernel():
    assert not list(filter(None, map(convicted, range(12))))


def test_what_is_promised_is_what_the_page_says():
    assert most(GATE, [True] * 100, 5) == most(KEY, [True] * 100, 5) == 0
    assert most(LATE, [True] * 400, 5) == 200
    assert most(RATE, [True] * 10 + [False] * 90, 60) == 100
    assert most(RATE, [True] * 10 + [False] * 90, 80) == 0


@pytest.mark.parametrize("module", [plain, grammar])
def test_the_generator_reads_nothing_of_nxcore(module):
    names = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    assert torch.__name__ in names
    own = [n for n in names if n.partition(".")[0] in ("nxcore", "tests")]
    assert set(own) <= {"tests.hostile", "tests.hostile.plain"}
