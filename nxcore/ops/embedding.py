"""embedding: rows of a weight that an index names.

    y[i] = weight[input[i]]

Semantics of ``torch.nn.functional.embedding`` without ``max_norm``, which writes to the weight, and without
``sparse``. The gradient of the weight, ``embedding_backward``, is ``embedding_dense_backward``:

    grad_weight[v] = scale[v] sum of grad[i] over all i with input[i] = v, and 0 for padding_idx
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.embedding_dense_backward import SPEC as DENSE
from nxcore.ops.index_add import BENCH, SMOKE, require_index
from nxcore.ops.rms_norm import require_number
from nxcore.plugin import (
    DEGENERATE,
    FLOATS,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Parts,
    Problem,
    Sample,
    TensorMeta,
    Way,
    brief,
    rand,
    require_flag,
    require_flags,
    require_tensor,
)


def reference(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return the rows of ``weight`` that ``input`` names.

    Parameters
    ----------
    input : Tensor
        int32 or int64, any shape. An index that there isn't ends the call with torch's error, on a CUDA
        device with one of the device.
    weight : Tensor
        Shape (rows, columns), floating, any strides.
    padding_idx : int, optional
        A row that has no gradient; below 0 it counts from the end.
    max_norm : None
        torch's function alone renormalises, as it writes to ``weight``.
    norm_type : float, default 2.0
        Of ``max_norm``.
    scale_grad_by_freq : bool, default False
        Whether the gradient of each row is divided by how often it is looked up.
    sparse : bool, default False
        torch's function alone has sparse gradients.

    Returns
    -------
    Tensor
        Shape (*input.shape, columns), dtype of ``weight``, row-major.

    Raises
    ------
    InvalidInputError
        If shapes, dtypes or devices don't fit, or ``max_norm`` or ``sparse`` is given.

    Examples
    --------
    >>> nxcore.ops.embedding(torch.tensor([1, 0, 1]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.],
            [3., 4.]])
    """
    return functional.embedding(input, weight, padding_idx, None, 2.0, scale_grad_by_freq).contiguous()


def check(
    input: Any, weight: Any, padding_idx: Any, max_norm: Any, norm_type: Any, by_freq: Any, sparse: Any
) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(input, "input", floating=False)
    require_tensor(weight, "weight")
    require_index(input, "input", weight)
    if weight.ndim != 2:
        message = f"weight must have shape (rows, columns), got {tuple(weight.shape)}"
        raise InvalidInputError(message, argument="weight")
    rows = weight.shape[0]
    if not rows and input.numel():
        raise InvalidInputError("weight must have a row, as input names some, got none", argument="weight")
    whole = isinstance(padding_idx, int) and not isinstance(padding_idx, bool)
    if padding_idx is not None and not (whole and -rows <= padding_idx < rows):
        message = f"padding_idx must be None, or from {-rows} to {rows - 1}, got {brief(padding_idx)}"
        raise InvalidInputError(message, argument="padding_idx")
    require_number(norm_type, "norm_type")
    require_flag(by_freq, "scale_grad_by_freq")
    require_flag(sparse, "sparse")
    torchs = "which torch.nn.functional.embedding does"
    if max_norm is not None:
        message = f"max_norm must be None: to renormalise writes to weight, {torchs}, got {brief(max_norm)}"
        raise InvalidInputError(message, argument="max_norm")
    if sparse:
        message = f"sparse must be False: gradients are dense, others are torch's, {torchs}, got True"
        raise InvalidInputError(message, argument="sparse")


def outputs(input: Any, weight: Any, *_: Any) -> TensorMeta | None:
    """Describe the result; None where there is nothing."""
    shape = (*input.shape, weight.shape[1])
    return TensorMeta.row_major(shape, weight.dtype, weight.device) if 0 not in shape else None


def cost(input: Any, weight: Any, *_: Any) -> Cost:
    """Count the index and the rows read once, the rows written once."""
    rows = input.numel() * weight.shape[1] * weight.element_size()
    return Cost(bytes=input.nbytes + 2 * rows, flops=0)


def _backward(
    grad: Any, mask: tuple[bool, ...], input: Any, weight: Any, padding: Any, *rest: Any
) -> tuple[Any, ...]:
    rows = weight.shape[0]
    return grad, input, rows, -1 if padding is None else padding % rows, rest[2], mask


def _sample(name: str, shape: tuple[int, ...], rows: int, columns: int, *tags: str, **how: Any) -> Sample:
    dtype, given = how.pop("dtype", torch.int64), {k: how.pop(k) for k in ("padding_idx",) if k in how}
    index = rand(*shape, low=0, high=rows, dtype=dtype, layout=how.pop("index", "contiguous"))
    return Sample(name, (index, rand(rows, columns, **how)), given, frozenset(tags or {"edge"}))


SAMPLES = (
    _sample("last_block_partly_filled", (3, 37), 11, 13, *SMOKE),
    _sample("whole_vectors", (70,), 9, 64, *SMOKE),
    _sample("narrow_index", (5, 9), 17, 24, *SMOKE, dtype=torch.int32),
    _sample("padding", (5, 9), 17, 24, padding_idx=-2),
    _sample("wide_rows", (7,), 5, 1031),
    _sample("one_index", (), 5, 6),
    _sample("one_row", (9,), 1, 6),
    _sample("one_column", (9,), 7, 1),
    _sample("nan", (20,), 9, 8, values="nan"),
    _sample("infinities", (20,), 9, 8, values="inf"),
    _sample("no_indices", (0,), 5, 6, *DEGENERATE),
    _sample("no_columns", (5,), 4, 0, *DEGENERATE),
    _sample("odd_storage_offset", (20,), 9, 8, layout="sliced"),
    _sample("transposed", (20,), 9, 8, layout="transposed"),
    _sample("gaps_in_memory", (20,), 9, 8, layout="strided"),
    _sample("index_with_gaps", (6, 5), 9, 8, index="strided"),
    _sample("index_transposed", (6, 5), 9, 8, index="transposed"),
    _sample("channels_last", (4, 5, 3, 2), 9, 8, index="channels_last"),
    _sample("expanded", (20,), 9, 8, layout="expanded"),
    _sample("tokens", (4, 4096), 50257, 768, *BENCH),
)

