"""Random trees on every printer, against float64; many are printed as one kernel, whose compiling takes long.

``RANDOM_TREES`` is the number of trees. ``RANDOM_TREES_LOG`` names a file to which each tree that fails is
added at once, as a line: a run that is stopped leaves what it found.
"""

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nxcore
from nxcore.expression.derived import simple
from nxcore.expression.operator import specs
from nxcore.expression.reference import values
from nxcore.expression.samples import ROOTS
from nxcore.expression.tree import Expression
from nxcore.plugin import Elementwise, TensorMeta, generated, hosted
from nxcore.trust.truth import Truth, agreement
from tests.null.expression.trees import random_expression
from tests.plugins.test_pointwise import ON_CPU, kernel

TREES = int(os.environ.get("RANDOM_TREES", "2000"))
TOGETHER = 20
PARTS = 8
"""The parts of a backend's trees: the tests of one file are shared out among processes."""
GPU_PARTS = 32
ILL = 0.06
"""The share of trees whose float32 in torch itself is further from float64 than rounding errors explain."""

SHARES = {"triton": (0.0, 0.55), "jax": (0.55, 0.65), "cuda": (0.65, 0.995), "numba": (0.995, 1.0)}
"""The trees of each backend, as parts of all: few where compiling a tree takes a second."""
ON_GPU = {"triton": (0.0, 0.25), "cuda": (0.25, 0.75), "cupy": (0.75, 1.0)}


def jitted(found):
    """Return JAX's function as the other backends compile one."""
    import jax
    import jax.numpy as jnp
    from nxcore_jax import pointwise

    call, count = jax.jit(generated("jax", pointwise.text(found)).compute), len(found.results)

    def run(tensors, numbers):
        given = [jnp.asarray(t.numpy()) for t in tensors[count:]]
        for out, result in zip(tensors[:count], call(*given, *numbers), strict=True):
            out.copy_(torch.from_numpy(np.array(jnp.broadcast_to(result, out.shape))))

    return run


def printed(found, *, by_inductor):
    """Return torch's printer as the other backends compile a kernel; on request compiled by Inductor."""
    results = values(found.expression)
    call = torch.compile(results, fullgraph=True, dynamic=False) if by_inductor else results

    def run(tensors, numbers):
        count = len(found.results)
        for out, result in zip(tensors[:count], call(*tensors[count:], *numbers), strict=True):
            out.copy_(result)

    return run


def compiled(backend, found):
    """Compile a kernel as a backend's planner does."""
    if backend == "jax":
        return jitted(found)
    if backend in ("torch", "inductor"):
        return printed(found, by_inductor=backend == "inductor")
    if backend == "cupy":
        from nxcore_cuda import pointwise
        from nxcore_cupy import HOST

        with hosted(HOST):
            return pointwise.compiled(found)
    return importlib.import_module(f"nxcore_{backend}.pointwise").compiled(found)


def drawn(seeds):
    """Return the trees in groups of one kernel: those with roots apart, since they have positive inputs."""
    trees = [(seed, specs(random_expression(seed), "drawn")[0]) for seed in seeds]
    rooted = [(bool({n.op for n in spec.expression.nodes} & ROOTS), seed, spec) for seed, spec in trees]
    for kind in (False, True):
        of_kind = [(seed, spec) for roots, seed, spec in rooted if roots is kind]
        yield from (of_kind[i : i + TOGETHER] for i in range(0, len(of_kind), TOGETHER))


def reproducer(backend, seed, spec, args, result, truth):
    """Return a line with the tree and the arguments of its worst element, by the scale of its errors."""
    exact, found = truth.exact[0].flatten(), result.detach().cpu().double().flatten()
    units = torch.from_numpy(np.spacing(np.abs(exact.float().numpy()))).double()
    scale = truth.scale[0].nan_to_num(posinf=0.0).broadcast_to(result.shape).flatten() + units
    off = torch.nan_to_num((found - exact).abs() / scale, nan=-1.0)
    off[found.isfinite() != exact.isfinite()] = float("inf")
    worst = int(off.argmax())
    off = (found - exact).abs() / units
    tensors = [t.detach().cpu().expand(result.shape).flatten()[worst].item() for t in args[:4]]
    names = (*spec.expression.tensors, *(name for name, _ in spec.expression.numbers))
    given = ", ".join(f"{name}={value!r}" for name, value in zip(names, (*tensors, args[4]), strict=True))
    return (
        f"{backend}, {result.dtype}, seed {seed}: {spec.expression}; at {given}: "
        f"{found[worst].item()!r} for {exact[worst].item()!r}, {off[worst].item():.1f} units off"
    )


