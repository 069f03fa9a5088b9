"""prepare: a model's kernels are compiled, and measured, before its first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.choose.ahead import compiled, pays
from nxcore.choose.prune import MEASURING
from nxcore.choose.query import LEARNING
from nxcore.interop.internals import gradients
from nxcore.observe import bar
from nxcore.observe.bar import Advance
from nxcore.observe.record import Trace
from nxcore.session import Session, default
from nxcore.spec.problem import Problem, tensors_of


def prepared(
    session: Session, model: nn.Module, inputs: tuple[Any, ...], advance: Advance = lambda *_: None
) -> None:
    """Measure the problems of one call of ``model``, and of its backward pass where it has one.

    The kernels are compiled first, by workers where there are several. The model's buffers and gradients and
    torch's random state are as before, and so are the inputs'.
    """
    problems = met(session, lambda: step(model, inputs))
    if pays(session.tuner):
        compiled(session.tuner, problems, advance)
    known = session.chooser.recall.wisdom.known
    new = [p for p in problems if session.tuner.accepting(p) and not (session.chooser.known(p) or known(p))]
    with session.policy("measure"), MEASURING.expected(len(new), advance):
        step(model, inputs)


def built(session: Session, run: Callable[[], None], advance: Advance = lambda *_: None) -> None:
    """Have workers compile the kernels that the calls in ``run`` will want, where that is faster.

    These are the winners on record, and the most promising kernels of new problems. Nothing is measured.
    """
    if pays(session.tuner) and session.chooser.policy in LEARNING:
        compiled(session.tuner, met(session, run), advance, labels=session.chooser.promising)


def met(session: Session, run: Callable[[], None]) -> list[Problem]:
    """Return the problems of the calls in ``run``, which torch serves; the most frequent first."""
    trace = Trace()
    with session.observed(trace), session.use("torch"):
        run()
    return [problem for problem, _ in trace.met]


def shown(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Prepare, with a bar on the standard error in a terminal, and a line a kernel elsewhere."""
    with bar.shown("measures", lines=True) as advance:
        prepared(default(), model, inputs, advance)


def step(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
    """Run forward and, where gradients are on, backward; then restore buffers and random numbers.

    No ``.grad`` is written, so that no hook on one runs, such as an optimizer's or that of ``DDP``.
    """
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    inputs = (*model.parameters(), *tensors_of((*args, *(kwargs or {}).values())))
    leaves = [t for t in inputs if t.requires_grad]
    # Without a list of devices torch takes all, and warns where there is more than one.
    with torch.random.fork_rng(sorted({t.device.index for t in inputs if t.is_cuda})):
        try:
            results = _flat(model(*args, **(kwargs or {})))
            outs = [t for t in results if isinstance(t, Tensor) and t.requires_grad]
            if outs and leaves:
                ones = [torch.ones_like(out, memory_format=torch.contiguous_format) for out in outs]
                gradients(outs, leaves, ones)
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.data.copy_(before)  # unseen by a backward pass that is still to come


def _flat(value: Any) -> tuple[Any, ...]:
    """Return the values in lists, tuples and dictionaries of a model's result."""
    if isinstance(value, dict):
        return _flat(tuple(value.values()))
    return tuple(v for part in value for v in _flat(part)) if isinstance(value, list | tuple) else (value,)
