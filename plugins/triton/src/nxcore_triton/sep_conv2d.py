"""sep_conv2d: a program makes some channels of some pixels, its depthwise part in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem, window_of
from nxcore_triton import separable
from nxcore_triton.launch import Launch
from nxcore_triton.strips import Image
from nxcore_triton.tile import cdiv


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    It is called as ``call(x, dw_weight, pw_weight, stride, padding, dilation, relu)``.
    """
    x, dw_weight, pw_weight, *where, relu = problem.args
    fresh, window = problem.outputs, window_of(x, dw_weight, *where)
    image, out = Image.of(x), Image.of(fresh)
    channels, made, pixels = image.shape[1], out.shape[1], out.shape[2] * out.shape[3]
    tile = separable.sides(channels, made, pixels)
    launch = Launch(
        separable.mix,
        (image.shape[0], cdiv(pixels, tile[2]), cdiv(made, tile[1])),
        problem.device,
        RELU=relu,
        CHANNELS=tile[0],
        MADE=tile[1],
        PIXELS=tile[2],
    )
    fixed = (
        (channels, made),
        window.image,
        window.outputs,
        image.strides,
        separable.filter_steps(dw_weight),
        pw_weight.strides[:2],
        out.strides,
        separable.of_window(window),
    )

    def call(x: Tensor, dw_weight: Tensor, pw_weight: Tensor, *_: Any) -> Tensor:
        result = fresh.empty()
        tensors = (x, dw_weight, pw_weight, result)
        launch(tensors, *tensors, *fixed)
        return result

    return call
