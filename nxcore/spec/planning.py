"""Planning: what a planner, and what verifies a kernel, is to heed besides the problem, in a block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nxcore.spec.launched import Noted


class Planning(NamedTuple):
    """The context of a plan.

    Attributes
    ----------
    host : Any
        What makes launches in place of the plugin whose planner runs, as that plugin has it; None for itself.
    on_disk_alone : bool
        Whether nothing may be compiled.
    noted : Noted, optional
        The launches of the plan that is being recorded.
    pause : callable
        Called between the samples of a verification, each of which may need a compilation.
    eager : bool
        Whether calls are eager ones within a run for a capture.
    """

    host: Any = None
    on_disk_alone: bool = False
    noted: Noted | None = None
    pause: Callable[[], None] = lambda: None
    eager: bool = False


NOTHING = Planning()

PLANNING: ContextVar[Planning] = ContextVar("nxcore_planning", default=NOTHING)


@contextlib.contextmanager
def planning(**changes: Any) -> Iterator[None]:
    """Apply ``changes`` to the context within this block."""
    token = PLANNING.set(PLANNING.get()._replace(**changes))
    try:
        yield
    finally:
        PLANNING.reset(token)


def host() -> Any:
    """Return what makes the launches of the present plan in place of its plugin; None for the plugin itself.

    >>> nxcore.plugin.host() is None
    True
    """
    return PLANNING.get().host


def hosted(by: Any) -> contextlib.AbstractContextManager[None]:
    """Have ``by`` make the launches of this block's plans, in this thread; see ``host``.

    >>> with nxcore.plugin.hosted("a stand-in"):
    ...     nxcore.plugin.host()
    'a stand-in'
    """
    return planning(host=by)
