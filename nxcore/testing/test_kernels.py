"""Check every kernel of every backend by every rule; operators, backends and samples are from the registry.

pytest --nxcore-backend=NAME --pyargs nxcore.testing
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nxcore.errors import FOREIGN
from nxcore.testing.cell import Broken, Cell, Declined, Inapplicable, cells, huge, modest
from nxcore.testing.cuda import ON_CUDA
from nxcore.testing.declines import Declines
from nxcore.testing.isolate import alone
from nxcore.testing.plugin import declines_file, registry
from nxcore.testing.report import PROPERTY, listed, place
from nxcore.testing.rows import Row
from nxcore.testing.rules import OF_A_KERNEL, OF_A_SAMPLE, OF_A_TYPE, Rule

APART: pytest.StashKey[dict[str, Row]] = pytest.StashKey()
"""The outcome of each kernel and dtype in a process of its own."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize each test by rules and cells."""
    chosen = list(cells(registry(metafunc.config), backends=metafunc.config.option.nxcore_backend))
    cuda = torch.cuda.is_available()
    if metafunc.function is test_samples:
        steps = [(rule, c.on(s)) for c in chosen for s in modest(c.spec, c.kernel) for rule in OF_A_SAMPLE]
        if cuda and metafunc.config.option.nxcore_huge:
            steps += [
                (rule, c.on(s)) for c in chosen if c.leads for s in huge(c.spec) for rule in OF_A_SAMPLE
            ]
    else:
        once = (*OF_A_KERNEL, *(ON_CUDA if cuda else ()))
        steps = [(rule, c) for rule in OF_A_TYPE for c in chosen]
        steps += [(rule, c) for rule in once for c in chosen if c.leads]
    cases = metafunc.config.hook.pytest_nxcore_cases(config=metafunc.config, steps=steps)
    metafunc.parametrize("steps", list(cases.values()), ids=list(cases))


def test_samples(steps: Sequence[tuple[Rule, Cell]], request: pytest.FixtureRequest) -> None:
    """Check a kernel by a rule on one sample, or on several."""
    _hold(steps, request)


def test_rules(steps: Sequence[tuple[Rule, Cell]], request: pytest.FixtureRequest) -> None:
    """Check a kernel by a rule that chooses its own sample, or by several."""
    _hold(steps, request)


def _hold(steps: Sequence[tuple[Rule, Cell]], request: pytest.FixtureRequest) -> None:
    """Take every step; what is broken fails together, and a case without a step that ran is skipped."""
    if len(steps) == 1:
        _take(*steps[0], request)
        return
    broken, skipped = list[str](), list[str]()
    for rule, cell in steps:
        place = rule.__name__ + (f" (sample {cell.sample.name})" if cell.sample else "")
        try:
            _take(rule, cell, request)
        except pytest.skip.Exception as error:
            skipped.append(str(error.msg))
        except pytest.fail.Exception as error:
            broken.append(f"{place}: {error.msg}")
        except FOREIGN:  # a result may be any object, and raise anything when read
            broken.append(f"{place}:\n{traceback.format_exc()}")
    if broken:
        pytest.fail("\n".join(broken), pytrace=False)
    if len(skipped) == len(steps):
        pytest.skip("; ".join(dict.fromkeys(skipped)))


def _take(rule: Rule, cell: Cell, request: pytest.FixtureRequest) -> None:
    """Check a kernel by one rule; pytest's skips and failures say how it ended."""
    found: dict[str, Any] = {
        "rule": rule.__name__,
        "op": cell.kernel.op,
        "kernel": cell.label,
        "dtype": cell.type,
        "device": cell.device.type,
        "sample": cell.sample.name if cell.sample else "",
        "outcome": "wrong",
        "code": "",
        "reason": "it did not finish",
        "figure": None,
    }
    if request.config.pluginmanager.has_plugin("nxcore-gatherer"):
        request.node.user_properties.append((PROPERTY, found))
    if not cell.machine:
        found |= {"outcome": "unavailable", "reason": cell.machine.reason}
        if {cell.label, cell.backend.name} & set(request.config.option.nxcore_require):
            pytest.fail(f"--nxcore-require={cell.label}: {cell.machine.reason}")
        pytest.skip(f"{cell.label} can't run here: {cell.machine.reason}")
    if request.config.option.nxcore_isolated:
        _survive(rule, cell, found, request.config)
    try:
        figure = rule(cell)
    except Inapplicable as error:
        found |= {"outcome": "inapplicable", "reason": error.reason}
        pytest.skip(error.reason)
    except Declined as refusal:
        found |= {"outcome": "declined", "code": str(refusal.code), "reason": refusal.reason}
        _review(found, request.config)
        pytest.skip(f"declined: {refusal.reason}")
    except Broken as error:
        found |= {"rule": error.rule, "reason": error.message}
        if error.__cause__ is not None:
            raise  # shows the kernel's own exception, with its trace
        pytest.fail(f"{error.rule}: {error.message}", pytrace=False)
    found |= {"outcome": "agreed", "reason": "", "figure": figure}
    _review(found, request.config)


def _survive(rule: Rule, cell: Cell, found: dict[str, Any], config: pytest.Config) -> None:
    """Fail or skip a kernel that crashed or hung in a process of its own; it isn't run in this one."""
    rows, name = config.stash.setdefault(APART, {}), replace(cell, sample=None).name
    row = rows[name] if name in rows else rows.setdefault(name, alone(cell))
    if row.outcome not in ("crashed", "hung"):
        return
    found |= {"outcome": row.outcome, "reason": row.reason}
    here = (rule.__name__, found["sample"])
    if row.broken and here != (row.broken[0].rule, row.broken[0].sample):
        pytest.skip(f"not run, because its kernel {row.outcome} in {row.reason}")
    pytest.fail(f"{cell.label} {row.outcome}: {row.reason}", pytrace=False)


def _review(found: dict[str, Any], config: pytest.Config) -> None:
    """Compare a refusal, or its absence, with the list of refusals, if there is one."""
    path = declines_file(config)
    if path is None or config.option.nxcore_write_declines:
        return
    if wrong := _declines(path).verdict(place(found), found["dtype"], listed(found)):
        pytest.fail(
            f"{wrong}; if this is intended, update the list with --nxcore-write-declines", pytrace=False
        )


@functools.cache
def _declines(path: Path) -> Declines:
    return Declines.read(path)
