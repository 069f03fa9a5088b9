"""Modules of generated code: toolkits read a function's source from a file, and keep code by its name."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from nxcore.errors import present
from nxcore.spec.text import execute
from nxcore.store import owner
from nxcore.store.files import replace_file, toolkit_folder

LIMIT = 1 << 20
"""The most bytes of a module."""


@functools.cache
def _folder(toolkit: str) -> Path:
    """Return the folder of a toolkit's generated modules; one of this process where no cache is kept."""
    kept = toolkit_folder(toolkit)
    return (kept if kept is not None else owner.temporary() / toolkit) / "pointwise"


@functools.cache
def generated(toolkit: str, text: str) -> ModuleType:
    """Return the module of a text that a printer made; the same text gives the same file in every process.

    The text itself is run, never what the file holds.

    >>> generated("mine", "ANSWER = 42").ANSWER
    42
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    name, file = f"nxcore_generated_{toolkit}_{digest}", f"expression_{digest}.py"
    path = _written(_folder(toolkit) / file, text)
    spec = present(importlib.util.spec_from_file_location(name, path), "spec")  # a path to .py has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    execute(text, str(path), vars(module))
    return module


def _written(path: Path, text: str) -> Path:
    """Return a file that holds a text: the one that is there, or a new one."""
    try:
        owner.made(path.parent)
        if not _holds(path, text):
            replace_file(path, text.encode())
    except OSError as error:
        owner.warn(getattr(error, "path", str(path.parent)), f"{error}; generated code isn't kept")
        path = owner.temporary() / path.name
        replace_file(path, text.encode())
    return path


def _holds(path: Path, text: str) -> bool:
    try:
        return owner.read_owned(path, LIMIT) == text.encode()
    except OSError:
        return False
