"""What is true of weighted_sum alone: its weights are those of softmax_sum."""

import torch

import nxcore


def test_it_is_softmax_sum_after_the_softmax() -> None:
    xs, logits = (
        [torch.randn(4, 9, dtype=torch.float64) for _ in range(3)],
        torch.randn(3, dtype=torch.float64),
    )
    got = nxcore.ops.weighted_sum(xs, torch.softmax(logits, 0))
    torch.testing.assert_close(got, nxcore.ops.softmax_sum(xs, logits))
