"""Compile binaries ahead of time: those of the winners in the shipped records.

``python -m nxcore_triton.release FOLDER`` writes them. It needs torch, Triton and nxcore, and no GPU; with
another Triton on ``PYTHONPATH`` it adds that one's.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import triton
from triton import knobs

from nxcore.offline import release
from nxcore.offline.release import Wanted
from nxcore.spec.device import pretend
from nxcore_triton import binaries, nxcore_backend
from nxcore_triton.ahead import ahead

PATHS = ("extern_libs", "ir_override")
"""Options that name files of the machine that compiled; a launch reads none of them."""

_wanted: list[Wanted] = []


def kept(folder: Path, made: Any, name: str) -> None:
    """Write a compiled kernel into a folder, under the name of its compilation."""
    facts = json.loads(
        next(Path(p) for n, p in made.metadata_group.items() if n.endswith(".json")).read_text()
    )
    facts |= {"hash": name} | {option: None for option in PATHS if option in facts}
    (folder / f"{name}.cubin").write_bytes(made.asm["cubin"])
    (folder / f"{name}.json").write_text(json.dumps(facts, sort_keys=True) + "\n")


def build(folder: Path, wanted: Sequence[Wanted], most: int | None = None) -> str:
    """Write the binaries of what is wanted. Returns what was written, in words.

    Parameters
    ----------
    most : int, optional
        The processes that compile; one for each core by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _wanted[:] = wanted

    def serve(own: binaries.Compile, src: Any, target: Any, options: Any, **more: Any) -> Any:
        made = own(src, target=target, options=options, **more)
        kept(folder, made, binaries.key(src, target, options))
        return made

    before, binaries.serve = binaries.serve, serve
    knobs.compilation.disable_line_info = True  # lines name the files of this machine
    try:
        with tempfile.TemporaryDirectory() as cache:
            knobs.cache.dir = cache
            forked = multiprocessing.get_context("fork")  # a problem can't be sent, but a child has it
            with ProcessPoolExecutor(most or os.cpu_count(), forked) as pool:
                list(pool.map(_compiled, range(len(wanted))))
    finally:
        binaries.serve = before
    archs = ", ".join(f"{a}.{b}" for a, b in sorted({each.capability for each in wanted}))
    return f"{len([*folder.glob('*.cubin')])} binaries by Triton {triton.__version__} for {archs}"


def _compiled(at: int) -> None:
    pretend(dict(_wanted[at].facts))
    ahead(_wanted[at].kernel, _wanted[at].problem, _wanted[at].capability)


if __name__ == "__main__":
    everything = [*release.wanted(nxcore_backend())]
    sys.stdout.write(build(Path(sys.argv[1]), everything) + "\n")
