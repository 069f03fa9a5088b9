"""Interpreter: the command of a Python that looks for modules where this one does."""

from __future__ import annotations

import sys
from pathlib import Path

from nxcore.store.encoding import encoded

RUN = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""The program: a folder's name may hold the character that would separate it in ``PYTHONPATH``."""


def command(module: str) -> tuple[str, ...]:
    """Return the command that runs a module."""
    path = [str(Path(p).resolve()) for p in sys.path if isinstance(p, str)]
    return sys.executable, "-P", "-c", RUN, encoded(path), module
