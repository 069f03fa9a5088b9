"""The hooks of plugins. They run while plugins load, never in a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from nxcore.spec.kernel import Backend, Check
    from nxcore.spec.spec import OpSpec

hookspec = pluggy.HookspecMarker("nxcore")


@hookspec
def nxcore_backend() -> Backend:  # type: ignore[empty-body]  # a specification has no body
    """Return one backend: its name, its probe and its kernels."""


@hookspec
def nxcore_ops() -> Iterable[OpSpec]:  # type: ignore[empty-body]
    """Return operators to add; the core's own come through this hook too."""


@hookspec
def nxcore_doctor() -> Iterable[Check]:  # type: ignore[empty-body]
    """Return lines about the toolkit for ``nxcore doctor``."""
