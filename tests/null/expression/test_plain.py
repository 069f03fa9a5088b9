"""Expressions as plain data: what comes back is the same, and data of elsewhere is checked as a text is."""

import copy
import json

import pytest

from nxcore.errors import ExpressionError
from nxcore.expression.grammar import parsed
from nxcore.expression.plain import data, of_data
from tests.null.expression.trees import random_expression
from tests.table import for_each

EXPRESSION = parsed("where(m, a * x, 2 * float16(y)) + (x > 0)", {"a": 2.0})


def test_what_json_keeps_comes_back():
    for expression in (EXPRESSION, *map(random_expression, range(50))):
        again = of_data(json.loads(json.dumps(data(expression))))
        assert again == expression
        assert again.key == expression.key


@for_each(
    ("place", "value", "why"),
    [
        ((0, 0), "x); import os; (x", "can't be the name of a parameter"),
        ((0, 0), "torch", "generated code uses it"),
        ((0, 0), 3, "3 can't be the name"),
        ((1, 0), ["a", "1"], "needs numbers and tensors, got str"),
        ((1, 0), ["a b", 1.0], "can't be the name of a parameter"),
        ((2, 0), ["input", [], "other", "value"], "has no node"),
        ((2, 0), ["constant", [], "1; import os", "number"], "needs numbers and tensors, got str"),
        ((2, -1), ["system", [0, 1], None, "value"], "can't be made of"),
        ((2, -1), ["add", [0], None, "value"], "has no node"),
        ((2, -1), ["add", [0, 99], None, "value"], "has no node"),
        ((2, -1), ["add", [0, -1], None, "value"], "has no node"),
        ((2, -1), ["add", [0, 1], "{0.__class__}", "value"], "has no node"),
        ((2, -1), ["cast", [0], "float64", "value"], "has no node"),
        ((2, -1), ["add", [0, 1], None, "truth"], "has no node"),
        ((2,), [], "can't be made of"),
        ((2,), None, "can't be made of"),
    ],
)
def test_other_data_is_refused(place, value, why):
    found = [copy.deepcopy(part) for part in json.loads(json.dumps(data(EXPRESSION)))]
    *path, last = place
    within = found
    for step in path:
        within = within[step]
    within[last] = value
    with pytest.raises(ExpressionError, match=why):
        of_data(found)


def test_a_parameter_that_nothing_uses_is_refused():
    found = data(EXPRESSION)
    found[0] = [*found[0], "unused"]
    with pytest.raises(ExpressionError, match="the parameter 'unused' is not used"):
        of_data(found)
