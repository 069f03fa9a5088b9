"""The two passes of a search step, over weights and over the architecture; CUDA graphs on a GPU."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nxcore.graphs.graphed import Graphed
from nxcore.nas.architecture import ArchitectureParameters
from nxcore.nas.bilevel import Descent, first_order, second_order
from nxcore.nas.data import Split
from nxcore.nas.networks import EvalNetwork, SearchNetwork
from nxcore.nas.process_group import joined, place, shared, total

WARMUP = 2
"""Runs of a pass before its capture: with the policy ``measure``, the second measures pairs of operators,
since the first one's backward pass finds them.
"""


class Passes:
    """Forward and backward of a network, on every rank's share of a batch.

    Networks in other modes than ``exact``, which read the device, and the architecture's second order aren't
    replayed. ``unused`` says whether some parameters may be unused in a call. ``autocast`` (to bfloat16) and
    ``smoothing`` (of labels) are for found networks alone.
    """

    gradients: list[Tensor | None] | None = None
    """The weights' gradients of the last pass, where a graph leaves them in the same memory at each call."""

    def __init__(
        self,
        net: nn.Module,
        arch: ArchitectureParameters,
        *,
        graphed: bool,
        order: int = 1,
        unused: bool = False,
        autocast: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        self.net, self.arch, self.order = net, arch, order
        self.autocast = autocast and isinstance(net, EvalNetwork)
        self.smoothing = smoothing if isinstance(net, EvalNetwork) else 0.0
        reads = isinstance(net, SearchNetwork) and net.rule.mode != "exact"
        self.graphed = graphed and not reads
        self._shared = net if self.graphed else shared(net, unused=unused)
        how: dict[str, Any] = {"limit": 1, "warmup": WARMUP, "state": tuple(net.buffers())}
        self._replay = Graphed(self._gradients, **how)
        self._descend = Graphed(self._first_order, **how) if self.graphed else self._first_order
        # Two signatures: the last chunk of a split is smaller.
        self._score = Graphed(self._scores, limit=2, warmup=WARMUP) if self.graphed else self._scores

    def of_weights(self, batch: Split) -> tuple[Tensor, Tensor]:
        """Return loss and scores, and leave the mean gradients of all ranks in the weights' ``grad``."""
        if not self.graphed:
            loss, scores = self._forward(self._shared, batch.images, batch.labels)
            self.net.zero_grad()
            loss.backward()
            return loss.detach(), scores.detach()
        loss, scores, flat, gradients = self._replay(*batch, self._dropped(batch.images.device))
        self.gradients = gradients
        if flat is not None:
            total(flat)
        for parameter, gradient in zip(self.net.parameters(), gradients, strict=True):
            parameter.grad = gradient
        return loss, scores

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Return the scores in evaluation, with running statistics, valid until the next call."""
        logits = [] if isinstance(self.net, EvalNetwork) else [row.detach() for row in self.arch()]
        scores: Tensor = self._score(images, *logits)
        return scores

    def of_architecture(self, train: Split, validation: Split, optimizer: torch.optim.Optimizer) -> Descent:
        """Return this rank's gradient; in second order, through the step of SGD on ``train``."""
        if self.order == 1:
            found: Descent = self._descend(*validation)
            return found
        named = {name: optimizer.state.get(p, {}) for name, p in self.net.named_parameters()}
        (group,) = optimizer.param_groups
        return second_order(
            self.net,
            self.arch,
            train,
            validation,
            group["lr"],
            velocity={n: s["momentum_buffer"] for n, s in named.items() if "momentum_buffer" in s},
            momentum=group["momentum"],
            weight_decay=group["weight_decay"],
        )

    def _forward(self, net: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found = isinstance(self.net, EvalNetwork)  # its architecture is fixed
        half: Any = contextlib.nullcontext()  # autocast that a caller has stays on
        if self.autocast:
            half = torch.autocast(images.device.type, torch.bfloat16)
        with half:
            scores = net(images, *([] if found else [row.detach() for row in self.arch()]))
            return functional.cross_entropy(scores, labels, label_smoothing=self.smoothing), scores

    def _dropped(self, device: torch.device) -> Tensor | None:
        """Return the share of dropped paths as a tensor, which a graph reads anew; None where none are."""
        share = self.net.drop_path_prob if isinstance(self.net, EvalNetwork) else 0.0
        return torch.full((), float(share), device=device) if share else None

    def _gradients(self, images: Tensor, labels: Tensor, drop: Tensor | None) -> tuple[Any, ...]:
        with dropping(self.net, drop):
            loss, scores = self._forward(self.net, images, labels)
        gradients = torch.autograd.grad(loss, list(self.net.parameters()), allow_unused=True)
        # What joins them is replayed too: by single calls it takes the host longer than the message does.
        alone = place()[1] == 1
        return loss.detach(), scores.detach(), *((None, gradients) if alone else joined(gradients))

    def _scores(self, images: Tensor, *logits: Tensor) -> Tensor:
        scores: Tensor = self.net(images, *logits)
        return scores

    def _first_order(self, images: Tensor, labels: Tensor) -> Descent:
        return first_order(self.net, self.arch, Split(images, labels))


@contextlib.contextmanager
def dropping(net: nn.Module, share: Tensor | None) -> Iterator[None]:
    """Have a found network drop this share of its paths in this block; None leaves it unchanged."""
    if share is None or not isinstance(net, EvalNetwork):
        yield
        return
    before, net.drop_path_prob = net.drop_path_prob, share
    try:
        yield
    finally:
        net.drop_path_prob = before


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Set torch's number of threads in this block; None leaves it unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
