"""All that a plugin imports from nxcore."""

from __future__ import annotations

import pluggy

from nxcore.defaults import REQUIRED, Drawn
from nxcore.kernel import YES, Backend, Check, Code, Kernel, Refusal, Verdict, accept_all, no, simulated
from nxcore.layout import Rows, alike, broadcast_strides, collapse, overlaps
from nxcore.problem import Problem, TensorMeta
from nxcore.process import preserved
from nxcore.reduction import Reduction, canonical_dims, summed_dims
from nxcore.spec import (
    FLOATS,
    Cost,
    ErrorCase,
    Gradient,
    OpSpec,
    Param,
    Sample,
    rand,
)
from nxcore.window import Window

API_VERSION = 1
"""The version of this contract; a plugin writes the number it was made for in its ``Backend``."""

hookimpl = pluggy.HookimplMarker("nxcore")


__all__ = [
    "API_VERSION",
    "FLOATS",
    "REQUIRED",
    "YES",
    "Backend",
    "Check",
    "Code",
    "Cost",
    "Drawn",
    "ErrorCase",
    "Gradient",
    "Kernel",
    "OpSpec",
    "Param",
    "Problem",
    "Reduction",
    "Refusal",
    "Rows",
    "Sample",
    "TensorMeta",
    "Verdict",
    "Window",
    "accept_all",
    "alike",
    "broadcast_strides",
    "canonical_dims",
    "collapse",
    "hookimpl",
    "no",
    "overlaps",
    "preserved",
    "rand",
    "simulated",
    "summed_dims",
]
