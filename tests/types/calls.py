"""What a type checker knows of calls through ``nxcore.ops``; mypy reads this file, and nothing runs it."""

from typing import assert_type

import torch
from torch import Tensor

import nxcore
from nxcore.call.operator import Operator
from nxcore.ops import max_pool2d, softmax_sum
from nxcore.ops.add import SPEC
from nxcore.spec.spec import OpSpec

x, y, flag = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4), bool(torch.ones(1))

assert_type(nxcore.ops.add(x, y), Tensor)
assert_type(nxcore.ops.add(x, 2, alpha=0.5, out=y), Tensor)
assert_type(nxcore.ops.add.backend, str | None)
assert_type(softmax_sum([x, y], x), Tensor)
assert_type(max_pool2d(x, 3), Tensor)
assert_type(max_pool2d(x, [2, 2], return_indices=True), tuple[Tensor, Tensor])
assert_type(max_pool2d(x, x.shape[2:], return_indices=flag), Tensor | tuple[Tensor, Tensor])
assert_type(nxcore.ops.gumbel_softmax(x, generator=torch.Generator()), Tensor)
assert_type(nxcore.op("add"), Operator)
assert_type(nxcore.ops.add_backward, Operator)
assert_type(nxcore.ops.of_another_plugin, Operator)
assert_type(SPEC, OpSpec)

nxcore.ops.add(x)  # type: ignore[call-arg]  # y is missing
nxcore.ops.add(x, y, beta=2)  # type: ignore[call-arg]  # it is alpha
nxcore.ops.add(x, "y")  # type: ignore[arg-type]  # neither a tensor nor a number
