"""Calls take two paths, Python's and the compiled one: what is tested of calls is tested on both."""

from collections.abc import Iterator
from typing import Any

import pytest

from nxcore import session as sessions
from nxcore.interop import native
from nxcore.spec import launched

BOTH = (
    "tests/conformance/test_graphs.py",
    "tests/conformance/test_streams.py",
    "tests/conformance/test_transforms.py",
    "tests/hostile/test_turning.py",
    "tests/nn/test_linear.py",
    "tests/nn/test_modules.py",
    "tests/nn/test_normed.py",
    "tests/nn/test_part.py",
    "tests/nn/test_part_runs.py",
    "tests/nn/test_served.py",
    "tests/nn/test_swap.py",
    "tests/null/call/",
    "tests/null/choose/test_regimes.py",
    "tests/null/choose/learn/test_exploration.py",
    "tests/null/choose/learn/test_watch.py",
    "tests/null/graphs/",
    "tests/null/interop/",
    "tests/null/store/test_wisdom.py",
    "tests/null/test_context.py",
    "tests/null/test_session.py",
    "tests/null/trust/test_gate.py",
    "tests/null/trust/test_quarantine.py",
    "tests/ops/test_surroundings.py",
    "tests/plugins/test_ending.py",
)
"""Folders and files whose tests run on both paths."""

PATHS = ["python", "compiled"] if native.found().extension else ["python"]

_defaults: dict[str, Any] = {}
"""The default session of each path: an operator is made for one of them."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not metafunc.definition.nodeid.startswith(BOTH):
        return
    given = [m.args[0] for m in metafunc.definition.iter_markers("parametrize")]
    if any("path" in names for names in given):  # names: one, or a tuple of them
        return
    late = [pytest.mark.slow] if len(PATHS) > 1 else []  # Python's path is in the rest
    python, *others = PATHS
    metafunc.parametrize("path", [pytest.param(python, marks=late), *others], indirect=True)


@pytest.fixture(autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, as_default: Any) -> Iterator[str]:
    """Make the operators of this test, and of processes that it starts, for one path."""
    taken = getattr(request, "param", "")
    if not taken:
        yield ""
        return
    if taken == "python":
        monkeypatch.setenv("NXCORE_NATIVE", "0")
        monkeypatch.setattr(native, "bases", lambda operator, spec, *, wanted: (operator,))
        monkeypatch.setattr(launched, "_runs", [])
    if taken not in _defaults:  # made here: a test may have a default session of its own
        with pytest.MonkeyPatch.context() as one:
            one.setattr(sessions, "_default", None)
            _defaults[taken] = sessions.default()
    as_default(_defaults[taken])
    yield taken
