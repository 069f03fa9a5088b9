"""One tree of errors, each with attributes and the nearest name."""

import pytest
import torch

import nxcore
from nxcore import errors
from nxcore.errors import NxcoreError, UnknownOperatorError, nearest, one_of
from tests.table import for_each

TREE = {
    errors.InvalidInputError: (NxcoreError, ValueError),
    errors.ExpressionError: (errors.InvalidInputError,),
    errors.UnknownOperatorError: (NxcoreError, KeyError),
    errors.BackendUnavailableError: (NxcoreError,),
    errors.UnknownBackendError: (errors.BackendUnavailableError, KeyError),
    errors.UnsupportedProblemError: (NxcoreError,),
    errors.VerificationError: (NxcoreError,),
    errors.CaptureError: (NxcoreError,),
    errors.MeasurementError: (NxcoreError,),
    errors.DeviceLostError: (NxcoreError,),
    errors.PluginError: (NxcoreError,),
}


def test_the_tree_holds_every_error_of_the_module():
    found = {e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, NxcoreError)}
    assert found == {NxcoreError, *TREE}


@for_each("error", TREE, ids=lambda e: e.__name__)
def test_an_error_has_its_parents_and_stands_in_the_drawing(error):
    assert error.__bases__ == TREE[error]
    drawn = next(line for line in errors.__doc__.splitlines() if error.__name__ in line)
    outside = [b.__name__ for b in TREE[error] if not issubclass(b, NxcoreError)]
    assert all(f"({name})" in drawn for name in outside)


def test_the_nearest_name_is_offered():
    assert nearest("sotfmax", ("softmax", "sum")) == "; did you mean 'softmax'?"


def test_all_names_are_listed_in_order_where_none_is_near():
    assert nearest("qqq", ("sum", "add")) == "; known: add, sum"


def test_no_names_are_said_to_be_none():
    assert nearest("add", ()) == "; known: none"


def test_a_key_error_prints_its_message_and_not_its_repr():
    error = errors.UnknownOperatorError("ad", ["sum", "add"])
    assert str(error) == "no operator is named 'ad'; did you mean 'add'?"
    assert (error.name, error.known) == ("ad", ("add", "sum"))


def test_an_unknown_backend_is_an_unavailable_one():
    error = errors.UnknownBackendError("tritn", ["triton", "torch"])
    assert str(error) == "no backend is named 'tritn'; did you mean 'triton'?"
    assert (error.backend, error.reason, error.known) == ("tritn", "unknown", ("torch", "triton"))


def test_an_error_without_arguments_prints_nothing():
    assert str(NxcoreError()) == ""


def test_invalid_input_names_its_argument():
    error = errors.InvalidInputError("x must be", argument="x")
    assert (str(error), error.argument) == ("x must be", "x")


def test_an_unavailable_backend_carries_its_reason():
    error = errors.BackendUnavailableError("no", backend="triton", reason="no GPU")
    assert (error.backend, error.reason) == ("triton", "no GPU")


def test_an_unsupported_problem_lists_every_reason():
    error = errors.UnsupportedProblemError("add", "triton", ["a: no", "b: neither"])
    assert str(error) == "backend 'triton' can't take this call of 'add': a: no; b: neither"
    assert (error.operator, error.backend, error.reasons) == ("add", "triton", ("a: no", "b: neither"))


def test_an_unsupported_problem_without_kernels_says_so():
    error = errors.UnsupportedProblemError("add", "triton", [])
    assert str(error).endswith("it has no kernel for this operator")


def test_what_is_present_comes_back_and_none_is_a_fault():
    assert errors.present(0, "call") == 0
    with pytest.raises(AssertionError, match=r"^call must not be None here$"):
        errors.present(None, "call")


def test_a_plugin_error_names_plugin_and_distribution():
    error = errors.PluginError("broken", plugin="p", distribution="nxcore-p 1.0")
    assert (error.plugin, error.distribution) == ("p", "nxcore-p 1.0")


def test_a_message_lists_few_operators_and_no_hundred():
    assert str(UnknownOperatorError("qqq", ["add", "sum"])) == "no operator is named 'qqq'; known: add, sum"
    error = UnknownOperatorError("qqq", [f"op{n}" for n in range(21)])
    assert str(error) == "no operator is named 'qqq'; `nxcore ops` lists all 21"
    assert len(error.known) == 21


def test_a_choice_is_listed_once():
    assert one_of("part", "qqq", ("a", "b")) == "part must be one of a, b, got 'qqq'"
    assert one_of("part", "numb", ("cuda", "numba")).endswith("got 'numb'; did you mean 'numba'?")
    assert one_of("policy", None, ("measure", "online")).endswith("online, got None")


def test_what_is_neither_an_operator_nor_a_model_is_not_explained():
    with pytest.raises(UnknownOperatorError, match="no operator is named 3"):
        nxcore.explain(3)
    assert nxcore.explain(nxcore.op("add"), torch.ones(2), torch.ones(2)).problem.op == "add"
