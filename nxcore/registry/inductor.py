"""Each spec's reference as the backend "inductor": compiled by ``torch.compile``, a function a problem.

A compiled function serves one problem. It is called with tensors alone, under ``no_grad``: each is a separate
view, and numbers are tensors without dimensions. So torch's guards see the same in every call, and the
function is compiled once. Only a change of torch's own state, such as the number of threads, recompiles it.
Dynamo's limit of recompilations counts per code object, so each function has its own.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sysconfig
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import API_VERSION
from nxcore.spec.kernel import YES, Backend, Code, Kernel, Verdict, no
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.process import preserved
from nxcore.spec.spec import FLOATS, OpSpec

ON_REQUEST = "compiling a problem takes a second or more"


def _headers() -> Verdict:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.is_file():
        return YES
    return no(f"needs Python's headers, but {header} doesn't exist", hint="install python3-dev")


def _compiler(variable: str, *names: str) -> Verdict:
    """Return whether one of these compilers, or the one named by the environment, is on the PATH."""
    given = shlex.split(os.environ.get(variable, ""))[:1]
    if any(shutil.which(name) for name in given or names):
        return YES
    wanted = given[0] if given else " or ".join(names)
    return no(f"needs a compiler, but there is no {wanted}", hint=f"install {names[0]}, or set {variable}")


def probe_cpu() -> Verdict:
    """Return whether C++ can be compiled, as ``torch.compile`` needs it on the CPU."""
    return _compiler("CXX", "g++") and _headers()


def probe_cuda() -> Verdict:
    """Return whether Triton can run, as ``torch.compile`` needs it on CUDA."""
    if not torch.cuda.is_available():
        return no("torch sees no CUDA device")
    try:
        version("triton")  # not find_spec: any folder of that name would do
    except PackageNotFoundError:
        return no("triton is not installed", hint="pip install triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return no("TRITON_INTERPRET=1: Triton's interpreter would run it", hint="unset TRITON_INTERPRET")
    return _compiler("CC", "gcc", "clang") and _headers()  # needed by its launchers


@functools.cache
def _machine(kind: str) -> Verdict:
    return probe_cpu() if kind == "cpu" else probe_cuda()


def probe() -> Verdict:
    """Return whether ``torch.compile`` can compile for any device of this machine."""
    found = probe_cpu()
    return found if found or not probe_cuda() else YES


def accepts(problem: Problem) -> Verdict:
    """Accept calls with real tensors and without ``out``."""
    if not (found := _machine(problem.device.type)):
        return replace(found, code=Code.MACHINE)
    if problem.writes:
        return no("can't write into out: returns a new tensor", code=Code.ARGUMENT)
    if any(meta.dtype.is_complex for meta in problem.tensors):
        return no("needs real tensors, got a complex one", code=Code.DTYPE)
    for param, value in zip(problem.spec.params, problem.args, strict=True):
        # Inductor ignores one of two numbers that are variables: `torch.add(x, y, alpha=alpha)` is x + y.
        if param.kind == "operand" and isinstance(value, type):
            why = f"needs a tensor for {param.name}, got a number ({value.__name__})"
            return no(why, code=Code.ARGUMENT)
    if problem.view:
        return no("a view: there is nothing to run", code=Code.IDLE)
    return YES


TENSOR, TENSORS, NUMBER, FIXED = range(4)


def _places(problem: Problem) -> tuple[tuple[int, Any], ...]:
    """Return the kind of each argument: a tensor, a number of tensors, a number, or a fixed value."""
    places: list[tuple[int, Any]] = []
    for param, value in zip(problem.spec.params, problem.args, strict=True):
        if isinstance(value, TensorMeta):
            places.append((TENSOR, None))
        elif param.kind == "tensors":
            places.append((TENSORS, len(value)))
        elif param.kind == "scalar":
            # Not float64: inductor would specialise on the value and recompile for the next one.
            places.append((NUMBER, torch.float32 if value is float else torch.int64))
        else:
            places.append((FIXED, value))
    return tuple(places)


def _traced(reference: Callable[..., Any], places: tuple[tuple[int, Any], ...]) -> Callable[..., Any]:
    """Return ``reference`` as a function of tensors alone, with its own code object."""

    def call(*leaves: Tensor) -> Any:
        args: list[Any] = []
        at = 0
        for what, value in places:
            if what == FIXED:
                args.append(value)
                continue
            if what == TENSORS:
                args.append(leaves[at : at + value])
                at += value
                continue
            args.append(leaves[at].item() if what == NUMBER else leaves[at])
            at += 1
        return reference(*args)

    # Dynamo caches compiled code and counts recompilations per code object.
    return types.FunctionType(
        call.__code__.replace(), call.__globals__, reference.__name__, None, call.__closure__
    )


class Compiled:
    """The reference compiled for one problem, at the first call.

    Parameters
    ----------
    problem : Problem
        The problem to compile for.
    """

    def __init__(self, problem: Problem) -> None:
        self.places = _places(problem)
        traced = _traced(problem.spec.reference, self.places)
        # With fullgraph, a number read from a tensor stays a variable of the compiled code.
        self.compiled: Callable[..., Any] = torch.compile(traced, fullgraph=True, dynamic=False)
        self._met = False

    def __call__(self, *args: Any) -> Any:
        """Run it with the operator's arguments, all positional."""
        leaves: list[Tensor] = []
        for (what, value), arg in zip(self.places, args, strict=True):
            if what == TENSOR:
                leaves.append(arg.detach())
            elif what == TENSORS:
                leaves.extend([t.detach() for t in arg])
            elif what == NUMBER:
                leaves.append(torch.tensor(arg, dtype=value))
        with torch.no_grad():
            if self._met:
                return self.compiled(*leaves)
            # The caller didn't cause the compiler's warnings, so they must not be failures where warnings are
            # errors.
            with preserved(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.")
                result = self.compiled(*leaves)
            self._met = True
            return result


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the compiled reference; it is compiled at its first call, in verification."""
    with preserved():
        return Compiled(problem)


def backend(specs: Iterable[OpSpec]) -> Backend:
    """Return the backend "inductor" for ``specs``, without importing the compiler."""
    kernels = tuple(
        Kernel(spec.name, "nxcore.registry.inductor:plan", accepts, dtypes=FLOATS, graph_safe=True)
        for spec in specs
    )
    return Backend("inductor", probe, kernels, api=API_VERSION, on_request=ON_REQUEST)
