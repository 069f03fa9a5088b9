"""``nxcore explain``: the winner for an operator's sample, and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

    from nxcore.choose.explanation import Explanation
    from nxcore.spec.sample import Sample
    from nxcore.spec.spec import OpSpec


DIGITS = 19
"""A size of so many digits may be none of torch's, of 64 bits."""


def collect(
    op: str, sample: str | None, dtype: str, device: str | None, backend: str | None, shape: str | None = None
) -> dict[str, Any]:
    """Return ``Explanation.to_dict()`` for one sample of an operator, with ``shape`` if it is given."""
    from nxcore import session
    from nxcore.errors import InvalidInputError, nearest
    from nxcore.spec.device import available
    from nxcore.trust.gate import brief

    current = session.default()
    spec = current.op(op, backend=backend).spec
    names = {s.name: s for s in spec.samples}
    if sample and sample not in names:
        raise InvalidInputError(f"{op} has no sample {sample!r}{nearest(sample, names)}", argument="sample")
    dtypes = {str(d).removeprefix("torch."): d for d in spec.dtypes}
    if dtype not in dtypes:
        raise InvalidInputError(f"dtype must be one of {', '.join(dtypes)}, got {dtype!r}", argument="dtype")
    chosen = names[sample] if sample else next(iter(spec.tagged("bench")), spec.samples[0])
    if shape is not None:
        chosen = shaped(spec, _numbers(shape), [chosen] if sample else list(spec.samples), dtypes[dtype])
    head: dict[str, Any] = {"sample": chosen.name, "shape": shape}
    at = available(device)
    try:
        args = chosen.build(spec, at, dtypes[dtype])
    except (RuntimeError, MemoryError) as error:
        why = f"{op}'s arguments can't be made on {at}: {brief(error)}"
        raise InvalidInputError(why, argument="shape" if shape else "sample") from error
    named = {p.name: a for p, a in zip(spec.params, args, strict=True) if p.keyword}
    found = current.explain(op, *args[: len(args) - len(named)], backend=backend, **named)
    result = head | aside(found) | found.to_dict() | {"text": str(found.problem)}
    if found.again and shape is None:
        where = f" --device {device}" if device else ""
        result["again"] = f"nxcore tune {op} --sample {chosen.name} --dtype {dtype}{where} --again"
    return result


def traced(path: Path, line: int | None, steps: int, device: str | None) -> Any:
    """Return the ``Status`` of a trace; with ``line``, the same as ``collect`` for that one problem."""
    from nxcore import session
    from nxcore.errors import InvalidInputError
    from nxcore.offline import ahead
    from nxcore.offline.status import of_trace
    from nxcore.spec.device import available

    current, where = session.default(), available(device) if device else None
    if line is None:
        return of_trace(current, path, steps=steps, device=where)
    cells = ahead.of_trace(current.registry, path, where)
    if not 1 <= line <= len(cells):
        raise InvalidInputError(f"{path} has lines 1 to {len(cells)}, got {line}", argument="from_trace")
    cell = cells[line - 1]
    args, spec = cell.build(), cell.spec
    if cell.needs_grad:
        args = tuple(ahead.differentiable(arg) for arg in args)
    named = {p.name: a for p, a in zip(spec.params, args, strict=True) if p.keyword}
    with ahead.deterministic(cell.deterministic):
        found = current.explain(spec.name, *args[: len(args) - len(named)], **named)
    head = {"sample": f"{path}:{line}", "shape": None} | aside(found)
    again = f"nxcore tune {spec.name} --from-trace {path} --again" if found.again else ""
    return head | found.to_dict() | {"text": str(found.problem), "again": again}


def modelled(text: str) -> Any:
    """Return the ``ModelExplanation`` of the model that ``module:callable`` returns.

    The callable takes no arguments. It returns a model, or a tuple of a model and the arguments of a step.
    The model is accelerated here.
    """
    import importlib
    import sys

    import torch

    from nxcore.errors import FOREIGN, InvalidInputError, NxcoreError
    from nxcore.nn import swap
    from nxcore.offline import models
    from nxcore.trust.gate import brief

    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(module), name)
    except FOREIGN as error:
        raise InvalidInputError(
            f"--model must be module:callable, got {text!r}: {brief(error)}", argument="model"
        ) from error
    if not callable(make):
        raise InvalidInputError(
            f"--model must be module:callable, got {text!r}, a {type(make).__name__}", argument="model"
        )
    try:
        made = make()
    except FOREIGN as error:
        raise InvalidInputError(
            f"--model must be callable without arguments, but {text} raised {brief(error)}", argument="model"
        ) from error
    model, *args = made if isinstance(made, tuple) and made else (made,)
    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(
            f"--model must return a torch.nn.Module, or a tuple with one first, got {type(model).__name__}",
            argument="model",
        )
    swap.accelerate(model, watch=False)
    try:
        return models.explain(model, *args)
    except FOREIGN as error:
        if isinstance(error, NxcoreError):
            raise
        raise InvalidInputError(
            f"a step of the model of --model raised {brief(error)}", argument="model"
        ) from error


