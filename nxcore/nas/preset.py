"""The settings of a search: networks, phases, optimizers, augmentation."""

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
    """A growth of the supernet during a search, by ``nxcore.nas.widen``, ``deepen`` or ``add_node``.

    Attributes
    ----------
    epoch : int
        The number of epochs of warm-up and search before it.
    kind : {"widen", "deepen", "node"}
    size : int
        ``widen``: the new number of channels of the first cells. ``deepen``: the index of the cell that the
        new one follows. ``node``: unused.
    noise : float
        The noise of ``widen``.

    Examples
    --------
    >>> print(nas.Mutation(2, "widen", 16))
    widen 16
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
    """The settings of a search. The defaults are those of Liu, Simonyan, Yang 2019, for CIFAR-10.

    Attributes
    ----------
    C, layers, steps, multiplier, primitives, mode
        The options of the ``SearchNetwork``.
    warmup : int
        Epochs before the search, in which only the weights learn.
    epochs : int
        Epochs of the search; weights and architecture learn in turn.
    mutations : sequence of Mutation
        Growth of the supernet during the search, in the order of epochs.
    order : {1, 2}
        The order of the architecture's gradient: see ``nxcore.nas.bilevel``.
    batch : int
        Images in a step, over all ranks.
    lr, lr_min, momentum, weight_decay, clip : float
        SGD on the weights: the learning rate follows a cosine from ``lr`` to ``lr_min``; gradients are
        clipped to the norm ``clip``.
    arch_lr, arch_betas, arch_weight_decay
        Adam on the architecture.
    patience : int, optional
        The search ends after this many epochs without a lower validation loss.
    skips : int, optional
        The search ends once a cell of the genotype has more skip connections than this, and the genotype of
        the epoch before is kept. Weights that have little left to learn make skip connections win over
        convolutions, though a network of them generalises worse. The rule is that of "DARTS+" (Liang et al.
        2019), with one skip connection.
    remedy : str
        What is done against skip connections: a name of ``nxcore.nas.remedies.known.REMEDIES``.
    budget_s : float
        Seconds for everything. The search takes at most half of them. The learning rates end their cosine in
        that time, and an epoch that has begun is finished.
    retrain_epochs, retrain_batch, retrain_C, retrain_layers, retrain_lr, retrain_lr_min
        The found network's training, from new weights, on all images that are not held out.
    retrain_autocast : bool
        Whether the forward passes of retraining run under autocast to bfloat16.
    retrain_smoothing, retrain_average, retrain_muon : float
        The loss's label smoothing; the share that stays in a step of a moving mean of the weights, which is
        evaluated in their place; the rate of Muon on 1x1 convolutions over that of the others (0: SGD alone).
    retrain_alternate, retrain_views : bool
        Whether images are mirrored in every other epoch rather than by chance; whether the scores of a
        held-out image are the mean of six views.
    held_out_every : int
        Epochs of retraining for each evaluation of the held-out images. Epochs that may be the last one have
        one too.
    drop_path : float
        The final share of paths that are dropped in retraining; it grows from 0.
    pad, flip, cutout
        The options of ``augment``; ``cutout`` is used only in retraining.
    threads : int, optional
        Torch's number of threads on a CPU: one is faster for small networks.
    graphed : bool
        Whether, on a GPU, the passes of a step are CUDA graphs (``nxcore.graphed``). This needs the mode
        ``exact`` and, for the architecture, order 1; new problems are then measured at their first call.
        Otherwise, single cells may still be replayed (``nxcore.nn.Part``).

    Examples
    --------
    >>> nas.Preset(epochs=10, mutations=(nas.Mutation(2, "node"),)).batch
    64
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
    skips: int | None = None
    remedy: str = "none"
    budget_s: float = math.inf
    retrain_epochs: int = 600
    retrain_batch: int = 96
    retrain_C: int = 36
    retrain_layers: int = 20
    retrain_lr: float = 0.025
    retrain_lr_min: float = 0.0
    retrain_autocast: bool = False
    retrain_smoothing: float = 0.0
    retrain_average: float = 0.0
    retrain_muon: float = 0.0
    retrain_alternate: bool = False
    retrain_views: bool = False
    held_out_every: int = 1
    drop_path: float = 0.2
    pad: int = 4
    flip: bool = True
    cutout: int = 16
    threads: int | None = None
    graphed: bool = True

    def __post_init__(self) -> None:
        # In a checkpoint they are plain data.
        made = tuple(m if isinstance(m, Mutation) else Mutation(**m) for m in self.mutations)
        object.__setattr__(self, "mutations", tuple(sorted(made, key=lambda m: m.epoch)))
        if self.order not in (1, 2):
            raise InvalidInputError(f"order must be 1 or 2, got {self.order!r}", argument="order")
        for name, least in (
            ("warmup", 0),
            ("epochs", 1),
            ("retrain_epochs", 0),
            ("batch", 1),
            ("held_out_every", 1),
        ):
            if getattr(self, name) < least:
                raise InvalidInputError(
                    f"{name} must be at least {least}, got {getattr(self, name)}", argument=name
                )


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "darts": Preset(),
        # For small images on a CPU: time depends on the number of calls, so batches are large.
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
