"""How a found network is trained: images mirrored in turn, Muon, a mean of the weights, views of an image.

Jordan 2024, arXiv:2404.00498, for all but Muon, which is of Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nxcore.nas.data import Split


def alternated(part: Split, seed: int, epoch: int) -> Split:
    """Return a split of which one half, drawn by ``seed``, is mirrored in odd epochs, the other in even ones.

    So an image is seen both ways in any two epochs.
    """
    first = torch.rand(len(part.labels), generator=torch.Generator().manual_seed(seed)) < 0.5
    mirrored = (first ^ bool(epoch % 2)).to(part.images.device)[:, None, None, None]
    return Split(torch.where(mirrored, part.images.flip(3), part.images), part.labels)


def of_views(scores: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the mean scores of an image as it is, shifted by a pixel up and left, and down and right.

    Each is mirrored too; the images that are not shifted count twice.
    """
    wide = functional.pad(images, (1, 1, 1, 1), "reflect")
    views = (images, images, wide[:, :, :-2, :-2], wide[:, :, 2:, 2:])
    each = [scores(x.contiguous()).clone() for view in views for x in (view, view.flip(3))]
    return torch.stack(each).mean(0)


class Mean:
    """A moving mean of a network's weights and statistics.

    Parameters
    ----------
    net : Module
    decay : float
        The share that stays in a step; less in the first ones, of which there are few.
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._own = [t.detach() for t in net.state_dict().values() if t.is_floating_point()]
        self.values = [t.clone() for t in self._own]

    def add(self) -> None:
        """Add the weights after a step."""
        self.steps += 1
        share = 1 - min(self.decay, self.steps / (self.steps + 9))
        torch._foreach_lerp_(self.values, self._own, share)

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """Let the network have the mean in this block, in its own memory, which graphs read."""
        own = [t.clone() for t in self._own]
        torch._foreach_copy_(self._own, self.values)
        try:
            yield
        finally:
            torch._foreach_copy_(self._own, own)

    def load(self, steps: int, values: list[Tensor]) -> None:
        """Continue from the steps and values of another mean."""
        self.steps = steps
        torch._foreach_copy_(self.values, list(values))

    def stay(self) -> None:
        """Give the network the mean; its own weights are lost."""
        torch._foreach_copy_(self._own, self.values)


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov's momentum, of which 1x1 convolutions take orthogonal steps.

    Such a step is nearly the orthogonal matrix next to the momentum. The weight keeps its norm, the square
    root of its rows: the batch norm that follows undoes it.

    Parameters
    ----------
    weights : iterable of Parameter
    lr, momentum, weight_decay : float
        Of SGD.
    matrices : float
        The rate of 1x1 convolutions, relative to ``lr``.
    """

    def __init__(
        self, weights: Any, lr: float, momentum: float, weight_decay: float, matrices: float
    ) -> None:
        group = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "matrices": matrices}
        super().__init__(weights, group)

    @torch.no_grad()
    def step(self, *_: Any) -> None:  # type: ignore[override]  # no closure is called
        """Make a step; the learning rate may be a tensor, which a graph reads anew."""
        (group,) = self.param_groups
        lr, momentum = group["lr"], group["momentum"]
        moved: dict[Any, list[Tensor]] = {}
        for p in group["params"]:
            if p.grad is not None:
                moved.setdefault(p.shape if p.shape[2:] == (1, 1) else None, []).append(p)
        for shape, weights in moved.items():
            held = [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in weights]
            steps: Any
            grads: Any = [p.grad for p in weights]
            if shape is None:
                grads = torch._foreach_add(grads, weights, alpha=group["weight_decay"])
            torch._foreach_mul_(held, momentum)
            torch._foreach_add_(held, grads)
            steps = torch._foreach_add(grads, held, alpha=momentum)
            if shape is not None:
                steps = [*orthogonal(torch.stack(steps).flatten(2)).mul_(group["matrices"]).view(-1, *shape)]
                norms = torch.stack(torch._foreach_norm(weights))
                torch._foreach_mul_(weights, [*(shape[0] ** 0.5 / norms)])
            torch._foreach_sub_(weights, [*torch._foreach_mul(steps, lr)])


def orthogonal(x: Tensor) -> Tensor:
    """Return nearly orthogonal matrices near to those of ``x``, (count, rows, columns), by five steps."""
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x
