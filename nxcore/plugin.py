"""All that a plugin imports from nxcore."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pluggy

from nxcore.kernel import YES, Backend, Kernel, Verdict, accept_all, no, simulated
from nxcore.problem import Problem, TensorMeta
from nxcore.reduction import Reduction, canonical_dims
from nxcore.spec import (
    FLOATS,
    REQUIRED,
    Cost,
    ErrorCase,
    Gradient,
    OpSpec,
    Param,
    Sample,
    rand,
)

API_VERSION = 1
"""The version of this contract; a plugin writes the number it was made for in its ``Backend``."""

hookimpl = pluggy.HookimplMarker("nxcore")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``nxcore doctor``.

    Attributes
    ----------
    name : str
        What was looked at.
    ok : bool
        Whether it is as it should be.
    detail : str
        What was found.
    fix : str
        What to type if it isn't as it should be.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the line as plain data."""
        return asdict(self)


__all__ = [
    "API_VERSION",
    "FLOATS",
    "REQUIRED",
    "YES",
    "Backend",
    "Check",
    "Cost",
    "ErrorCase",
    "Gradient",
    "Kernel",
    "OpSpec",
    "Param",
    "Problem",
    "Reduction",
    "Sample",
    "TensorMeta",
    "Verdict",
    "accept_all",
    "canonical_dims",
    "hookimpl",
    "no",
    "rand",
    "simulated",
]
