"""prepare: a search's kernels are compiled before its first epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nxcore.nas.networks import EvalNetwork
from nxcore.nas.step import threads
from nxcore.nn.prepare import built, step
from nxcore.observe.bar import Advance
from nxcore.session import default

if TYPE_CHECKING:
    from nxcore.nas.trainer import Trainer


def prepare(trainer: Trainer, advance: Advance = lambda *_: None) -> None:
    """Have workers compile the kernels of the next epoch's steps; what the trainer computes is unchanged.

    Nothing is measured: the first epoch does that, or learns. Nothing is done where that isn't faster, with
    fewer than two workers, nor under policies that neither measure nor learn.

    Parameters
    ----------
    trainer : Trainer
        A trainer in any phase; each network is prepared for itself.
    advance : callable
        Called after each kernel with its name, how many are done, and how many there are.

    Examples
    --------
    >>> images = nas.data.Split(torch.randn(8, 3, 8, 8), torch.arange(8) % 2)
    >>> data = nas.data.Data("noise", ("a", "b"), images, images, images)
    >>> nas.prepare(nas.Trainer(data, nas.PRESETS["tiny"]))
    """
    p, found = trainer.preset, isinstance(trainer.net, EvalNetwork)
    size = (p.retrain_batch if found else p.batch) // trainer.world
    source = trainer.data.both if found else trainer.data.train
    images = source.images[: max(1, size)].to(trainer.device)

    def steps() -> None:
        """Make the passes of a step: over weights, and over the architecture."""
        logits: list[Any] = [] if found else list(trainer.arch())
        step(trainer.net, (images, *(row.detach() for row in logits)))
        if logits:
            step(trainer.net, (images, *logits))

    with threads(p.threads if trainer.device.type == "cpu" else None):
        built(default(), steps, advance)
