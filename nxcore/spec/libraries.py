"""Installed libraries of other authors, for plugins that offer their kernels: ``nxcore.plugin.foreign``."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

import torch

from nxcore.spec.kernel import YES, Code, Verdict, no, simulated
from nxcore.spec.needs import Need, Place, needs
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.process import imported
from nxcore.spec.spec import FLOATS

Spell = Callable[..., Any]


@dataclass(frozen=True)
class Library:
    """A library of one version, whose kernels a plugin offers.

    Attributes
    ----------
    distribution, version : str
        Its name for pip, and the only version whose calls the plugin knows.
    needs : tuple of str
        Distributions that it imports besides torch and triton.

    Examples
    --------
    >>> Library("no-such-library", "1.0").probe().hint
    'pip install --no-deps no-such-library==1.0'
    """

    distribution: str
    version: str
    needs: tuple[str, ...] = ()

    def probe(self) -> Verdict:
        """Return whether it is installed in its version, and can run here; nothing is imported."""
        found, wanted = _installed(self.distribution), f"{self.distribution}=={self.version}"
        if found != self.version:
            came = f"found {found}" if found else "it isn't installed"
            return no(f"needs {wanted}, {came}", hint=f"pip install --no-deps {wanted}", code=Code.MACHINE)
        for name in self.needs:
            if _installed(name) is None:
                why = f"{self.distribution} needs {name}, which isn't installed"
                return no(why, hint=f"pip install {name}", code=Code.MACHINE)
        if _interpreted():
            return simulated("TRITON_INTERPRET=1: Triton's interpreter runs it on the CPU")
        if not torch.cuda.is_available():
            return no("torch sees no CUDA device", code=Code.MACHINE)
        return YES

    def toolkit(self) -> Mapping[str, str]:
        """Return its version with the digest of its files, as the wheel's RECORD lists them.

        A kernel is verified again where one changes, as after a release of the same number.
        """
        found = _installed(self.distribution)
        return {self.distribution: f"{found} {_digest(self.distribution)}"} if found else {}

    def get(self, target: str) -> Callable[..., Any]:
        """Return what ``"module:attribute"`` names; settings that its import changes are put back."""
        found: Callable[..., Any] = imported(target)
        return found

    def accepts(
        self,
        *more: Need,
        dtypes: tuple[torch.dtype, ...] = FLOATS,
        ranks: tuple[int, int] = (1, 8),
        above: bool = False,
    ) -> Need:
        """Return an ``accepts``: of one CUDA device, of ranks and dtypes that its own checks cover.

        Tensors of 2^31 elements and more are refused, where 32-bit offsets wrap; ``above``: a sample of that
        size passed. More needs are checked last.
        """

        def sizes(problem: Problem) -> Verdict:
            least, most = ranks
            for meta in (*problem.tensors, *described(problem.outputs)):
                if not least <= meta.ndim <= most:
                    why = f"takes {least} to {most} dimensions, got {meta.ndim}"
                    return no(why, code=Code.SIZE)
                if meta.numel() >= 2**31 and not above:
                    why = f"takes fewer than 2**31 elements, got {meta.numel()}"
                    return no(why, code=Code.SIZE)
            return YES

        return needs(sizes, *more, device=_place, dtypes=dtypes)

    def plan(
        self, problem: Problem, target: str, spell: Spell, writes: tuple[str, ...] = ()
    ) -> Callable[..., Any]:
        """Return a plan that calls ``spell(function, *args)`` on the function that ``target`` names.

        The arguments of parameters ``writes`` are cloned: the function writes into them.
        """
        call = functools.partial(spell, self.get(target))
        if not writes:
            return call
        places = [i for i, p in enumerate(problem.spec.params) if p.name in writes]

        def cloned(*args: Any) -> Any:
            return call(*(a.clone() if i in places else a for i, a in enumerate(args)))

        return cloned


def described(value: Any) -> list[TensorMeta]:
    """Return the tensors described in nested tuples."""
    if isinstance(value, TensorMeta):
        return [value]
    return [meta for each in value for meta in described(each)] if isinstance(value, tuple) else []


def _installed(name: str) -> str | None:
    try:
        return version(name)  # not find_spec: any folder of that name would satisfy it
    except PackageNotFoundError:
        return None


def _digest(name: str) -> str:
    """Return the hash of the lines of a wheel's RECORD that hold one: pip adds others."""
    lines = (distribution(name).read_text("RECORD") or "").splitlines()
    kept = sorted(line for line in lines if ",sha256=" in line and ".dist-info/" not in line)
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _place() -> Place:
    return Place("cpu", " under TRITON_INTERPRET=1") if _interpreted() else Place("cuda")
