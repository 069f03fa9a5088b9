"""The findings of a test run, gathered from all processes: the support matrix, and the refusals."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from nxcore.registry.registry import Registry
from nxcore.spec.device import available, describe
from nxcore.spec.kernel import Code
from nxcore.store.encoding import encoded
from nxcore.testing.declines import Declines, Place
from nxcore.testing.plugin import declines_file, registry

PROPERTY = "nxcore"
"""The name of the test property that carries a finding from a worker to the main process."""

Finding = Mapping[str, Any]


class Gatherer:
    """Gathers the findings of all tests, and writes files at the end.

    Parameters
    ----------
    config : pytest.Config
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.findings = config, list[Finding]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the finding of a test."""
        if report.when == "call":
            properties: list[tuple[str, Any]] = report.user_properties
            self.findings += [value for name, value in properties if name == PROPERTY]

    def pytest_sessionfinish(self) -> None:
        """Write the files, in the main process only: it has the reports of all tests."""
        if hasattr(self.config, "workerinput"):
            return
        if self.config.option.nxcore_report:
            path = self.config.invocation_params.dir / self.config.option.nxcore_report
            path.parent.mkdir(parents=True, exist_ok=True)
            record = matrix(registry(self.config), self.findings)
            path.write_text(encoded(record, indent=1) + "\n", encoding="utf-8")
        path = declines_file(self.config)
        if self.config.option.nxcore_write_declines and path:
            declines = Declines.read(path)
            declines.replace(
                (place(f), f["dtype"], listed(f))
                for f in self.findings
                if f["outcome"] in ("agreed", "declined", "wrong")
            )
            path.write_text(str(declines), encoding="utf-8")


def place(finding: Finding) -> Place:
    """Return the place of a finding."""
    name = finding["sample"] or finding["rule"]
    return Place(finding["device"], finding["op"], finding["kernel"], name)


def listed(finding: Finding) -> str | None:
    """Return a refusal's text in the list: its code, then its reason.

    None for no refusal, for a claim that the kernel's own row doesn't make, and for a view, which needs no
    kernel.
    """
    if finding["outcome"] != "declined" or finding["code"] in (Code.CLAIM, Code.IDLE):
        return None
    return f"{finding['code']}: {finding['reason']}"


def matrix(found: Registry, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the support matrix: the outcome of each kernel in each dtype.

    A cell is ``verified`` (with the number of samples, and of those that the kernel refused, by reason),
    ``declined`` (for all samples) or ``wrong``. Kernels that were not tested are omitted.
    """
    cells = []
    for op, spec in found.ops.items():
        for dtype in spec.dtypes:
            for backend, kernel in found.kernels(op):
                head = {
                    "op": op,
                    "backend": backend.label(kernel),
                    "dtype": str(dtype).removeprefix("torch."),
                }
                if not (about := [f for f in findings if (f["op"], f["kernel"]) == (op, head["backend"])]):
                    continue
                if dtype not in kernel.dtypes:
                    needed = " or ".join(str(d).removeprefix("torch.") for d in kernel.dtypes)
                    cells.append(head | {"outcome": "declined", "reason": f"needs {needed}"})
                elif ended := _ended([f for f in about if f["dtype"] == head["dtype"]]):
                    cells.append(head | ended)
    return {
        "device": describe(available()).to_dict(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "cells": cells,
    }


def _ended(findings: Sequence[Finding]) -> dict[str, Any] | None:
    wrong = next((f for f in findings if f["outcome"] == "wrong"), None)
    if wrong:
        return {"outcome": "wrong", "reason": f"{wrong['sample'] or wrong['rule']}: {wrong['reason']}"}
    agreed = [f for f in findings if f["outcome"] == "agreed" and f["sample"]]
    declined = Counter(f["reason"] for f in findings if f["outcome"] == "declined" and f["sample"])
    if agreed:
        error = max(f["figure"] or 0.0 for f in agreed)
        prompt = [f["figure"] for f in findings if f["rule"] == "returns_promptly" and f["figure"]]
        figures = {"error": error} | ({"microseconds": prompt[0]} if prompt else {})
        return {"outcome": "verified", "samples": len(agreed), "declined": dict(declined), **figures}
    if not declined:
        declined = Counter(f["reason"] for f in findings if f["outcome"] == "unavailable")
    return {"outcome": "declined", "reason": "; ".join(declined)} if declined else None
