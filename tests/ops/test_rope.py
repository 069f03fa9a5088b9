"""What is true of rope alone, on every backend."""

import pytest
import torch

import nxcore
from nxcore.errors import InvalidInputError
from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """As transformers' models of the family of Llama have it."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_every_two(x: torch.Tensor) -> torch.Tensor:
    """As transformers' GPT-J has it."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def angles_of(length: int, dim: int, device: torch.device) -> torch.Tensor:
    """The angle of each pair at each position."""
    speed = 10000.0 ** (-torch.arange(0, dim, 2, device=device) / dim)
    return torch.arange(length, device=device)[:, None] * speed


@every_backend
def test_is_what_llama_does_to_queries_and_keys(backend: str | None, device: torch.device) -> None:
    """Of heads that lie behind the length in memory, and of one key head, which has a size of 1."""
    both = torch.cat([angles_of(6, 32, device)] * 2, -1)[None, None]
    op = operator("rope", backend)
    for heads in (5, 1):
        x = torch.randn(2, 6, heads, 32, device=device).transpose(1, 2)
        want = x * both.cos() + rotate_half(x) * both.sin()
        torch.testing.assert_close(op(x, both.cos(), both.sin()), want)


@every_backend
def test_is_what_gpt_j_does_to_a_part_of_a_head(backend: str | None, device: torch.device) -> None:
    x, angles = torch.randn(2, 3, 6, 40, device=device), angles_of(6, 16, device)
    each = angles.repeat_interleave(2, -1)
    found = operator("rope", backend)(x, angles.cos(), angles.sin(), True, 16)
    turned = x[..., :16] * each.cos() + rotate_every_two(x[..., :16]) * each.sin()
    torch.testing.assert_close(found, torch.cat((turned, x[..., 16:]), -1))


@every_backend
@pytest.mark.parametrize("neighbours", [False, True])
def test_gradients_are_those_of_torch(backend: str | None, device: torch.device, neighbours: bool) -> None:
    """Of x by the same rotation back, of angles that differ within a pair too; and of the angles."""
    x, cos, sin = (torch.randn(n, 5, 12, device=device, requires_grad=True) for n in (7, 1, 1))
    turn = rotate_every_two if neighbours else rotate_half
    grad = torch.randn(7, 5, 12, device=device)
    for op, given, args in (
        (operator("rope", backend), (x,), (x, cos.detach(), sin.detach())),
        (nxcore.op("rope"), (x, cos, sin), (x, cos, sin)),
    ):
        found = op(*args, neighbours)
        want = args[0] * args[1] + turn(args[0]) * args[2]
        for a, b in zip(*(torch.autograd.grad(y, given, grad) for y in (found, want)), strict=True):
            torch.testing.assert_close(a, b)


@every_backend
def test_there_and_back_is_where_it_was(backend: str | None, device: torch.device) -> None:
    x, angles = torch.randn(3, 41, 5, 16, device=device), angles_of(5, 16, device)
    args = (angles.cos(), angles.sin(), False, 16)
    there = operator("rope", backend)(x, *args)
    back = operator("rope_backward", backend)(there, x, *args, (True, False, False))[0]
    torch.testing.assert_close(back, x)
    torch.testing.assert_close(there.norm(dim=-1), x.norm(dim=-1))


def test_narrow_angles_alone_say_nothing(device: torch.device) -> None:
    """Half as many are those of pairs to flash_attn, and a part of a head to transformers."""
    x, angles = torch.randn(2, 6, 32, device=device), angles_of(6, 32, device)
    with pytest.raises(InvalidInputError, match="rotary_dim must say how many entries turn"):
        nxcore.ops.rope(x, angles.cos(), angles.sin())
    whole = nxcore.ops.rope(x, angles.cos(), angles.sin(), rotary_dim=32)
    part = nxcore.ops.rope(x, angles.cos(), angles.sin(), rotary_dim=16)
    assert torch.equal(part[..., 16:], x[..., 16:])
    assert not torch.equal(whole[..., 16:], x[..., 16:])


def test_half_types_are_rounded_once(device: torch.device) -> None:
    """What is usually written rounds each product, and a bfloat16 q with float32 angles becomes float32."""
    x, angles = torch.randn(2, 6, 32, device=device, dtype=torch.bfloat16), angles_of(6, 32, device)
    both = torch.cat([angles] * 2, -1)
    found = nxcore.ops.rope(x, both.cos(), both.sin())
    want = x.double() * both.cos() + rotate_half(x.double()) * both.sin()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, want.bfloat16(), rtol=0, atol=0)
