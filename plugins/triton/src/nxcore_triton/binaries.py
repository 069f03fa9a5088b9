"""Binaries: what Triton made of kernels when the wheel was built is loaded in place of compiling it here.

A binary is named by Triton's own key of a compilation, with Triton's version in place of the digest of its
installation, which is another for each version of Python. A kernel's source, signature, specialisation and
options, the capability, ptxas and the environment are in that key, so where it agrees the same compiler is
given the same input.

That key must be the same in every process, or what a worker or the wheel's build compiled is never found.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.compiler import ASTSource, CompiledKernel, make_backend
from triton.runtime.jit import JITCallable

from nxcore.plugin import compiling
from nxcore_triton import BINARIES

LINES = "TRITON_DISABLE_LINE_INFO"
"""Whether a binary has line numbers: the instructions are the same."""

Compile = Callable[..., Any]


class Announced(ASTSource):  # type: ignore[misc]  # Triton has no types
    """A kernel's source. Triton calls ``make_ir`` only for a kernel that isn't in its cache."""

    def make_ir(self, *args: Any, **more: Any) -> Any:
        """Announce that the kernel is compiled, and begin."""
        compiling(self.name)
        return super().make_ir(*args, **more)


def attach(kernel: Any) -> None:
    """Have a kernel look for its binaries before it compiles, on every device.

    Parameters
    ----------
    kernel : JITFunction
        Triton makes what belongs to a device at its first use there, and with it the function that compiles.
    """
    caches = getattr(kernel, "device_caches", None)  # the interpreter has none
    if caches is not None and getattr(caches.default_factory, "func", None) is not _made:
        caches.default_factory = functools.partial(_made, kernel, caches.default_factory)


def digested(function: Any, begun: frozenset[int] = frozenset()) -> None:
    """Have Triton work out a function's digest after those of all functions that it calls.

    Triton keeps the first digest that it works out. It has the constants of the functions called only as far
    as their own digests are known, so it would depend on what was compiled before in this process.
    """
    for called in _named(function.fn):
        if isinstance(called, JITCallable) and called.hash is None and id(called) not in begun:
            digested(called, begun | {id(function)})  # hashing a function would work out its digest
    function.cache_key  # noqa: B018  Triton keeps it


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield what the names in a function may mean: globals, and those of this plugin's modules."""
    names, modules = function.__code__.co_names, [function.__globals__]
    modules += [vars(m) for m in map(modules[0].get, names) if isinstance(m, ModuleType) and _own(m)]
    for name, module in itertools.product(names, modules):
        yield module.get(name)


def _own(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] == __name__.partition(".")[0]


def _made(kernel: Any, make: Callable[[], Any]) -> Any:
    digested(kernel)
    found = make()
    kernel.compile = functools.partial(_compiled, kernel.compile)
    return found


def _compiled(own: Compile, src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
    return serve(own, src, target=target, options=options, **more)


def serve(own: Compile, src: Any, target: Any, options: Any, **more: Any) -> Any:
    """Return a compiled kernel: the wheel's, else that of Triton's cache, else one that is compiled now.

    Parameters
    ----------
    own : callable
        ``triton.compile``, whose arguments follow.
    """
    if (found := shipped(src, target, options)) is not None:
        return found
    announced = Announced(src.fn, src.signature, src.constants, src.attrs)
    return own(announced, target=target, options=options, **more)


def shipped(src: Any, target: Any, options: Any) -> CompiledKernel | None:
    """Return the wheel's binary of a kernel; None without one, or where a user looks into compilations."""
    if not _any(BINARIES) or target is None or _inspected():
        return None
    name = key(src, target, options)
    files = {f"{src.name}.{kind}": str(BINARIES / f"{name}.{kind}") for kind in ("json", "cubin")}
    return CompiledKernel(src, files, name) if all(map(_is_file, files.values())) else None


def key(src: Any, target: Any, options: Any) -> str:
    """Return the name of a compilation's result.

    Parameters
    ----------
    options : Mapping
        As ``triton.compile`` takes them.
    """
    backend = make_backend(target)
    parsed = backend.parse_options({**(options or {}), **src.parse_options()})
    environment = {name: value for name, value in get_cache_invalidating_env_vars().items() if name != LINES}
    parts = (triton.__version__, src.hash(), backend.hash(), parsed.hash(), str(sorted(environment.items())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _inspected() -> bool:
    """Return whether a user has set Triton to compile always, or to show or replace what it makes."""
    asked = knobs.compilation
    hooked = getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None
    return bool(asked.always_compile or asked.override or asked.dump_ir or hooked)


@functools.cache
def _any(folder: Path) -> bool:
    return next(folder.glob("*.cubin"), None) is not None


def _is_file(path: str) -> bool:
    return Path(path).is_file()
