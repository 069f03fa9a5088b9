"""All that a plugin imports from nxcore."""

from __future__ import annotations

import pluggy

from nxcore.backward import backward_of
from nxcore.defaults import REQUIRED, Drawn
from nxcore.kernel import (
    YES,
    Backend,
    Check,
    Code,
    Kernel,
    Refusal,
    Verdict,
    accept_all,
    composed,
    kernels,
    no,
    simulated,
)
from nxcore.layout import Rows, alike, broadcast_strides, collapse, overlaps
from nxcore.needs import Need, Place, at_most, either, merged, needs
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
    Parts,
    Sample,
    rand,
)
from nxcore.store import toolkit_folder
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
    "Need",
    "OpSpec",
    "Param",
    "Parts",
    "Place",
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
    "at_most",
    "backward_of",
    "broadcast_strides",
    "canonical_dims",
    "collapse",
    "composed",
    "either",
    "hookimpl",
    "kernels",
    "merged",
    "needs",
    "no",
    "overlaps",
    "preserved",
    "rand",
    "simulated",
    "summed_dims",
    "toolkit_folder",
]
