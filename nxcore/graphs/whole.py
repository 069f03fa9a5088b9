"""Whole: a network of parts as one part, whose step is one replay forward and one backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.graphs.capture import Capture, Run
from nxcore.graphs.part import Part
from nxcore.graphs.reads import Held
from nxcore.graphs.recorder import Recorder, recorder_of


class Whole(Part):
    """A part that is a network of parts: its capture takes the place of theirs.

    A network has thousands of modules, and the test whether they are as they were takes the host some
    milliseconds. So a replay is begun first, and undone if the module changed: it has written results that
    nobody has, and buffers, whose values the graph keeps.

    Parameters
    ----------
    run, record
        As of ``Part``.
    reads : callable
        ``reads(module)`` returns the names outside of the module that its code reads, or raises ``Unclear``.

    Attributes
    ----------
    called : bool
        Whether it was ever called. Until then the parts inside are captured by themselves.
    """

    whole = True

    def __init__(
        self,
        run: Run,
        reads: Callable[[nn.Module], list[Held]],
        record: Callable[[torch.device], Recorder | None] = recorder_of,
    ) -> None:
        super().__init__(run, record)
        self._reads, self.called = reads, False

    def __deepcopy__(self, memo: Any) -> Whole:
        return Whole(self.run, self._reads, self._record)

    def __reduce__(self) -> tuple[Any, ...]:
        return Whole, (self.run, self._reads, recorder_of)

    @property
    def takes(self) -> bool:
        """Whether it is or may be captured in place of the parts inside."""
        return self.called and not self._refusal

    def __call__(self, module: nn.Module, *tensors: Tensor) -> Any:
        """Replay the call if its signature was captured; otherwise run it."""
        self.called = True
        return super().__call__(module, *tensors)

    def _standing(self, key: Any) -> Capture | None:
        captures = self._captures.get(key)
        if not captures:
            return None
        inside = captures[0].inside
        if not inside.lies():  # the graph would read memory that may be another's
            with self._lock:
                self._captures.pop(key, None)
            return None
        mode = inside.mode_now() if len(captures) > 1 else inside.mode
        return next((capture for capture in captures if capture.inside.mode == mode), None)

    def _begin(self, capture: Capture, tensors: Sequence[Tensor]) -> bool:
        if capture.begin(tensors):
            return True
        if not capture.inside.holds():  # else its mode alone has changed
            with self._lock:
                self._captures.clear()
        return False

    def _made_of(self, module: nn.Module, tensors: Sequence[Tensor], recorder: Recorder) -> Capture:
        return Capture(self.run, module, tensors, recorder, self._reads(module))
