"""Instance: one kernel to compile, a template of a source with its arguments filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Instance:
    """A ``__global__`` function made of a device function template.

    Parameters
    ----------
    entry : str
        The device function's name.
    arguments : tuple of str, int or bool
        Its template's arguments: types by name, and numbers. Empty where it is no template.
    source : str
        The file that holds it, without ``.cu``; the entry's own name unless given.
    args : str
        The struct that it takes; ``<entry>_args`` unless given.
    threads, blocks : int
        The launch bounds: most threads of a block, and blocks wanted on a multiprocessor (0: no wish).
    """

    entry: str
    arguments: tuple[str | int | bool, ...] = ()
    source: str = ""
    args: str = ""
    threads: int = 256
    blocks: int = 0

    def __post_init__(self) -> None:
        given: Any = self.arguments
        if not isinstance(given, tuple):
            kind = type(given).__name__
            raise TypeError(f"Instance({self.entry!r}): needs a tuple of template arguments, got {kind}")
        object.__setattr__(self, "source", self.source or self.entry)
        object.__setattr__(self, "args", self.args or f"{self.entry}_args")

    @property
    def symbol(self) -> str:
        """The kernel's name in the compiled image: a C identifier, another for every other instance."""
        parts = [f"{self.entry}__{_identifier(*self.arguments)}"]
        if self.args != f"{self.entry}_args":
            parts.append(_identifier(self.args.removeprefix(f"{self.entry}_args")))
        if self.threads != 256:
            parts.append(f"t{self.threads}")
        if self.blocks:
            parts.append(f"b{self.blocks}")
        return "__".join(parts)

    @property
    def declaration(self) -> str:
        """The ``__global__`` function."""
        bounds = f"{self.threads}, {self.blocks}" if self.blocks else f"{self.threads}"
        template = f"<{', '.join(map(_spell, self.arguments))}>" if self.arguments else ""
        return (
            f'extern "C" __global__ void __launch_bounds__({bounds}) {self.symbol}'
            f"(const __grid_constant__ {self.args} a) {{ {self.entry}{template}(a); }}\n"
        )

    @property
    def text(self) -> str:
        """The translation unit."""
        return unit([self])


def unit(instances: Iterable[Instance]) -> str:
    """Return one translation unit of many instances, each of which appears once."""
    found = list(dict.fromkeys(instances))
    sources = dict.fromkeys(instance.source for instance in found)
    includes = [f'#include "{source}.cu"\n' for source in sources]
    return "".join(includes + [instance.declaration for instance in found])


def _spell(argument: str | int | bool) -> str:
    return str(argument).lower() if isinstance(argument, bool) else str(argument)


def _identifier(*parts: str | int | bool) -> str:
    spelt = "_".join(map(_spell, parts)).replace("-", "minus_").replace("*", "_pointer")
    return re.sub(r"\W+", "_", spelt).strip("_") or "plain"
