"""``nxcore explain``: who would run an operator's sample, here or on another device, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

    from nxcore.choose.explanation import Explanation
    from nxcore.spec.sample import Sample
    from nxcore.spec.spec import OpSpec


def collect(
    op: str, sample: str | None, dtype: str, device: str | None, backend: str | None, shape: str | None = None
) -> dict[str, Any]:
    """Return ``Explanation.to_dict()`` for one sample of an operator, of another shape if one is given."""
    import torch

    from nxcore import session
    from nxcore.choose import foreign
    from nxcore.errors import InvalidInputError, nearest
    from nxcore.spec.device import available
    from nxcore.spec.problem import Problem

    current = session.default()
    spec = current.op(op, backend=backend).spec
    names = {s.name: s for s in spec.samples}
    if sample and sample not in names:
        raise InvalidInputError(f"{op} has no sample {sample!r}{nearest(sample, names)}", argument="sample")
    dtypes = {str(d).removeprefix("torch."): d for d in spec.dtypes}
    if dtype not in dtypes:
        raise InvalidInputError(f"dtype must be one of {', '.join(dtypes)}, got {dtype!r}", argument="dtype")
    asked = names[sample] if sample else next(iter(spec.tagged("bench")), spec.samples[0])
    if shape is not None:
        asked = shaped(spec, _numbers(shape), [asked] if sample else list(spec.samples), dtypes[dtype])
    told: dict[str, Any] = {"sample": asked.name, "shape": shape, "unavailable": {}, "on_request": []}
    if device and device.partition(":")[0] not in ("cpu", "cuda"):
        if backend:
            raise InvalidInputError(
                "--backend can't be asked of a device that isn't here", argument="backend"
            )
        problem = Problem.of(spec, asked.build(spec, torch.device("meta"), dtypes[dtype]))
        found = foreign.explained(current.wisdom.store, problem, device)
    else:
        args = asked.build(spec, available(device), dtypes[dtype])
        named = {p.name: a for p, a in zip(spec.params, args, strict=True) if p.keyword}
        found = current.explain(op, *args[: len(args) - len(named)], backend=backend, **named)
        told |= aside(found)
    result = told | found.to_dict() | {"text": str(found.problem)}
    if found.again and shape is None:
        where = f" --device {device}" if device else ""
        result["again"] = f"nxcore tune {op} --sample {asked.name} --dtype {dtype}{where} --again"
    return result


def traced(path: Path, line: int | None, steps: int, device: str | None) -> Any:
    """Return a trace's ``Status``; of the one problem of a ``line``, what ``collect`` returns of a sample."""
    from nxcore import session
    from nxcore.errors import InvalidInputError
    from nxcore.offline import ahead, survey
    from nxcore.spec.device import available

    current, where = session.default(), available(device) if device else None
    if line is None:
        return survey.of_trace(current, path, steps=steps, device=where)
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
    told = {"sample": f"{path}:{line}", "shape": None} | aside(found)
    again = f"nxcore tune {spec.name} --from-trace {path} --again" if found.again else ""
    return told | found.to_dict() | {"text": str(found.problem), "again": again}


def located(text: str) -> tuple[Path, int | None]:
    """Return file and line of ``FILE[:LINE]``; a file of that very name comes first."""
    name, _, line = text.rpartition(":")
    if name and line.isdigit() and not Path(text).exists():
        return Path(name), int(line)
    return Path(text), None


def aside(found: Explanation) -> dict[str, Any]:
    """Return label -> reason of what this machine can't run, and the labels of what runs on request only."""
    from nxcore.spec.kernel import Code

    refused = [(c.label, c.refusal) for c in found.decision.candidates if c.refusal]
    away = {label: why.reason for label, why in refused if why.code is Code.MACHINE}
    asked = [label for label, why in refused if why.code is Code.ON_REQUEST]
    return {"unavailable": away, "on_request": asked}


def shaped(spec: OpSpec, shape: tuple[int, ...], samples: list[Sample], dtype: torch.dtype) -> Sample:
    """Return the first sample that makes a call with ``shape`` in place of its first tensor's.

    Real workloads come first; among them, and after them, those of that many dimensions.

    Raises
    ------
    InvalidInputError
        If none does: the other arguments can't follow.
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
        f"--shape {list(shape)} can't be the first tensor's of a call of {spec.name} whose other arguments "
        f"are a sample's; {why or 'it has no sample of tensors'}",
        argument="shape",
    )


def _numbers(text: str) -> tuple[int, ...]:
    from nxcore.errors import InvalidInputError

    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise InvalidInputError(f"--shape must be sizes such as 64,16,32,32, got {text!r}", argument="shape")
    return tuple(map(int, parts))


def command(
    op: Annotated[str | None, typer.Argument(help="The operator, as in `nxcore ops`.")] = None,
    sample: Annotated[
        str | None, typer.Option(help="One of its samples; the first real workload by default.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="In place of the sample's first tensor's shape, such as 64,16,32,32.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="The element type.")] = "float32",
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu or cuda, cuda where there is one; or the name of a device that there is wisdom of."
        ),
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Only this backend.")] = None,
    from_trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:LINE]",
            help="The problems that nxcore.record wrote, as far as they are known; one of them with a line.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="How many steps the trace is of.", min=1)] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell who would run one of an operator's samples, and why; here, it is measured if it is new.

    With a trace, tell what serves the problems of a recorded run, what is yet to be measured, and how many
    milliseconds a step saves.
    """
    from nxcore.cli import render
    from nxcore.errors import InvalidInputError

    if (op is None) == (from_trace is None):
        raise InvalidInputError("give an operator, or --from-trace FILE[:LINE]", argument="op")
    if from_trace is not None:
        path, line = located(from_trace)
        found = traced(path, line, steps, device)
        if line is None:
            render.json(found.to_dict()) if json else render.copied(str(found))
            return
    else:
        assert op is not None  # noqa: S101  one of both was given
        found = collect(op, sample, dtype, device, backend, shape)
    render.json(found) if json else render.explain(found)
