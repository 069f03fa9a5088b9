"""Which calls of sep_conv2d with statistics or a batch norm the kernels take. Imports no toolkit."""

from __future__ import annotations

from nxcore.ops.sep_conv2d_batch_norm import accepted
from nxcore.ops.sep_conv2d_batch_norm_backward import accepted as accepted_backward
from nxcore.ops.sep_conv2d_with_stats import part
from nxcore.plugin import Problem, Verdict
from nxcore_cuda.accepts_norm import accepts_batch_norm, accepts_batch_norm_backward
from nxcore_cuda.accepts_separable import accepts_sep_conv2d, accepts_sep_conv2d_backward


def accepts_sep_conv2d_with_stats(problem: Problem) -> Verdict:
    """Take what sep_conv2d takes."""
    return accepts_sep_conv2d(part(problem))


def accepts_sep_conv2d_batch_norm(problem: Problem) -> Verdict:
    """Take what sep_conv2d and batch_norm take."""
    return accepted(problem, accepts_sep_conv2d, accepts_batch_norm)


def accepts_sep_conv2d_batch_norm_backward(problem: Problem) -> Verdict:
    """Take what batch_norm_backward and sep_conv2d_backward take."""
    return accepted_backward(problem, accepts_batch_norm_backward, accepts_sep_conv2d_backward)
