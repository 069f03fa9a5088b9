"""Every public name has an example in its docstring, and the examples are true."""

import doctest
import inspect
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import nxcore
import nxcore.plugin
import nxcore.testing
from nxcore import nas
from tests.conftest import end_learning
from tests.table import for_each

SURFACES = {
    "nxcore": (nxcore, nxcore.__all__),
    "nxcore.nn": (nxcore.nn, nxcore.nn.__all__),
    "nxcore.nas": (nas, nas.__all__),
    "nxcore.plugin": (nxcore.plugin, nxcore.plugin.__all__),
    "nxcore.testing": (nxcore.testing, nxcore.testing.__all__),
}
SHOWN = ("op", "backends", "use", "policy", "record", "profile", "explain", "learning")
"""The members of ``Session`` that users call: the example of the class shows them."""


def _documented(module: Any, names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of each public function and class; a module's are those of its own.

    Packages are surfaces of their own.
    """
    for name in names:
        value = getattr(module, name)
        if hasattr(value, "__path__"):
            continue
        if inspect.ismodule(value):
            own = [v for v in vars(value).values() if getattr(v, "__module__", "") == value.__name__]
            yield (
                name,
                "\n\n".join(
                    inspect.getdoc(v) or "" for v in own if inspect.isroutine(v) or inspect.isclass(v)
                ),
            )
        elif inspect.isroutine(value) or inspect.isclass(value):
            yield name, inspect.getdoc(value) or ""


class Checker(doctest.OutputChecker):
    """Says where output was to go if none came: what runs beside may have put another stream there."""

    def output_difference(self, example: doctest.Example, got: str, optionflags: int) -> str:
        said = super().output_difference(example, got, optionflags)
        beside = [thread.name for thread in threading.enumerate()]
        return said if got else f"{said}    sys.stdout was {sys.stdout}, beside {beside}\n"


def _failures(name: str, text: str, folder: Path) -> list[str]:
    """Run the examples of a docstring, once nothing is learnt from those before; return what differs."""
    end_learning()
    said: list[str] = []
    given = {n: getattr(nxcore.plugin, n) for n in nxcore.plugin.__all__}
    given |= {"torch": torch, "nxcore": nxcore, "nas": nas, "folder": folder}
    test = doctest.DocTestParser().get_doctest(text, given, name, None, None)
    doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    return said


def _wrong(documented: Iterator[tuple[str, str]], folder: Path) -> list[str]:
    wrong = []
    for name, text in documented:
        wrong += [f"{name} has no example"] if ">>> " not in text else _failures(name, text, folder)
    return wrong


@pytest.fixture(autouse=True)
def _reproducible(monkeypatch, tmp_path, as_default):
    """A default session of each test's own: that of the process knows what earlier tests have called."""
    monkeypatch.setenv("NXCORE_CACHE", str(tmp_path))
    as_default(None)
    torch.manual_seed(0)


@pytest.mark.parametrize("surface", SURFACES)
def test_each_public_name_has_a_true_example(surface, tmp_path):
    assert not (wrong := _wrong(_documented(*SURFACES[surface]), tmp_path)), "".join(wrong)


def test_each_operator_has_a_true_example(tmp_path):
    operators = ((spec.name, inspect.getdoc(spec.reference) or "") for spec in nxcore.ops.nxcore_ops())
    assert not (wrong := _wrong(operators, tmp_path)), "".join(wrong)


@for_each("name", SHOWN)
def test_the_example_of_a_session_shows_what_users_call(name):
    assert f"session.{name}" in (nxcore.Session.__doc__ or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [("None.", "add has no example"), (">>> 1 + 1\n3\n", "Expected:"), (">>> 1 / 0\n", "ZeroDivision")],
)
def test_a_missing_and_a_false_example_are_found(text, message, tmp_path):
    assert message in "".join(_wrong(iter([("add", text)]), tmp_path))