INDEX = rand(3, low=0, high=4, dtype=torch.int64)
ERRORS = (
    ErrorCase("not_a_tensor", ([1], rand(4, 3)), "input must be a tensor, got list"),
    ErrorCase("floating_index", (rand(3), rand(4, 3)), "input must have dtype torch.int32 or torch.int64"),
    ErrorCase("whole_weight", (INDEX, rand(4, 3, dtype=torch.int64)), "weight must have a floating dtype"),
    ErrorCase("no_matrix", (INDEX, rand(4)), r"weight must have shape \(rows, columns\), got \(4,\)"),
    ErrorCase("padding", (INDEX, rand(4, 3), 4), "padding_idx must be None, or from -4 to 3, got 4"),
    ErrorCase("max_norm", (INDEX, rand(4, 3), None, 1.0), "max_norm must be None: .* got 1.0"),
    ErrorCase("norm_type", (INDEX, rand(4, 3), None, None, "two"), "norm_type must be a number, got 'two'"),
    ErrorCase("flag", (INDEX, rand(4, 3)), "scale_grad_by_freq must be True", {"scale_grad_by_freq": 1}),
    ErrorCase("sparse", (INDEX, rand(4, 3)), "sparse must be False: .* got True", {"sparse": True}),
    ErrorCase("elsewhere", (INDEX, rand(4, 3, device="meta")), "input must be on the device meta, got cpu"),
)

SPEC = OpSpec(
    name="embedding",
    params=(
        *(Param("input", "tensor"), Param("weight", "tensor")),
        *(Param("padding_idx", "static", None), Param("max_norm", "static", None)),
        *(Param("norm_type", "static", 2.0), Param("scale_grad_by_freq", "static", False)),
        Param("sparse", "static", False),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=lambda index, weight, *rest: reference(index, weight.abs(), *rest),
    terms=lambda *_: 1,
    exact=True,
    gradient=Gradient("embedding_backward", _backward, saves=("input",)),
    outputs=outputs,
    ways=lambda index, *_: tuple(Way((d, None), d, audits=True) for d in range(index.ndim)),
    sketches=lambda index, weight, *_: {
        "input": rand(*index.shape, low=0, high=weight.shape[0], dtype=index.dtype)
    },
)

Result = tuple[None, Tensor | None]


def gradient(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    output_mask: tuple[bool, bool] = (True, True),
) -> Result:
    """Return the gradients of ``embedding``: none of the index, and that of the weight.

    Parameters
    ----------
    grad_output, indices, num_weights, padding_idx, scale_grad_by_freq
        As in ``embedding_dense_backward``.
    output_mask : tuple of bool
        Whether the gradients of the index, which has none, and of the weight are requested.

    Returns
    -------
    grad_input : None
    grad_weight : Tensor or None
        Shape (num_weights, columns), dtype of ``grad_output``.

    Raises
    ------
    InvalidInputError
        As ``embedding_dense_backward``.

    Examples
    --------
    >>> nxcore.ops.embedding_backward(torch.ones(3, 1), torch.tensor([1, 0, 1]), 2, -1, False)[1]
    tensor([[1.],
            [2.]])
    """
    given = (grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
    return None, DENSE.reference(*given) if output_mask[1] else None


def gradient_check(*args: Any) -> None:
    """Raise unless the gradients are defined for the arguments."""
    DENSE.check(*args[:-1])
    require_flags(args[-1], 2, "output_mask")


def gradient_outputs(*args: Any) -> tuple[None, TensorMeta | None] | None:
    """Describe the gradients; None where there is nothing."""
    made = DENSE.outputs(*args[:-1])
    return None if made is None else (None, made if args[-1][1] else None)


def _split(problem: Problem) -> tuple[Problem | None, ...]:
    return (Problem(DENSE, problem.args[:-1]) if problem["output_mask"][1] else None,)


def _join(_problem: Problem, total: Callable[..., Tensor] | None) -> Callable[..., Result]:
    def call(*args: Any) -> Result:
        return None, None if total is None else total(*args[:-1])

    return call


BACKWARD = OpSpec(
    name="embedding_backward",
    params=(*DENSE.params, Param("output_mask", "static", (True, True))),
    reference=gradient,
    check=gradient_check,
    cost=lambda *args: DENSE.cost(*args[:-1]),
    samples=DENSE.samples,
    errors=DENSE.errors,
    magnitude=lambda *args: (None, DENSE.magnitude(*args[:-1]) if args[-1][1] else None),
    terms=lambda *args: DENSE.terms(*args[:-1]),
    outputs=gradient_outputs,
    idle=lambda problem: "" if problem["output_mask"][1] else "an index has no gradient",
    sketches=lambda *args: DENSE.sketches(*args[:-1]),
    ways=lambda grad_output, *args: (
        Way((grad_output.ndim - 1, None), None, audits=True, results=(1,) * args[-1][1]),
    ),
    parts=Parts(("embedding_dense_backward",), _split, _join, FLOATS),
)
