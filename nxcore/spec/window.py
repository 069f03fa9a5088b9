"""Windows as data: the 2-d window of a pool or a convolution, and its positions on the image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.spec.checks import brief
from nxcore.spec.problem import TensorMeta

Pair = tuple[int, int]


def pair(value: Any, name: str, *, least: int = 1) -> Pair:
    """Return ``value`` as (vertical, horizontal); an integer is both.

    Raises
    ------
    InvalidInputError
        If it is neither an integer nor a sequence of one or two, or is below ``least``.

    Examples
    --------
    >>> pair(3, "stride")
    (3, 3)
    """
    if type(value) is int and value >= least:  # the common case; a miss calls this a dozen times
        return value, value
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(given) not in (1, 2) or any(not isinstance(v, int) or isinstance(v, bool) for v in given):
        raise InvalidInputError(
            f"{name} must be an integer or a pair of integers, got {value}", argument=name
        )
    if any(v < least for v in given):
        raise InvalidInputError(f"{name} must be at least {least}, got {value}", argument=name)
    return given[0], given[-1]


@dataclass(frozen=True, slots=True)
class Window:
    """A window on an image, every attribute a pair (vertical, horizontal).

    Output (i, j) sees the inputs ``i * stride - padding + tap * dilation`` that lie on the image, for each
    tap below ``kernel``.

    Attributes
    ----------
    image, outputs : (int, int)
        The sizes of the input and of the output.
    kernel, stride, padding, dilation : (int, int)
        As in torch; ``padding`` is above and to the left.

    Examples
    --------
    >>> window = Window.of_pool((1, 3, 8, 8), 3, stride=2, padding=1)
    >>> window.outputs, window.taps
    ((4, 4), 9)
    """

    image: Pair
    outputs: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @classmethod
    def of_pool(
        cls,
        size: tuple[int, ...],
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Window:
        """Describe a pool over the last two of ``size``; no stride means that of the kernel, as in torch.

        Raises
        ------
        InvalidInputError
            If an argument is malformed, the padding is more than half the kernel, or no output is left.
        """
        kernel = pair(kernel_size, "kernel_size")
        steps = kernel if stride in (None, (), []) else pair(stride, "stride")
        pads, gaps = pair(padding, "padding", least=0), pair(dilation, "dilation")
        if any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
            raise InvalidInputError(
                f"padding must be at most half of kernel_size {kernel}, got {pads}", argument="padding"
            )
        image = _image(size)
        outputs = tuple(
            _pooled(n, k, s, p, d, bool(ceil_mode))
            for n, k, s, p, d in zip(image, kernel, steps, pads, gaps, strict=True)
        )
        return cls(image, _some(outputs, image, kernel), kernel, steps, pads, gaps)

    @classmethod
    def of_convolution(
        cls, size: tuple[int, ...], kernel: Pair, stride: Any = 1, padding: Any = 0, dilation: Any = 1
    ) -> Window:
        """Describe a convolution over the last two of ``size``; padding may be "valid" or "same".

        Raises
        ------
        InvalidInputError
            If an argument is malformed, or no output is left.
        """
        steps, gaps = pair(stride, "stride"), pair(dilation, "dilation")
        image = _image(size)
        reach = tuple(d * (k - 1) for d, k in zip(gaps, kernel, strict=True))
        if isinstance(padding, str):
            if padding not in ("valid", "same"):
                raise InvalidInputError(
                    f"padding must be integers, 'valid' or 'same', got {padding!r}", argument="padding"
                )
            if padding == "same" and steps != (1, 1):
                raise InvalidInputError(f"stride must be 1 where padding is 'same', got {steps}")
            total = reach if padding == "same" else (0, 0)
            before = tuple(r // 2 for r in total)
        else:
            before = pair(padding, "padding", least=0)
            total = tuple(2 * p for p in before)
        outputs = tuple(
            (n + t - r - 1) // s + 1 for n, t, r, s in zip(image, total, reach, steps, strict=True)
        )
        return cls(image, _some(outputs, image, kernel), kernel, steps, (before[0], before[1]), gaps)

    @property
    def taps(self) -> int:
        """The number of inputs of a window that lies entirely on the image."""
        return self.kernel[0] * self.kernel[1]

    @property
    def barren(self) -> bool:
        """Whether some windows hold no element of the image, because a step between taps passes over it.

        Only the first windows can be empty: torch lets no window start behind the image.
        """
        return any(
            d > n and any((i * s - p) % d >= n for i in range(min(o, -(-p // s))))
            for n, o, s, p, d in zip(
                self.image, self.outputs, self.stride, self.padding, self.dilation, strict=True
            )
        )

    @property
    def padded(self) -> tuple[int, int, int, int]:
        """The padding (left, right, above, below) that contains every window, as torch's pad takes it."""
        after = [
            max((o - 1) * s + d * (k - 1) + 1 - p - n, 0)
            for n, o, k, s, p, d in zip(
                self.image, self.outputs, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        ]
        return self.padding[1], after[1], self.padding[0], after[0]

    def slices(self) -> Iterator[tuple[Any, ...]]:
        """Yield, tap by tap in row-major order, slices of the outputs' inputs on the ``padded`` image."""
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                starts = (i * self.dilation[0], j * self.dilation[1])
                yield (
                    ...,
                    *(
                        slice(a, a + (o - 1) * s + 1, s)
                        for a, o, s in zip(starts, self.outputs, self.stride, strict=True)
                    ),
                )


def _image(size: tuple[int, ...]) -> Pair:
    return size[-2], size[-1]


def _pooled(n: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    out = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
    # The last window must start on the image or in the padding before it.
    return out - 1 if ceil_mode and (out - 1) * s >= n + p else out


def _some(outputs: tuple[int, ...], image: Pair, kernel: Pair) -> Pair:
    if min(outputs) < 1:
        raise InvalidInputError(
            f"x must be at least as large as the window: an image of {image} and a kernel of {kernel} "
            f"leave {tuple(outputs)}",
            argument="x",
        )
    return outputs[0], outputs[1]


def require_image(x: Any, name: str = "x") -> None:
    """Raise unless ``x`` is (C, H, W) or (N, C, H, W), where only N may be 0.

    Raises
    ------
    InvalidInputError
        With the shape that came.

    Examples
    --------
    >>> require_image(torch.ones(2, 3))
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: x must be (C, H, W) or (N, C, H, W) with ..., got (2, 3)
    """
    shape = tuple(x.shape)
    if len(shape) not in (3, 4) or 0 in shape[-3:]:
        raise InvalidInputError(
            f"{name} must be (C, H, W) or (N, C, H, W) with nothing but N of size 0, got {shape}",
            argument=name,
        )


def require_memory_format(value: Any, rank: int) -> None:
    """Raise unless ``value`` is a memory format of images with ``rank`` dimensions.

    >>> require_memory_format(torch.channels_last, 3)
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: memory_format must be contiguous_format or channels_last, ...
    """
    known = (torch.contiguous_format, torch.channels_last) if rank == 4 else (torch.contiguous_format,)
    if not any(value is form for form in known):
        raise InvalidInputError(
            f"memory_format must be contiguous_format or channels_last, the latter for 4 dimensions, "
            f"got {brief(value)}",
            argument="memory_format",
        )


def memory_format(x: Any) -> torch.memory_format:
    """Return the memory format that torch gives to results of ``x``, a tensor or its description.

    The rule of ``c10::is_channels_last_strides_2d`` in torch: where sizes are 1, the strides decide.

    >>> memory_format(torch.ones(1, 3, 2, 2).to(memory_format=torch.channels_last))
    torch.channels_last
    """
    shape, strides = tuple(x.shape), tuple(x.stride())
    if len(shape) != 4 or strides[1] == 0:
        return torch.contiguous_format
    least = 0
    for d in (1, 3, 2, 0):
        if shape[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return torch.contiguous_format
        least = strides[d] * max(shape[d], 1)
    return torch.channels_last


def dense(tensor: Tensor, form: torch.memory_format) -> Tensor:
    """Return ``tensor`` dense in a memory format; unchanged inside ``vmap``, which knows only one format.

    >>> dense(torch.ones(1, 3, 2, 2), torch.channels_last).stride()
    (12, 1, 6, 3)
    """
    mapped = form != torch.contiguous_format and not torch.compiler.is_dynamo_compiling()
    if mapped and torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # noqa: SLF001  no public test
        return tensor
    return tensor.contiguous(memory_format=form)


def laid_out(
    shape: tuple[int, ...], form: torch.memory_format, dtype: torch.dtype, device: torch.device
) -> TensorMeta:
    """Describe a dense tensor in a memory format.

    >>> laid_out((1, 3, 2, 2), torch.channels_last, torch.float32, torch.device("cpu")).strides
    (12, 1, 6, 3)
    """
    if form == torch.contiguous_format and all(
        type(n) is int and n for n in shape
    ):  # fast: the first call of a problem waits for it
        return TensorMeta.row_major(tuple(shape), dtype, device)
    strides = torch.empty(shape, device="meta", memory_format=form).stride()
    return TensorMeta(tuple(shape), strides, dtype, device)


def window_of(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any) -> Window:
    """Describe the convolution's window.

    >>> window_of(torch.ones(1, 3, 8, 8), torch.ones(3, 1, 3, 3), 1, "same", 1).padding
    (1, 1)
    """
    height, width = weight.shape[-2:]
    return Window.of_convolution(tuple(x.shape), (int(height), int(width)), stride, padding, dilation)
