"""Pending: an audit whose outcome CUDA hasn't completed yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nxcore.spec.problem import leaves

if TYPE_CHECKING:
    from nxcore.choose.learn.watch import Watch


@dataclass(frozen=True)
class Pending:
    """An audit that CUDA hasn't completed yet.

    ``own`` are copies of the arguments from before the call, empty where blocks of a sum were compared, and
    ``result`` is what the kernel returned. ``flags`` are two bools in pinned memory: the result strays, an
    input was changed. ``versions`` are those of the result then: the caller may write into it since, as an
    activation in place does. ``part`` says whether arguments and result are those of some rows.
    """

    watch: Watch
    own: tuple[Any, ...]
    result: Any
    flags: Tensor
    start: Any
    end: Any
    versions: tuple[int | None, ...]
    part: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes that are kept for it."""
        return sum(t.nbytes for t in leaves((self.own, self.result)))
