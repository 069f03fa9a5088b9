"""The backward operator of another, derived: its signature, checks, samples, errors and ways."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from nxcore.errors import InvalidInputError
from nxcore.spec.checks import require_flags, require_shape, require_tensor
from nxcore.spec.sample import ErrorCase, Sample, rand
from nxcore.spec.spec import Cost, OpSpec, Param, Way

Shape = tuple[int, ...]


def backward_of(
    spec: OpSpec,
    reference: Callable[..., Any],
    *,
    shape: Callable[..., Shape],
    cost: Callable[..., Cost],
    magnitude: Callable[..., Any],
    params: tuple[Param, ...] = (),
    check: Callable[..., None] | None = None,
    gradients: int | Callable[..., int] = 1,
    same_dtype: bool = False,
    given: Callable[[Sample], Sample | None] | None = None,
    samples: tuple[Sample, ...] = (),
    errors: tuple[ErrorCase, ...] = (),
    **other: Any,
) -> OpSpec:
    """Return the backward operator of ``spec``: it takes ``grad`` and ``params``.

    Parameters
    ----------
    spec : OpSpec
        An operator with one differentiable result.
    reference : callable
        ``reference(grad, *arguments)``: the gradient of its first tensor, with its shape and dtype. Of
        several gradients, ``reference(grad, *arguments, output_mask)``: None where none is requested.
    shape : callable
        ``shape(*arguments)``: the shape of ``grad``, from tensors or sketches.
    cost, magnitude : callable
        As in ``OpSpec``.
    params : tuple of Param
        The parameters between ``grad`` and ``output_mask``; by default, those of ``spec``.
    check : callable
        Raises unless these arguments are valid; by default, that of ``spec``.
    gradients : int or callable
        The number of gradients, which is the length of ``output_mask``. If it depends on the arguments,
        ``gradients(*arguments)``; the mask may then be None. By default 1, without a mask.
    same_dtype : bool
        Whether ``grad`` must have the dtype of the first tensor, whose device it must have in any case.
    given : callable
        ``given(sample)``: a sample of ``spec`` as one of the backward operator, None to leave it out. By
        default, a gradient of normal numbers comes in front of its arguments.
    samples, errors : tuple
        Added to the derived ones: the samples of ``spec``; wrong gradients and masks; without ``params``, the
        errors of ``spec``.
    **other
        More attributes of the spec. Without ``terms``, those of ``spec`` apply.

    Returns
    -------
    OpSpec
        Named ``<name>_backward``.

    Examples
    --------
    >>> nxcore.ops.entropy_backward.spec.params[0]
    Param(name='grad', kind='tensor', default=<required>, keyword=False)
    >>> nxcore.ops.weighted_sum_backward.spec.params[-1].name
    'output_mask'
    """
    taken = tuple(replace(param, keyword=False) for param in params or spec.params)
    known = check or spec.check
    first = next((i for i, param in enumerate(taken) if param.kind in ("tensor", "tensors")), None)
    masked = gradients != 1
    every = (True,) * gradients if isinstance(gradients, int) else None

    def check_all(grad: Any, *args: Any) -> None:
        """Raise unless the operator is defined for the arguments and the gradient matches the output."""
        own = args[: len(taken)]
        known(*own)
        require_tensor(grad, "grad")
        require_shape(grad, tuple(shape(*own)), "grad")
        if first is not None:
            like = own[first][0] if isinstance(own[first], tuple | list) else own[first]
            require_like(grad, like, taken[first].name, same_dtype)
        if masked and (every or args[-1] is not None):
            require_flags(args[-1], gradients(*own) if callable(gradients) else gradients, "output_mask")

    def ways(_grad: Any, *args: Any) -> tuple[Way, ...]:  # the gradient is cut as the result is
        found = [way for way in spec.ways(*args[: len(taken)]) if way.result is not None]
        if not masked:
            plain = (way for way in found if way.tensors[0] is not None)
            return tuple(Way((way.result, *way.tensors), way.tensors[0], way.audits) for way in plain)
        mask = args[-1] or itertools.repeat(True)
        each = ((w, tuple(itertools.compress(w.tensors, mask))) for w in found)
        return tuple(Way((w.result, *w.tensors), None, audits=True, results=dims) for w, dims in each)

    def with_grad(sample: Sample) -> Sample:
        bound = spec.bind(*sample.args, **sample.kwargs)
        return Sample(sample.name, (rand(*shape(*bound)), *sample.args), sample.kwargs, sample.tags)

    every_sample = (*filter(None, map(given or with_grad, spec.samples)), *samples)
    more: dict[str, Any] = {"terms": lambda _grad, *args: spec.terms(*args), "dtypes": spec.dtypes}
    if not params:
        more["ways"] = ways
    if not (params or check) and spec.holds == "alike":
        more["holds"] = spec.holds
    return OpSpec(
        name=f"{spec.name}_backward",
        params=(
            Param("grad", "tensor"),
            *taken,
            *([Param("output_mask", "static", every)] if masked else []),
        ),
        reference=reference,
        check=check_all,
        cost=cost,
        samples=every_sample,
        errors=(
            *_wrong_gradients(every_sample, first is not None, same_dtype, masked),
            *(() if params else (_after_grad(case) for case in spec.errors)),
            *errors,
        ),
        magnitude=magnitude,
        **more | other,
    )


def _wrong_gradients(
    samples: tuple[Sample, ...], placed: bool, same_dtype: bool, masked: bool
) -> tuple[ErrorCase, ...]:
    """Return a smoke sample's call with wrong gradients and masks."""
    plain = next(s for s in samples if "smoke" in s.tags)
    grad, *rest = plain.args

    def case(name: str, grad: Any, match: str, **how: Any) -> ErrorCase:
        return ErrorCase(name, (grad, *rest), match=match, kwargs={**plain.kwargs, **how})

    found = [
        case("grad_of_wrong_shape", rand(*grad.shape, 2), "grad must have the output's shape"),
        case("grad_is_no_tensor", None, "grad must be a tensor, got None"),
    ]
    if placed:
        other = rand(*grad.shape, device="meta")
        found.append(case("grad_elsewhere", other, "grad must be on the device of .*, got meta"))
    if same_dtype:
        other = rand(*grad.shape, dtype=torch.float16)
        found.append(case("grad_of_another_dtype", other, "grad must have the dtype of .*, got .*float16"))
    if masked:
        found += [
            case("short_mask", grad, "output_mask must have . entries, got 1", output_mask=(True,)),
            case("not_a_mask", grad, "output_mask must be a sequence of flags", output_mask="all"),
        ]
    return tuple(found)


def _after_grad(case: ErrorCase) -> ErrorCase:
    return ErrorCase(case.name, (rand(1), *case.args), match=case.match, kwargs=case.kwargs)


def require_like(grad: Any, like: Any, name: str, same_dtype: bool = False) -> None:
    """Raise unless the gradient has the device of the argument ``name``, and on request its dtype.

    >>> require_like(torch.ones(2), torch.ones(2, 3), "x")
    """
    if grad.device != like.device:
        raise InvalidInputError(
            f"grad must be on the device of {name}, {like.device}, got {grad.device}", argument="grad"
        )
    if same_dtype and grad.dtype != like.dtype:
        raise InvalidInputError(
            f"grad must have the dtype of {name}, {like.dtype}, got {grad.dtype}", argument="grad"
        )
