"""Texts: what is an expression, and where and why another text is none."""

import inspect
import re
import sys

import pytest

from nxcore.errors import ExpressionError
from nxcore.expression.grammar import parsed
from tests.table import for_each


def fault(text, **numbers):
    with pytest.raises(ExpressionError) as caught:
        parsed(text, numbers)
    return caught.value


@for_each(
    ("text", "spelt"),
    [
        ("relu(x) * y + z", "relu(x) * y + z"),
        ("x - (y - z)", "x - (y - z)"),
        ("-(x + y)", "-(x + y)"),
        ("where((x > 0) & ~(y <= x), x, 1.5)", "where((x > 0) & ~(y <= x), x, 1.5)"),
        ("clamp(x, 0, 6)", "clamp_max(clamp_min(x, 0), 6)"),
        ("minimum(2, x)", "clamp_max(x, 2)"),
        ("x ** 2 + y ** 0.5", "square(x) + sqrt(y)"),
        ("x ** 5", "x * square(square(x))"),
        ("float16(x) + y", "cast(x, float16) + y"),
        ("leaky_relu(x)", "leaky_relu(x, 0.01)"),
        ("(x > 0) * y", "indicator(x > 0) * y"),
        ("x +\n  y", "x + y"),
        ("pow(x, 3)", "x * square(x)"),
        ("2 * 3 + x", "6 + x"),
    ],
)
def test_a_text_is_a_tree(text, spelt):
    assert str(parsed(text, {})) == spelt


def test_names_are_tensors_in_order_and_numbers_have_defaults():
    found = parsed("slope * y + x", {"slope": 0.5})
    assert found.tensors == ("y", "x")
    assert found.numbers == (("slope", 0.5),)


def test_a_condition_may_be_a_tensor_of_bool():
    assert parsed("where(m, x, y)", {}).masks == {"m"}
    assert str(parsed("where(m, m * x, y)", {})) == "where(m, indicator(m) * x, y)"


@for_each(
    ("text", "column", "why"),
    [
        ("relu(x) +* y", 9, "this is no expression: invalid syntax"),
        ("x + rellu(y)", 4, "no function is named 'rellu'; did you mean 'relu'?"),
        ("é + rellu(y)", 4, "no function is named 'rellu'"),
        ("x +\n clam(y, 1, 2)", 5, "no function is named 'clam'; did you mean 'clamp'?"),
        ("x if y else z", 0, "where(condition, a, b)"),
        ("if x > 0: y", 0, "a choice is written where(condition, a, b)"),
        ("return x + y", 0, "leave out return"),
        ("relu(x, y)", 0, "relu takes 1 argument, got 2"),
        ("x.relu()", 0, "write relu(x), not x.relu()"),
        ("x + x[0]", 4, "every tensor is taken whole"),
        ("y * sqrt(2)", 4, "sqrt needs a tensor, got only numbers"),
        ("x + 2 / 0", 4, "a number is divided by zero"),
        ("x", 0, "must compute something, got only x"),
        ("2 + 2", 0, "needs a tensor, got only numbers"),
        ("x > 0", 0, "got truth values; use where(condition, 1.0, 0.0)"),
        ("x < y < z", 0, "use (a < b) & (b < c)"),
        ("where(x, y)", 0, "where takes 3 arguments, got 2"),
        ("where(x + 1, x, y)", 0, "the first argument of where must be a comparison or a tensor of bool"),
        ("__import__('os')", 0, "no function is named '__import__'"),
        ("x + y.__class__", 4, "an attribute can't be in an expression"),
        ("x & 3", 0, "the operand of & must be a comparison"),
        ("x ** y", 0, "use exp(y * log(x)) for x ** y"),
        ("x ** 2.5", 0, "a whole number, 0.5 or -0.5, got 2.5"),
        ("x ** 9", 0, "from 1 to 8, got 9"),
        ("x + relu", 4, "relu is a function: it needs arguments in brackets"),
        ("x and y", 0, "conditions are joined by & and |"),
        ("x @ y", 0, "a product of matrices"),
        ("x + True", 4, "needs numbers and tensors, got bool"),
        ("x + 1j", 4, "needs numbers and tensors, got complex"),
        ("x + 'a'", 4, "needs numbers and tensors, got str"),
        ("softplus(x, y)", 0, "softplus needs a number here, got a tensor"),
        ("relu(input=x)", 0, "relu takes its arguments in order, without names"),
        ("key + x", 0, "'key' can't be the name of a parameter"),
        ("x + t1", 4, "'t1' can't be the name of a parameter"),
        ("(x", 0, "was never closed"),
        ("", 0, "this is no expression"),
        ("x) + (y", 1, "unmatched ')'"),
        ("x # c\n + y", 2, "a comment can't be in an expression"),
        ("x, y", 0, "a tuple can't be in an expression"),
        ("  x + rellu(y)", 6, "no function is named 'rellu'"),
        ("lambda: x", 0, "a function can't be in an expression"),
        ("x + sum(y)", 4, "it joins elements, and an expression computes each by itself"),
        ("Relu(x) + y", 0, "did you mean 'relu'?"),
        ("clamp(x, -1, y)", 0, "clamp needs numbers as bounds, got a tensor; use minimum and maximum"),
        ("clamp(1, 0, 2) + x", 0, "clamp needs a tensor, got a number first"),
        ("x + minimum(1, 2)", 4, "minimum needs a tensor, got only numbers"),
        (f"x * {2**64}", 4, "a whole constant must fit 64 bits"),
        ("x - y - z + (y ** z)", 13, "use exp(y * log(x))"),
        ("(x := y)", 1, "an assignment can't be in an expression"),
        ("x + f'{x}'", 4, "a formatted text can't be in an expression"),
        ("relu(y for y in x)", 4, "a loop can't be in an expression"),
    ],
)
def test_a_fault_is_shown_at_its_place(text, column, why):
    error = fault(text)
    assert why in str(error)
    assert error.text == text
    assert error.column == column
    line = text.split("\n")[text[:column].count("\n")]
    at = column - (text.rfind("\n", 0, column) + 1)
    assert str(error).endswith(f"\n    {line}\n    {' ' * at}^")


def test_an_unused_number_is_named():
    assert "'slope' is not used" in str(fault("x + y", slope=0.5))


def test_whole_constants_beyond_64_bits_become_floats():
    """Torch takes no other whole numbers."""
    found = parsed(f"x + {2**40} * {2**40}", {}).roots[0].args[1].value
    assert isinstance(found, float)
    assert found == 2.0**80


def test_a_long_sum_needs_no_deep_recursion():
    """A call may itself be far down the stack."""
    text = " + ".join(["x"] * 257)

    def below(depth):
        return below(depth - 1) if depth else parsed(text, {})

    left = sys.getrecursionlimit() - len(inspect.stack(0)) - 150
    assert below(left).operations == 256
    assert "at most 256 functions, got 1999" in str(fault(" + ".join(["x"] * 2000)))


def test_texts_have_bounds():
    assert "at most 10000 characters" in str(fault("x + " * 5000 + "x"))
    assert re.search(
        "too many brackets|can't be parsed|no expression", str(fault("(" * 3000 + "x" + ")" * 3000))
    )
    assert "at most 256 functions" in str(fault(" + ".join(f"sin(x * {i})" for i in range(2, 200))))