def judged(backend, seeds, device):
    """Run the trees of ``seeds``; return how many agree, how many are ill-conditioned, and what fails."""
    agreed, ill, failed = 0, 0, []
    for turn, group in enumerate(drawn(seeds)):
        first = group[0][1]
        layout = ("row_broadcast", "last_block_partly_filled")[turn % 2]
        sample = next(s for s in first.samples if s.name == layout)
        # The truth is worked out on the CPU: operations of a tree are small, and on a GPU each is a launch.
        args = sample.build(first, "cpu", torch.float32)
        tensors, slope = sample.build(first, device, torch.float32)[:4], args[4]
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        given = first.expression
        whole = simple(
            Expression(given.tensors, given.numbers, tuple(s.expression.roots[0] for _, s in group))
        )
        results = [torch.empty(shape, device=device) for _ in group]
        found = Elementwise(
            whole,
            tuple(map(TensorMeta.of, results)),
            tuple(map(TensorMeta.of, tensors)),
            (0, 1, 2, 3),
            (4,),
            (),
        )
        compiled(backend, found)((*results, *tensors), [slope])
        for (seed, spec), result in zip(group, results, strict=True):
            truth = Truth.of(spec, args)
            if not agreement(spec.reference, spec, args, truth).ok:
                ill += 1
                continue
            verdict = agreement(lambda *_, result=result: result.cpu(), spec, args, truth)
            if verdict.ok:
                agreed += 1
                continue
            failed.append(f"{reproducer(backend, seed, spec, args, result, truth)}; {verdict.reason}")
            if "RANDOM_TREES_LOG" in os.environ:
                with Path(os.environ["RANDOM_TREES_LOG"]).open("a", encoding="utf-8") as log:
                    log.write(failed[-1] + "\n")
    return agreed, ill, failed


def held(backend, seeds, device):
    """Require the trees of ``seeds`` to agree; return how many do, and how many are ill-conditioned."""
    agreed, ill, failed = judged(backend, seeds, device)
    assert not failed, f"{len(failed)} of {agreed + len(failed)} trees fail:\n" + "\n".join(failed)
    return agreed, ill


def check(backend, share, part, parts, device):
    kernel(backend, nxcore.pointwise("x + y").spec)  # skips where the backend isn't here
    first, last = (round(TREES * bound) for bound in share)
    seeds = range(first + part, last, parts)
    compared, ill = held(backend, seeds, torch.device("cpu") if backend in ON_CPU else device)
    assert compared + ill == len(seeds)
    assert ill <= max(2, ILL * len(seeds))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", SHARES)
def test_random_trees(backend, part, device):
    check(backend, SHARES[backend], part, PARTS, device)


ROUNDED = (10, 646, 658, 711, 1053, 1425, 1456, 1569, 3019, 3469, 4444)
"""Trees that don't agree where a quotient or a square root may be two units in the last place off."""


def test_quotients_and_roots_of_triton_are_rounded_to_nearest(monkeypatch):
    """Triton's ``/`` and ``tl.sqrt`` are that far off on a GPU; its interpreter computes both exactly."""
    kernel("triton", nxcore.pointwise("x + y").spec)
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    dice = np.random.default_rng(0)

    def off(values):
        values = np.asarray(values)
        return (values * (1 + 2.0**-23 * dice.integers(-2, 3, values.shape))).astype(values.dtype)

    def divided(self, x, y):
        return self.binary_op(x, y, lambda a, b: off(np.divide(a, b)))

    monkeypatch.setattr(builder, "create_fdiv", divided)
    monkeypatch.setattr(builder, "create_sqrt", lambda self, x: self.unary_op(x, lambda a: off(np.sqrt(a))))
    assert held("triton", ROUNDED, torch.device("cpu")) == (len(ROUNDED), 0)


def test_a_tree_that_fails_is_shown_with_its_arguments_and_kept_at_once(monkeypatch, tmp_path):
    def compiled_wrong(_backend, found):
        def run(tensors, numbers):
            outs, given = tensors[: len(found.results)], tensors[len(found.results) :]
            for out, spec in zip(outs, group, strict=True):
                out.copy_(spec.reference(*given, *numbers))
            outs[0].flatten()[7] *= 1.001

        return run

    group = [spec for _, spec in next(drawn(range(3)))]
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "compiled", compiled_wrong)
    monkeypatch.setattr(here, "drawn", lambda _: [list(enumerate(group))])
    monkeypatch.setenv("RANDOM_TREES_LOG", str(tmp_path / "log"))
    with pytest.raises(
        AssertionError, match=r"(?s)1 of \d trees fail:.*seed 0: .*; at .* units off"
    ) as caught:
        held("wrong", range(3), torch.device("cpu"))
    (line,) = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert line in str(caught.value)
    assert str(group[0].expression) in line


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("part", range(GPU_PARTS))
@pytest.mark.parametrize("backend", ON_GPU)
def test_random_trees_on_a_gpu(backend, part, device):
    check(backend, ON_GPU[backend], part, GPU_PARTS, device)
