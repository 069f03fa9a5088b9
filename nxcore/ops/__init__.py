"""The core's operators: one file each, found by looking, handed over through the plugins' own hook."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from nxcore.plugin import OpSpec, hookimpl


@hookimpl
def nxcore_ops() -> Iterable[OpSpec]:
    """Return the ``SPEC`` of every module in this folder."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}").SPEC for name in names]
