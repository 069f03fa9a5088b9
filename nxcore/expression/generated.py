"""Modules of generated code: toolkits read a function's source from a file, and keep code by its name."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from nxcore.errors import present
from nxcore.store.files import toolkit_folder


@functools.cache
def _folder(toolkit: str) -> Path:
    """Return the folder of a toolkit's generated modules; one of this process where no cache is kept."""
    kept = toolkit_folder(toolkit)
    return kept / "pointwise" if kept is not None else Path(tempfile.mkdtemp(prefix="nxcore-"))


@functools.cache
def generated(toolkit: str, text: str) -> ModuleType:
    """Return the module of a text that a printer made; the same text gives the same file in every process.

    >>> generated("mine", "ANSWER = 42").ANSWER
    42
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    folder = _folder(toolkit)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"expression_{digest}.py"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)  # another process sees the whole file, or none
    name = f"nxcore_generated_{toolkit}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    spec = present(spec, "spec")  # a path that ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    present(spec.loader, "loader").exec_module(module)
    return module
