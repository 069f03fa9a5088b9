"""The rules of five public harnesses, as their sources state them, on a kernel and a task of the bake-off.

Each returns whether it accepts the kernel. What a rule doesn't look at isn't looked at here.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.testing.referee.subject import Case, Subject
from nxcore.testing.referee.verdict import checked
from tests.harnesses.tasks import TASKS, Task

SIZE = 1024
"""The size that a benchmark of one shape has."""

Kernel = Callable[..., Tensor]
Rule = Callable[[Kernel, Task, int], bool]


def _drawn(task: Task, size: int, seed: int) -> tuple[Tensor, ...]:
    return task.arguments(torch.Generator().manual_seed(seed), size)


def _kernelbench(tolerance: float) -> Rule:
    """Five trials with seeds of their own, one shape, the same tensors for both: shape and ``allclose``."""

    def rule(kernel: Kernel, task: Task, seed: int) -> bool:
        with torch.no_grad():
            for trial in range(5):
                args = _drawn(task, SIZE, seed + trial)
                want = task.reference(*args)
                got = kernel(*args)
                if want.shape != got.shape or not torch.allclose(want, got, atol=tolerance, rtol=tolerance):
                    return False
        return True

    return rule


def backendbench(kernel: Kernel, task: Task, seed: int) -> bool:
    """Small samples as of torch's database, uniform in [-9, 9]: ``assert_close`` by 1e-2, NaN equal."""
    for size in (1, 3, 5, 10, 20):
        args = _drawn(task, size, seed)
        uniform = torch.Generator().manual_seed(seed + size)
        args = tuple(
            torch.rand(t.shape, generator=uniform) * 18 - 9 if t.is_floating_point() else t for t in args
        )
        want = task.reference(*args)
        torch.testing.assert_close(want, kernel(*args), equal_nan=True, atol=1e-2, rtol=1e-2)
    return True


def flashinfer_bench(kernel: Kernel, task: Task, seed: int) -> bool:
    """Three trials of each workload: shape, dtype, finite, no element beyond both 1e-2 and 1e-2 of itself."""
    with torch.no_grad():
        for size in (128, SIZE, 4096):
            drawn = [_drawn(task, size, seed + trial) for trial in range(3)]
            wanted = [task.reference(*args) for args in drawn]
            for args, want in zip(drawn, wanted, strict=True):
                got = kernel(*args)
                if want.shape != got.shape or want.dtype != got.dtype or not bool(got.isfinite().all()):
                    return False
                error = (got.float() - want.float()).abs()
                if bool(((error > 1e-2) & (error / (want.float().abs() + 1e-8) > 1e-2)).any()):
                    return False
    return True


def helion(kernel: Kernel, task: Task, seed: int) -> bool:
    """The call that is tuned: ``assert_close`` by 1e-2, the absolute part times the rms where above 1."""
    args = _drawn(task, SIZE, seed)
    want = task.reference(*args)
    scale = max(1.0, float(want.double().square().mean().sqrt()))
    torch.testing.assert_close(kernel(*args), want, atol=1e-2 * scale, rtol=1e-2)
    return True


def triton(kernel: Kernel, task: Task, seed: int) -> bool:
    """``triton.testing.assert_close`` by its defaults, on one call of an odd size as the tutorials' (781)."""
    args = _drawn(task, 781, seed)
    want, got = task.reference(*args), kernel(*args)
    return want.shape == got.shape and torch.allclose(
        got.double(), want.double(), atol=1e-2, rtol=0, equal_nan=True
    )


def nxcores(kernel: Kernel, task: Task, seed: int) -> bool:
    """``nxcore.testing.verify`` on one sample: the calls and their truths are a task's, so made once."""
    checks = checked(Subject(kernel, task.reference, torch.Generator()), _cases(task, seed))
    return all(check.outcome != "failed" for check in checks)


@functools.cache
def _cases(task: Task, seed: int) -> list[Case]:
    generator = torch.Generator().manual_seed(seed)
    args = task.arguments(generator, 256)
    return [*Subject(task.reference, task.reference, generator).cases("sample 0", args)]


RULES: dict[str, Rule] = {
    "KernelBench v0.1, 1e-2": _kernelbench(1e-2),
    "KernelBench, 1e-4": _kernelbench(1e-4),
    "BackendBench": backendbench,
    "flashinfer-bench": flashinfer_bench,
    "helion": helion,
    "Triton's `assert_close`": triton,
    "`nxcore.testing.verify`": nxcores,
}


def accepted(rule: Rule, kernel: Kernel, task: Task, seed: int) -> bool:
    """Return whether a rule accepts a kernel; one that raises isn't accepted."""
    try:
        return rule(kernel, task, seed)
    except (AssertionError, RuntimeError, ValueError, IndexError, TypeError):
        return False


def kernels(module: Any) -> Iterator[tuple[str, Kernel, Task]]:
    """Yield the kernels of a module, which begin with the name of their task."""
    names = sorted(TASKS, key=len, reverse=True)
    for name, kernel in list(vars(module).items()):
        if callable(kernel) and getattr(kernel, "__module__", "") == module.__name__ and name[0] != "_":
            yield name, kernel, TASKS[next(task for task in names if name.startswith(task))]
