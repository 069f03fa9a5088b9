"""``verify``: one function that judges a function of tensors by nxcore's gate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nxcore.errors import InvalidInputError, UnknownOperatorError
from nxcore.ops import nxcore_ops
from nxcore.spec.problem import leaves
from nxcore.spec.sample import Sample
from nxcore.spec.spec import OpSpec
from nxcore.testing.referee.report import Check, Report
from nxcore.testing.referee.subject import Call, Case, Subject, device_of
from nxcore.trust.state import State
from nxcore.trust.truth import without_out

Make = Callable[[torch.Generator], tuple[Any, ...]]


def verify(
    candidate: Call,
    operator_or_reference: str | Call,
    samples: Sequence[tuple[Any, ...] | Make] | None = None,
    *,
    seed: int = 0,
) -> Report:
    """Judge a kernel: run it in many ways, and compare with the float64 result of a reference.

    No tolerance is given. The bounds of nxcore's gate follow from the dtype, from torch's own error on the
    same call, and from how far a relative error in the inputs moves the result. Beside the samples as given,
    the candidate runs on calls made of them: other numbers, layouts and sizes, NaN and infinities, other
    numbers at the same address, NaN in the memory around its inputs and in new memory. It may raise there; a
    wrong result is a failure everywhere. The page "Harnesses" lists the checks.

    Parameters
    ----------
    candidate : callable
        Takes the arguments of the reference; returns a tensor or a tuple of tensors of any dtypes and shapes.
    operator_or_reference : str or callable
        The name of an operator of nxcore, or a function of tensors that torch can run in float64.
    samples : sequence, optional
        Tuples of arguments, or callables that make one from a ``torch.Generator``. Each in the dtype and on
        the device that is to be judged. By default the operator's own, in float32 on the CPU.
    seed : int
        Seed of all numbers that are drawn.

    Returns
    -------
    Report
        With ``passed``, ``checks``, ``json()``, and a table as its ``str()``.

    Raises
    ------
    UnknownOperatorError
        If there is no operator of that name.
    InvalidInputError
        If a reference has no samples, a sample isn't a tuple with tensors in it, or the reference fails on a
        sample or isn't computed in the dtype of its inputs.

    Examples
    --------
    >>> def softmax(x):
    ...     e = x.exp()
    ...     return e / e.sum(-1, keepdim=True)
    >>> report = nxcore.testing.verify(softmax, lambda x: x.softmax(-1), [(torch.randn(4, 33),)])
    >>> report.passed, report.failures[0].sample
    (False, 'sample 0, numbers of 1000')
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(operator_or_reference, str):
        spec = _spec(operator_or_reference)
        subject = Subject(functools.partial(_spelled, spec, candidate), spec.reference, generator, spec)
        made = _made_of(spec, samples, generator)
    else:
        spec, subject = None, Subject(candidate, operator_or_reference, generator)
        if not samples:
            raise InvalidInputError(
                "samples are needed beside a reference: tuples of tensors", argument="samples"
            )
        made = [(f"sample {i}", _given(s, generator)) for i, s in enumerate(samples)]
    cases = [case for name, args in made for case in subject.cases(name, args)]
    return Report(_name(candidate), _name(operator_or_reference), seed, checked(subject, cases))


def checked(subject: Subject, cases: Sequence[Case]) -> tuple[Check, ...]:
    """Return all checks of a candidate on these calls, and leave the process as it was."""
    device = device_of(cases[0].args)
    before = State.now(device)
    try:
        checks = [check for case in cases for check in subject.checks(case)]
        return (*checks, *subject.last(cases[0]))
    finally:
        before.restore(device)
        before.rewind()


def _spec(name: str) -> OpSpec:
    specs = {spec.name: spec for spec in nxcore_ops()}
    if name not in specs:
        raise UnknownOperatorError(name, specs)
    return specs[name]


def _spelled(spec: OpSpec, candidate: Call, *args: Any) -> Any:
    """Call a candidate as a user calls the operator: without an ``out``, and without defaults at the end."""
    kept = [(p, a) for p, a in zip(spec.params, args, strict=True) if p.kind != "out"]
    while kept and kept[-1][0].default is kept[-1][1]:
        kept.pop()
    keywords = {p.name: a for p, a in kept if p.keyword and p.default is not a}
    return candidate(*(a for p, a in kept if not p.keyword), **keywords)


def _made_of(
    spec: OpSpec, samples: Sequence[Any] | None, generator: torch.Generator
) -> list[tuple[str, tuple[Any, ...]]]:
    if samples is not None:
        return [(f"sample {i}", spec.bind(*_given(s, generator))) for i, s in enumerate(samples)]
    cpu = torch.device("cpu")
    kept: list[Sample] = [s for s in spec.samples if not s.tags & {"bench", "huge"}]
    return [(s.name, without_out(spec, s.build(spec, cpu, torch.float32))) for s in kept]


def _given(sample: Any, generator: torch.Generator) -> tuple[Any, ...]:
    made = sample(generator) if callable(sample) else sample
    if not isinstance(made, tuple) or not any(True for _ in leaves(made)):
        raise InvalidInputError(
            f"samples must be tuples with tensors, or make one; got {type(made).__name__}", argument="samples"
        )
    return made


def _name(what: Any) -> str:
    return what if isinstance(what, str) else getattr(what, "__name__", type(what).__name__)
