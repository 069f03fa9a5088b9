"""What a kernel needs of a call: each need refuses what it is there for, with its code and its text."""

import torch

from nxcore.spec.kernel import Code, no
from nxcore.spec.needs import Place, at_most, needs
from nxcore.spec.problem import TensorMeta
from tests.null.calls import problem as asked
from tests.table import for_each

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def here():
    return Place("cpu", " under a simulator")


def on(device, *shape, dtype=torch.float32):
    return TensorMeta.row_major(shape, dtype, device)


X, HALF, IMAGE = torch.ones(3, 4), torch.ones(3, 4).half(), torch.ones(2, 3, 4, 4)
LAST = IMAGE.contiguous(memory_format=torch.channels_last)
WIDE = torch.ones((2,) * 6).permute(0, 2, 4, 1, 3, 5)
GRAD = torch.ones(1, 1, 2, 2)


@for_each(
    ("how", "problem", "code", "why"),
    [
        (
            {"device": here},
            asked("add", on(CUDA, 3), on(CUDA, 3)),
            Code.DEVICE,
            "CPU tensors under a simulator, got",
        ),
        (
            {"device": lambda: Place("cuda")},
            asked("add", on(CUDA, 3), on(torch.device("cuda", 1), 3)),
            Code.DEVICE,
            "needs tensors of one device, got cuda:0, cuda:1",
        ),
        ({}, asked("add", X.double(), X), Code.DTYPE, "needs float32, float16 or bfloat16, got float64"),
        ({"dtypes": (torch.half,)}, asked("add", X, X), Code.DTYPE, "needs float16, got float32"),
        (
            {"integers": ("offsets",)},
            asked("max_pool2d_backward", GRAD, GRAD.long(), (1, 1, 4, 4), 2),
            Code.DTYPE,
            "needs uint8 or int32 offsets, got int64",
        ),
        (
            {"tensors": True},
            asked("add", X, 2.0),
            Code.ARGUMENT,
            "needs a tensor for y, got a number (float)",
        ),
        (
            {"alike_numbers": True},
            asked("add", HALF, torch.tensor(1.0)),
            Code.DTYPE,
            "needs a 0-d operand of the other's dtype, got float16 and float32",
        ),
        (
            {"one_gradient": True},
            asked("softmax_sum_backward", torch.ones(4), (torch.ones(4),), torch.ones(1), (True, True)),
            Code.ARGUMENT,
            "computes only the first gradient",
        ),
        ({"rows": 3}, asked("entropy", X), Code.SIZE, "takes rows of at most 3 entries, got 4"),
        (
            {"rows": 9},
            asked("entropy", torch.ones(3, 4, 6)[:, :3]),
            Code.LAYOUT,
            "needs rows with a constant step",
        ),
        (
            {"channels": 4},
            asked("batch_norm", LAST),
            Code.LAYOUT,
            "needs each channel's elements side by side, and x has strides",
        ),
        (
            {"channels": 4},
            asked("batch_norm", IMAGE, torch.ones(6)[::2], torch.ones(3)),
            Code.LAYOUT,
            "needs weight without gaps, got strides (2,)",
        ),
        (
            {"channels": 1},
            asked("batch_norm", IMAGE),
            Code.SIZE,
            "takes at most 1 dimensions after merging, got 2",
        ),
        (
            {"sums": 3},
            asked("sum", torch.ones((2,) * 8), (0, 2, 4, 6)),
            Code.SIZE,
            "takes at most 3 kept and 3 summed dimensions after merging, got 4 and 4",
        ),
        (
            {"products": 1},
            asked("matmul", torch.ones(2, 1, 3, 4), torch.ones(3, 4, 5)),
            Code.SIZE,
            "takes at most 1 dimensions after merging, got 2: (2, 3)",
        ),
        (
            {"products": 1},
            asked("matmul", on(CPU, 2**16, 2, 2), on(CPU, 2**16, 2, 2)),
            Code.SIZE,
            "takes at most 65535 products, got 65536",
        ),
        (
            {"products": 1},
            asked("matmul", on(CPU, 2**31, 2), on(CPU, 2, 2)),
            Code.SIZE,
            "takes at most 2147483136 rows, columns and terms, got",
        ),
        (
            {"rank": 1},
            asked("add", WIDE, torch.ones((2,) * 6)),
            Code.SIZE,
            "takes at most 1 dimensions after",
        ),
        (
            {"rank": 4},
            asked("add", X[0], X[0], out=torch.ones(1).expand(4)),
            Code.LAYOUT,
            "needs results without elements that share memory, got strides (0,)",
        ),
        (
            {"dense": True},
            asked("add", X, X.t().contiguous().t()),
            Code.LAYOUT,
            "needs one dense memory layout of all tensors, got strides (1, 3), (4, 1)",
        ),
        ({"rank": 4}, asked("add", X, 1j), Code.DTYPE, "needs a result of float32, float16 or bfloat16"),
    ],
)
def test_each_need_refuses_what_it_is_there_for(how, problem, code, why):
    refusal = needs(**how)(problem).refusal
    assert refusal is not None
    assert refusal.code is code
    assert why in refusal.reason


def test_what_is_needed_is_taken():
    every = needs(device=here, tensors=True, alike_numbers=True, rank=4, distinct=True)
    assert every(asked("add", X, X))
    assert needs(dense=True)(asked("add", X, X))
    assert needs(rows=4, one_gradient=True)(asked("entropy", X))
    assert needs(channels=2)(asked("batch_norm", IMAGE, torch.ones(3), torch.ones(3)))
    assert needs(sums=3)(asked("add_backward", X, (4,), (3, 4)))
    assert needs(integers=("offsets",))(asked("max_pool2d_backward", GRAD, GRAD.int(), (1, 1, 4, 4), 2))
    far = asked("add", on(CUDA, 3), torch.tensor(1.0, dtype=torch.float64))
    assert needs(device=lambda: Place("cuda"), cpu_numbers=True)(far)
    assert not needs(device=lambda: Place("cuda"))(far)


def test_a_kernels_own_needs_are_asked_last():
    own = needs(at_most(2, "rows", lambda p: p["x"].shape[0]), lambda p: no("never"), dtypes=(torch.float32,))
    assert own(asked("add", HALF, HALF)).reason == "needs float32, got float16"
    assert own(asked("add", X, X)).reason == "takes at most 2 rows, got 3"
    assert own(asked("add", X[:2], X[:2])).reason == "never"
