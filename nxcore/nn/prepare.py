"""prepared: a model's kernels are compiled and measured before its first step."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from nxcore.choose.ahead import Advance, compiled, pays
from nxcore.observe.record import Trace
from nxcore.session import Session, default
from nxcore.spec.problem import tensors_of


def prepared(
    session: Session, model: nn.Module, inputs: tuple[Any, ...], advance: Advance = lambda *_: None
) -> None:
    """Measure the problems of one call of ``model``, and of its backward pass where it has one.

    The kernels are compiled first, by workers where there are several. The model's buffers and gradients and
    torch's random state are as before, and so are the inputs'.
    """
    with _unchanged(model, inputs):
        if pays(session.tuner):
            trace = Trace()
            with session.observed(trace), session.policy("frozen"):
                _step(model, inputs)
            compiled(session.tuner, (problem for problem, _ in trace.met), advance)
        with session.policy("measure"):
            _step(model, inputs)


def shown(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Prepare, with a bar on the standard error in a terminal, and a line a kernel elsewhere."""
    session = default()
    if not sys.stderr.isatty():
        prepared(session, model, inputs, lambda what, done, of: _line(f"compiled {done}/{of}: {what}"))
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measures", total=None)
        prepared(
            session,
            model,
            inputs,
            lambda what, done, of: bar.update(task, description=what, completed=done, total=of),
        )


def _line(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _step(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    results = [t for t in tensors_of(_flat(model(*inputs))) if t.requires_grad]
    if results and torch.is_grad_enabled():
        torch.autograd.backward(results, [torch.ones_like(t) for t in results])


def _flat(value: Any) -> tuple[Any, ...]:
    """Return the values in lists, tuples and dictionaries of a model's result."""
    if isinstance(value, dict):
        return _flat(tuple(value.values()))
    return tuple(v for part in value for v in _flat(part)) if isinstance(value, list | tuple) else (value,)


@contextlib.contextmanager
def _unchanged(model: nn.Module, inputs: tuple[Any, ...]) -> Iterator[None]:
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    leaves = [*model.parameters(), *(t for t in tensors_of(inputs) if t.is_leaf)]
    grads = [(t, t.grad) for t in leaves]
    for tensor in leaves:
        tensor.grad = None
    try:
        with torch.random.fork_rng(devices=sorted({t.device.index or 0 for t in leaves if t.is_cuda})):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for tensor, grad in grads:
            tensor.grad = grad
