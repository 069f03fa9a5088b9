"""The core's operators: one file each, found by looking. May import plugin and below.

To a user the attributes of this package are operators: ``nxcore.ops.add`` is ``nxcore.op("add")``. The
modules are reached by import alone: ``from nxcore.ops.add import SPEC``.
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
    for name in names:  # the import left the module where the operator belongs
        vars(sys.modules[__name__]).pop(name, None)
    return specs


nxcore_ops()  # all modules now, so that a later import of one can't put it in its operator's place


def __getattr__(name: str) -> Any:
    """``nxcore.ops.add`` is ``nxcore.op("add")``, and stays here: to ask costs more than to look it up."""
    if name.startswith(("_", "nxcore_")):  # the import system and pluggy ask for what isn't there
        raise AttributeError(name)
    try:
        found = context.default().op(name)
    except UnknownOperatorError as error:
        raise AttributeError(str(error)) from None
    globals()[name] = found
    return found
