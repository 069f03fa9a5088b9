"""The compiled call path, if it is installed and fits the installed torch; see the package nxcore-native.

The Python path is its specification: a call that the extension doesn't know goes there.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import torch

from nxcore.context import NOTHING, PREFERENCE
from nxcore.errors import FOREIGN
from nxcore.interop import internals
from nxcore.interop.own import own_of
from nxcore.interop.program import Recorder
from nxcore.spec.launched import run_by
from nxcore.spec.origin import installing
from nxcore.spec.spec import REQUIRED, Drawn, OpSpec

GROUP = "nxcore.native"

INTERFACE = 2
"""The extension's number for what either side calls of the other; it is raised with every change."""

LETTERS = {
    "tensor": "t",
    "tensors": "m",
    "operand": "o",
    "scalar": "s",
    "static": "f",
    "size": "z",
    "out": "u",
}
"""The kinds of parameters, as the extension names them."""


class NativeWarning(UserWarning):
    """The extension is installed and can't be used, for instance since it is of another torch."""


class Found(NamedTuple):
    """The extension, ready for use, and where it comes from; or None, and why there is none.

    ``ok`` is False if it is installed and can't be used.
    """

    extension: Any
    detail: str
    ok: bool = True


@functools.cache
def found() -> Found:
    """Look for the extension, once a process.

    Warns
    -----
    NativeWarning
        If it is installed and can't be used.
    """
    entry = next(iter(entry_points(group=GROUP)), None)
    if entry is None:
        return Found(None, "not installed: Python finds the plan of each call")
    named = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    try:
        extension = entry.load()()
        if (built := getattr(extension, "INTERFACE", 0)) != INTERFACE:
            raise ImportError(f"built from other sources: interface {built}, expected {INTERFACE}")
        extension.setup(PREFERENCE, NOTHING, internals.raw_stream)
        PREFERENCE.set(PREFERENCE.get())  # a value that was set is found without a search
        run_by(functools.partial(_recorded, extension))
    except FOREIGN as error:  # calls go on without it
        detail = f"{named} is left out: {type(error).__name__}: {error}"
        fix = installing("nxcore-native")
        warnings.warn(f"{detail}. Calls run without it. To fix it: {fix}", NativeWarning, stacklevel=2)
        return Found(None, detail, ok=False)
    return Found(extension, named)


def _recorded(extension: Any, call: Callable[..., Any], again: Callable[[], Callable[..., Any]]) -> Any:
    """Return a plan of launches as an object of the extension."""
    recorder = Recorder(call, again)
    recorder.direct = extension.Direct(recorder)
    return recorder.direct


MOST = 32
"""The most parameters of an operator whose plans the extension finds."""


def bases(operator: type, spec: OpSpec, *, wanted: bool) -> tuple[type, ...]:
    """Return the bases of an operator's class."""
    extension = found().extension if wanted and len(spec.params) <= MOST else None
    return (operator,) if extension is None else (extension.Lookup, operator)


def of(operator: Any) -> Any:
    """Return the extension if it finds the plans of ``operator``, else None."""
    if not hasattr(operator, "admitted"):
        return None  # and the extension may not be loaded
    return found().extension


def _reader(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function for what None stands for in a call; while a compiler traces it, None is kept."""
    compiling = torch.compiler.is_compiling
    return lambda first: None if compiling() else read(first)


def adopt(operator: Any, spec: OpSpec) -> None:
    """Let the extension find the plans of ``operator``, if its class has the extension's base."""
    if (extension := of(operator)) is None:
        return
    params = tuple(
        (
            p.name,
            LETTERS[p.kind],
            p.default,
            p.default is REQUIRED or isinstance(p.default, Drawn),  # which Python draws for each call
            p.keyword,
            p.read and _reader(p.read),
        )
        for p in spec.params
    )
    lowers = "lower" in spec.autocast.values()
    extension.adopt(
        operator, params, lowers, type(operator).__call__, spec.reference, spec.check, spec.holds[0]
    )
    if own := own_of(spec):
        extension.own(operator, *own)
