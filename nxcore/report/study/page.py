"""A study's record -> one self-contained HTML file."""

from __future__ import annotations

from typing import Any

from nxcore.report import page
from nxcore.report.study import facts
from nxcore.report.study.facts import Record
from nxcore.report.study.markdown import setting, title
from nxcore.report.study.sentences import sentences

SCRIPTS = ("view.js", "plots.js", "study.js")


def data(record: Record) -> dict[str, Any]:
    """Return what the page's script reads: the record, and what is computed from it."""
    firsts = {tuple(cell["shape"]): label for label, cells in facts.firsts(record).items() for cell in cells}
    cells = [
        {k: v for k, v in cell.items() if k != "rows"}
        | {
            "first": firsts.get(tuple(cell["shape"])),
            "rows": [{k: v for k, v in row.items() if k != "blocks_us"} for row in cell["rows"]],
        }
        for cell in record["cells"]
    ]
    return {
        "record": {**record, "cells": cells},
        "labels": facts.labels(record),
        "sentences": sentences(record),
        "absent": list(facts.absent(record).items()),
        "facts": setting(record),
    }


def html(record: Record) -> str:
    """Return the page.

    Raises
    ------
    NxcoreError
        If plotly isn't installed.
    """
    return page.assembled("study.html", SCRIPTS, title(record), data(record))
