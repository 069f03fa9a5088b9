"""The core's operators: one file each, found by listing the folder. May import plugin and below.

Attributes of this package are operators: ``nxcore.ops.add`` is ``nxcore.op("add")``. Modules are imported:
``from nxcore.ops.add import SPEC``.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable
from typing import Any

from nxcore import context
from nxcore.errors import UnknownOperatorError
from nxcore.plugin import OpSpec, hookimpl


@hookimpl
def nxcore_ops() -> Iterable[OpSpec]:
    """Return the ``SPEC`` of every module in this folder, and its ``BACKWARD`` where it has one."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found = (getattr(module, name, None) for module in modules for name in ("SPEC", "BACKWARD"))
    specs = sorted(filter(None, found), key=lambda spec: spec.name)
    for name in names:  # the import made the module the attribute
        vars(sys.modules[__name__]).pop(name, None)
    return specs


nxcore_ops()  # all modules now, so that a later import cannot replace an operator by its module


def __getattr__(name: str) -> Any:
    """Return ``nxcore.op(name)``, and keep it as an attribute: a second look-up is cheaper."""
    if name.startswith(("_", "nxcore_")):  # the import system and pluggy look up missing names
        raise AttributeError(name)
    try:
        found = context.default().op(name)
    except UnknownOperatorError as error:
        raise AttributeError(str(error)) from None
    globals()[name] = found
    return found
