"""Short rows on the CPU, a softmax along each; shared by the operators on rows.

Everything is computed in float64, from element types known only at run time: the calls are small, and one
compiled kernel serves them all.
"""

# mypy: ignore-errors

import math

import numpy as np
from numba import types

from nxcore.plugin import Rows, TensorMeta
from nxcore_numba import threads
from nxcore_numba.half import KINDS, load_any

TABLE = types.int64[:, ::1]
"""A row a tensor: its step from row to row, from entry to entry, and the kind of its elements."""

PARTS = 256
"""The most parts that rows are shared out in."""


@threads.jit
def entry(address, tensor, row, i):
    """Return an entry of a tensor."""
    return load_any(address, row * tensor[0] + i * tensor[1], tensor[2])


@threads.jit
def softmax(x, p):
    """Fill ``p`` with the softmax of ``x``, which becomes how far below its largest each entry is.

    A distance is 0 where the weight is. Returns the sum of the exponentials; a NaN makes all NaN.
    """
    top = -math.inf
    for i in range(x.size):
        top = max(top, x[i])
    total = 0.0
    for i in range(x.size):
        p[i] = math.exp(x[i] - top)
        total += p[i]
    for i in range(x.size):
        p[i] /= total
        x[i] = 0.0 if p[i] == 0 else top - x[i]
    return total


@threads.jit
def dot(a, b):
    """Return the sum of products."""
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@threads.jit
def perturb(x, noise, tensor, row, tau):
    """Make a row of logits noisy."""
    for i in range(x.size):
        x[i] = (x[i] - math.log(entry(noise, tensor, row, i))) / tau


def heat(problem):
    """Return what a temperature is to the kernels: ``found(tau)`` is its address, its kind and its number."""
    tau = problem["tau"]
    if isinstance(tau, TensorMeta):
        kind = KINDS[tau.dtype]
        return lambda tau: (tau.data_ptr(), kind, 0.0)
    return lambda tau: (0, 0, float(tau))


@threads.jit
def temperature(address, kind, number):
    """Return the temperature at an address, or the number where there is none."""
    return load_any(address, 0, kind) if address else number


def planner(serial, parallel, signature):
    """Return the planner of an operator on rows, or of its gradient.

    The kernels take the addresses of the tensors and of the result; a temperature and ``hard``, where there
    are any; then what ``tables`` returns.
    """

    def plan(problem):
        outputs, names = problem.outputs, [p.name for p in problem.spec.params]
        alone, rest = isinstance(outputs, TensorMeta), tables(problem)
        out, *others = (outputs,) if alone else outputs
        kernel = threads.team(serial, parallel, signature, problem["logits"].numel())
        if "tau" not in names:

            def call(*tensors):
                result = out.empty()
                kernel(*(t.data_ptr() for t in tensors), result.data_ptr(), *rest)
                return result

            return call
        found, at, noise = heat(problem), names.index("tau"), names.index("noise")
        hard = (problem["hard"],) if "hard" in names else ()

        def call_tempered(*args):
            result = out.empty()
            addresses = (t.data_ptr() for t in (*args[:at], args[noise], result))
            kernel(*addresses, *found(args[at]), *hard, *rest)
            return result if alone else (result, *others)

        return call_tempered

    return plan


def tables(problem):
    """Return how many rows there are, how long they are, and the table of the tensors."""
    found = Rows.of(problem)
    steps = zip(found.steps, found.tensors, strict=True)
    table = np.array([(*step, KINDS[meta.dtype]) for step, meta in steps], dtype=np.int64)
    return found.count, found.length, table
