"""The interface of plugins: a plugin imports nothing else from nxcore."""

from __future__ import annotations

import pluggy

from nxcore.errors import InvalidInputError
from nxcore.expression.elementwise import Elementwise, fits, planned
from nxcore.expression.generated import generated
from nxcore.expression.statements import Statements, spelled
from nxcore.expression.written import pointwise_ops
from nxcore.spec import libraries as foreign
from nxcore.spec.backward import backward_of
from nxcore.spec.checks import (
    brief,
    require_flag,
    require_flags,
    require_integers,
    require_precision,
    require_same,
    require_shape,
    require_size,
    require_tensor,
)
from nxcore.spec.compiling import compiling
from nxcore.spec.composed import composed
from nxcore.spec.gradient import Gradient
from nxcore.spec.kernel import (
    YES,
    Backend,
    Check,
    Code,
    Kernel,
    Refusal,
    Verdict,
    accept_all,
    kernels,
    no,
    simulated,
)
from nxcore.spec.launched import Launched, note, recording
from nxcore.spec.layout import Rows, alike, broadcast_shapes, broadcast_strides, collapse, overlaps
from nxcore.spec.libraries import Library
from nxcore.spec.lines import Lines, factors_of, last_axes, of_classes, one_axis, whole_groups
from nxcore.spec.needs import Need, Place, at_most, either, few_channels, merged, needs
from nxcore.spec.planning import host, hosted
from nxcore.spec.precision import allowing, in_force
from nxcore.spec.problem import Problem, TensorMeta, is_tensor
from nxcore.spec.process import preserved
from nxcore.spec.product import Product
from nxcore.spec.reduction import Reduction, canonical_dims, summed_dims
from nxcore.spec.rope import Turned, turned_rows
from nxcore.spec.sample import DEGENERATE, ErrorCase, Layout, Sample, Sketch, rand
from nxcore.spec.scatters import summed_rows
from nxcore.spec.spec import FLOATS, LOWER, REQUIRED, SAME, Cost, Drawn, OpSpec, Param, Parts, Way
from nxcore.spec.sums import sums_of
from nxcore.spec.turned import turned_windows
from nxcore.spec.window import (
    Window,
    dense,
    laid_out,
    memory_format,
    pair,
    require_image,
    require_memory_format,
    window_of,
)
from nxcore.store.compiled import compiled_file, compiled_folder, keep_compiled
from nxcore.store.files import toolkit_folder
from nxcore.store.owner import read_owned

API_VERSION = 1
"""The version of this interface; a plugin's ``Backend`` names the version that it was written for."""

hookimpl = pluggy.HookimplMarker("nxcore")


__all__ = [
    "API_VERSION",
    "DEGENERATE",
    "FLOATS",
    "LOWER",
    "REQUIRED",
    "SAME",
    "YES",
    "Backend",
    "Check",
    "Code",
    "Cost",
    "Drawn",
    "Elementwise",
    "ErrorCase",
    "Gradient",
    "InvalidInputError",
    "Kernel",
    "Launched",
    "Layout",
    "Library",
    "Lines",
    "Need",
    "OpSpec",
    "Param",
    "Parts",
    "Place",
    "Problem",
    "Product",
    "Reduction",
    "Refusal",
    "Rows",
    "Sample",
    "Sketch",
    "Statements",
    "TensorMeta",
    "Turned",
    "Verdict",
    "Way",
    "Window",
    "accept_all",
    "alike",
    "allowing",
    "at_most",
    "backward_of",
    "brief",
    "broadcast_shapes",
    "broadcast_strides",
    "canonical_dims",
    "collapse",
    "compiled_file",
    "compiled_folder",
    "compiling",
    "composed",
    "dense",
    "either",
    "factors_of",
    "few_channels",
    "fits",
    "foreign",
    "generated",
    "hookimpl",
    "host",
    "hosted",
    "in_force",
    "is_tensor",
    "keep_compiled",
    "kernels",
    "laid_out",
    "last_axes",
    "memory_format",
    "merged",
    "needs",
    "no",
    "note",
    "of_classes",
    "one_axis",
    "overlaps",
    "pair",
    "planned",
    "pointwise_ops",
    "preserved",
    "rand",
    "read_owned",
    "recording",
    "require_flag",
    "require_flags",
    "require_image",
    "require_integers",
    "require_memory_format",
    "require_precision",
    "require_same",
    "require_shape",
    "require_size",
    "require_tensor",
    "simulated",
    "spelled",
    "summed_dims",
    "summed_rows",
    "sums_of",
    "toolkit_folder",
    "turned_rows",
    "turned_windows",
    "whole_groups",
    "window_of",
]