def located(text: str) -> tuple[Path, int | None]:
    """Return file and line of ``FILE[:LINE]``; an existing file of the whole name takes precedence."""
    name, _, line = text.rpartition(":")
    if name and line.isdigit() and not Path(text).exists():
        return Path(name), int(line)
    return Path(text), None


def aside(found: Explanation) -> dict[str, Any]:
    """Return label -> reason of the kernels that can't run here, and the labels of those on request only."""
    from nxcore.spec.kernel import Code

    refused = [(c.label, c.refusal) for c in found.decision.candidates if c.refusal]
    away = {label: why.reason for label, why in refused if why.code is Code.MACHINE}
    on_request = [label for label, why in refused if why.code is Code.ON_REQUEST]
    return {"unavailable": away, "on_request": on_request}


def shaped(spec: OpSpec, shape: tuple[int, ...], samples: list[Sample], dtype: torch.dtype) -> Sample:
    """Return the first sample that stays valid when its first tensor has ``shape``.

    Real workloads are tried first; within each group, samples with as many dimensions as ``shape``.

    Raises
    ------
    InvalidInputError
        If none does: no sample's other arguments fit ``shape``.
    """
    import torch

    from nxcore.errors import InvalidInputError

    def distance(sample: Sample) -> tuple[bool, ...]:
        first, plain = sample.sketches[0], all(s.plain for s in sample.sketches)
        return "bench" not in sample.tags, len(first.shape) != len(shape), not plain, bool(sample.kwargs)

    why = ""
    for sample in sorted((s for s in samples if s.sketches), key=distance):
        other = sample.shaped(shape)
        try:
            spec.check(*other.build(spec, torch.device("meta"), dtype))
        except (InvalidInputError, RuntimeError, ValueError, IndexError) as error:
            why = why or f"sample {sample.name!r}: {error}"
        else:
            return other
    raise InvalidInputError(
        f"--shape {list(shape)} doesn't fit the other arguments of any sample of {spec.name}; "
        f"{why or 'it has no sample of tensors'}",
        argument="shape",
    )


def _numbers(text: str) -> tuple[int, ...]:
    from nxcore.errors import InvalidInputError

    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < DIGITS for part in parts):
        raise InvalidInputError(f"--shape must be sizes such as 64,16,32,32, got {text!r}", argument="shape")
    return tuple(map(int, parts))


def explain(
    op: Annotated[str | None, typer.Argument(help="The operator, as in `nxcore ops`.")] = None,
    sample: Annotated[
        str | None, typer.Option(help="One of its samples. By default the first real workload.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Shape of the sample's first tensor, such as 64,16,32,32.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="The element type.")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu or cuda. By default cuda if available.")] = None,
    backend: Annotated[str | None, typer.Option(help="Only this backend.")] = None,
    from_trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:LINE]",
            help="Explain the problems that nxcore.record wrote, or the one in line LINE.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Number of steps in the trace.", min=1)] = 1,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CALLABLE",
            help="Explain what serves each module of the model that this returns, alone or in a tuple before "
            "the arguments of a step.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the winner for one of an operator's samples, and the reason. A new problem is measured first.

    With --from-trace: show the winner of each problem of a recorded run, the problems that are not measured
    yet, and the milliseconds saved in a step. With --model: show for each module the kernel that serves it,
    why, and what a call saves; nothing is measured.
    """
    from nxcore.cli import render, tables
    from nxcore.errors import InvalidInputError, present

    if [op, from_trace, model].count(None) != 2:
        raise InvalidInputError(
            "give an operator, or --from-trace FILE[:LINE], or --model MODULE:CALLABLE", argument="op"
        )
    if model is not None:
        served = modelled(model)
        render.json(served.to_dict()) if json else render.copied(str(served))
        return
    if from_trace is not None:
        path, line = located(from_trace)
        found = traced(path, line, steps, device)
        if line is None:
            render.json(found.to_dict()) if json else render.copied(str(found))
            return
    else:
        found = collect(present(op, "op"), sample, dtype, device, backend, shape)
    render.json(found) if json else tables.explain(found)
