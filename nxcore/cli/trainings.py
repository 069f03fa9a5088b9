"""Trainings of ``nxcore search``: one, or one for each of several seeds, followed to the end."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import nxcore
from nxcore import nas
from nxcore.cli import epochs
from nxcore.nas.checkpoint import recorded
from nxcore.nas.turns import in_turn
from nxcore.observe import bar
from nxcore.session import default
from nxcore.spec.device import synchronize

Begin = Callable[[Path], nas.Trainer]


def followed(
    begin: Begin, folders: Sequence[Path], device: torch.device, policy: str | None, *, quiet: bool
) -> tuple[dict[Path, nas.Trainer], bool]:
    """Train to the end and show progress; return what ``begin`` returned, and whether it was interrupted.

    The kernels of each network are compiled before its first epoch, those of the first one behind a bar.
    """
    on_cpu, several = device.type == "cpu", len(folders) > 1
    policy = policy or ("frozen" if on_cpu else None)
    first = begin(folders[0])
    trainers = {folders[0]: first}

    def steps(folder: Path) -> Iterator[dict[str, Any] | None]:
        trainer = trainers[folder] = trainers.get(folder) or begin(folder)
        prepared = first.net
        for row in chain([None], recorded(trainer, folder)):
            yield {"run": folder.name, **row} if row and several else row
            if trainer.net is not prepared and trainer.phase != "done":
                synchronize(device)  # what is measured next isn't beside other work
                nas.prepare(trainer)
                prepared = trainer.net

    with nxcore.policy(policy) if policy else contextlib.nullcontext():
        try:
            if quiet:
                nas.prepare(first)
            else:
                with bar.shown("compiles kernels", lines=True) as advance:
                    nas.prepare(first, advance)
            each = in_turn([functools.partial(steps, f) for f in folders], device, len(folders))
            decided = None if on_cpu else lambda: default().decided
            with epochs.watching(() if several else first.history, decided, quiet=quiet) as show:
                for row in filter(None, each):
                    show(row)
        except KeyboardInterrupt:
            return trainers, True
    return trainers, False
