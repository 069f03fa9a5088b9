"""Calls of operators and of kernels, without a session."""

import torch

from nxcore.spec.problem import Problem
from tests.null.fakes import SPECS


def problem(op, *args, **kwargs):
    return Problem.of(SPECS[op], SPECS[op].bind(*args, **kwargs))


def addition(size):
    return problem("add", torch.empty(size), torch.empty(size))


def planned(op, *args, kernels, **kwargs):
    """Return the plan of a call and its arguments; the kernel must accept it."""
    bound = SPECS[op].bind(*args, **kwargs)
    asked = Problem.of(SPECS[op], bound)
    verdict = kernels[op].accepts(asked)
    assert verdict, verdict.reason
    return kernels[op].plan(asked), bound


def run(op, *args, kernels, **kwargs):
    call, bound = planned(op, *args, kernels=kernels, **kwargs)
    return call(*bound)


def refusal(op, *args, kernels, **kwargs):
    """Return why a kernel doesn't accept a call."""
    verdict = kernels[op].accepts(problem(op, *args, **kwargs))
    assert not verdict
    return verdict.reason
