"""What a search is told: networks, phases, optimizers, augmentation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from nxcore.errors import InvalidInputError
from nxcore.nas.operations import PRIMITIVES
from nxcore.nas.rule import Mode

KINDS = "widen", "deepen", "node"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A growth of the supernet, as ``nxcore.nas.widen``, ``deepen`` and ``add_node`` make it.

    Attributes
    ----------
    epoch : int
        It comes after as many epochs of warm-up and search.
    kind : {"widen", "deepen", "node"}
    size : int
        ``widen``: the channels of the first cells from then on. ``deepen``: the place of the cell that the
        new one follows. ``node``: nothing.
    noise : float
        Of ``widen``.
    """

    epoch: int
    kind: Literal["widen", "deepen", "node"]
    size: int = 0
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInputError(
                f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}", argument="kind"
            )

    def __str__(self) -> str:
        return self.kind if self.kind == "node" else f"{self.kind} {self.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a search is told. The defaults are those of Liu, Simonyan, Yang 2019, for CIFAR-10.

    Attributes
    ----------
    C, layers, steps, multiplier, primitives, mode
        Of the ``SearchNetwork``.
    warmup : int
        Epochs in which the weights alone learn, before the search.
    epochs : int
        Of the search: weights and architecture in turn.
    mutations : sequence of Mutation
        By which the supernet grows during the search, in the order of their epochs.
    order : {1, 2}
        Of the architecture's gradient: see ``nxcore.nas.bilevel``.
    batch : int
        Images of a step, of all ranks together.
    lr, lr_min, momentum, weight_decay, clip : float
        Of the weights: SGD, from ``lr`` to ``lr_min`` along a cosine; gradients' norm is ``clip`` at most.
    arch_lr, arch_betas, arch_weight_decay
        Of the architecture: Adam.
    patience : int, optional
        The search ends after as many epochs without a lower validation loss.
    budget_s : float
        Seconds for all: the search ends after half of them at the latest, retraining when they are over.
        Each ends its cosine by then, and an epoch that has begun is finished.
    retrain_epochs, retrain_batch, retrain_C, retrain_layers, retrain_lr, retrain_lr_min
        Of the found network's training, from new weights, on all that isn't held out.
    drop_path : float
        The share of its paths that are dropped at the end; it grows from 0.
    pad, flip, cutout
        Of ``augment``; holes are cut in retraining alone.
    threads : int, optional
        Of torch, on a CPU: what is small is done sooner by one.
    graphed : bool
        On a GPU, the passes of a step are CUDA graphs (``nxcore.graphed``), where the mode is ``exact`` and,
        for the architecture, the order is 1. What calls would teach is then measured at the first one.
        Where they aren't, cells may still be replayed by themselves (``nxcore.nn.Part``).
    """

    C: int = 16
    layers: int = 8
    steps: int = 4
    multiplier: int = 4
    primitives: tuple[str, ...] = PRIMITIVES
    mode: Mode = "exact"
    warmup: int = 0
    epochs: int = 50
    mutations: tuple[Mutation, ...] = ()
    order: Literal[1, 2] = 1
    batch: int = 64
    lr: float = 0.025
    lr_min: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 3e-4
    clip: float = 5.0
    arch_lr: float = 3e-4
    arch_betas: tuple[float, float] = (0.5, 0.999)
    arch_weight_decay: float = 1e-3
    patience: int | None = None
    budget_s: float = math.inf
    retrain_epochs: int = 600
    retrain_batch: int = 96
    retrain_C: int = 36
    retrain_layers: int = 20
    retrain_lr: float = 0.025
    retrain_lr_min: float = 0.0
    drop_path: float = 0.2
    pad: int = 4
    flip: bool = True
    cutout: int = 16
    threads: int | None = None
    graphed: bool = True

    def __post_init__(self) -> None:
        # From a checkpoint they come as plain data.
        made = tuple(m if isinstance(m, Mutation) else Mutation(**m) for m in self.mutations)
        object.__setattr__(self, "mutations", tuple(sorted(made, key=lambda m: m.epoch)))
        if self.order not in (1, 2):
            raise InvalidInputError(f"order must be 1 or 2, got {self.order!r}", argument="order")
        for name, least in (("warmup", 0), ("epochs", 1), ("retrain_epochs", 0), ("batch", 1)):
            if getattr(self, name) < least:
                raise InvalidInputError(
                    f"{name} must be {least} or more, got {getattr(self, name)}", argument=name
                )


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "darts": Preset(),
        # For small images on a CPU: what takes time is the number of calls, so batches are large.
        "tiny": Preset(
            C=8,
            layers=3,
            steps=2,
            multiplier=2,
            warmup=1,
            epochs=7,
            batch=128,
            lr=0.1,
            arch_lr=0.1,
            retrain_epochs=15,
            retrain_batch=64,
            retrain_C=16,
            retrain_layers=3,
            retrain_lr=0.1,
            drop_path=0.0,
            pad=1,
            flip=False,
            cutout=0,
            threads=1,
        ),
    }
)
"""Name -> preset."""
