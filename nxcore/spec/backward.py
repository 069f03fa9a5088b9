"""The backward operator of another, derived: its signature, checks, samples, errors and ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nxcore.errors import InvalidInputError
from nxcore.spec.checks import require_tensor
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
    samples: tuple[Sample, ...] = (),
    errors: tuple[ErrorCase, ...] = (),
    **other: Any,
) -> OpSpec:
    """Return the backward operator of ``spec``, which takes ``grad`` and the arguments of ``spec``.

    Parameters
    ----------
    spec : OpSpec
        An operator with one result, differentiated with respect to its first tensor.
    reference : callable
        ``reference(grad, *arguments)``: the gradient of that tensor, with its shape and dtype.
    shape : callable
        ``shape(*arguments)``: the shape of the result, from tensors or sketches.
    cost, magnitude : callable
        As in ``OpSpec``.
    samples, errors : tuple
        Added to the derived ones, which are the samples and errors of ``spec`` with a gradient in front.
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
    """

    def check(grad: Any, *args: Any) -> None:
        """Raise unless the operator is defined for the arguments and the gradient matches the output."""
        spec.check(*args)
        require_grad(grad, args[0], spec.params[0].name, tuple(shape(*args)))

    def ways(_grad: Any, *args: Any) -> tuple[Way, ...]:  # the gradient is cut as the result is
        found = (way for way in spec.ways(*args) if None not in (way.result, way.tensors[0]))
        return tuple(Way((way.result, *way.tensors), way.tensors[0]) for way in found)

    def given(sample: Sample) -> Sample:
        grad = rand(*shape(*sample.args))
        return Sample(sample.name, (grad, *sample.args), sample.kwargs, sample.tags)

    plain = next(s.args for s in spec.samples if "smoke" in s.tags)
    derived = (
        ErrorCase(
            "grad_of_wrong_shape", (rand(*shape(*plain), 2), *plain), match="grad must have the output's"
        ),
        ErrorCase("grad_is_no_tensor", (None, *plain), match="grad must be a tensor, got None"),
        ErrorCase(
            "grad_elsewhere",
            (rand(*shape(*plain), device="meta"), *plain),
            match=f"grad must be on the device of {spec.params[0].name}, cpu, got meta",
        ),
        *(ErrorCase(e.name, (rand(1), *e.args), match=e.match, kwargs=e.kwargs) for e in spec.errors),
    )
    more: dict[str, Any] = {"terms": lambda _grad, *args: spec.terms(*args), "dtypes": spec.dtypes}
    more |= other
    return OpSpec(
        name=f"{spec.name}_backward",
        params=(Param("grad", "tensor"), *spec.params),
        reference=reference,
        check=check,
        cost=cost,
        samples=(*map(given, spec.samples), *samples),
        errors=(*derived, *errors),
        magnitude=magnitude,
        ways=ways,
        **more,
    )


def require_grad(grad: Any, like: Any, name: str, shape: Shape) -> None:
    """Raise unless the gradient has the output's ``shape`` and the device of the argument ``name``.

    >>> require_grad(torch.ones(2), torch.ones(2, 3), "x", (2,))
    """
    require_tensor(grad, "grad")
    if tuple(grad.shape) != shape:
        raise InvalidInputError(
            f"grad must have the output's shape {shape}, got {tuple(grad.shape)}", argument="grad"
        )
    if grad.device != like.device:
        raise InvalidInputError(
            f"grad must be on the device of {name}, {like.device}, got {grad.device}", argument="grad"
        )
