"""A search from new weights to a trained network: warm-up, search, retraining; it can be resumed."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from nxcore.errors import present
from nxcore.nas import checkpoint
from nxcore.nas.architecture import ArchitectureParameters
from nxcore.nas.data import Data, Split, augment
from nxcore.nas.genotype import Genotype
from nxcore.nas.metrics import CHUNK, Tally, evaluated
from nxcore.nas.mutation import mutate
from nxcore.nas.networks import EvalNetwork, SearchNetwork
from nxcore.nas.prefetch import Feed
from nxcore.nas.preset import Mutation, Preset
from nxcore.nas.process_group import agreed, as_first, mean, place
from nxcore.nas.remedies.known import made
from nxcore.nas.remedies.recipe import Mean, Muon, alternated, of_views
from nxcore.nas.step import Passes, threads
from nxcore.nas.update import Update

Phase = Literal["warm-up", "search", "retraining", "done"]
Epoch = Generator[None, None, dict[str, float]]


class Trainer:
    """Search on a set of images, then train the found network, one epoch at a time.

    Parameters
    ----------
    data : Data
        Images on any device.
    preset : Preset
        The settings.
    seed : int
        The seed of everything random; torch's own generators are seeded with it.
    device : torch.device or str, optional
        The computing device; by default, that of the data. Images in host memory are copied to a GPU
        through a ring of pinned buffers.

    Attributes
    ----------
    phase : str
        ``warm-up``, ``search``, ``retraining`` or ``done``; mutations happen between epochs of the search.
    epoch : int
        The number of epochs of the network in training.
    arch : ArchitectureParameters
        The architecture.
    net : Module
        The supernet; the found network from retraining on.
    genotype : Genotype
        The genotype after the last epoch of search.
    history : list of dict
        One row for each epoch, as ``advance`` returns it.

    Notes
    -----
    On several ranks of a process group with the same data, each rank takes its share of every batch, and
    gradients are averaged. Batch norms use the statistics of the rank's share.

    Examples
    --------
    >>> images = nas.data.Split(torch.randn(8, 3, 8, 8), torch.arange(8) % 2)
    >>> data = nas.data.Data("noise", ("a", "b"), images, images, images)
    >>> nas.Trainer(data, nas.PRESETS["tiny"]).phase
    'warm-up'
    """

    phase: Phase
    epoch: int
    arch: ArchitectureParameters
    net: nn.Module
    optimizer: torch.optim.Optimizer
    mean: Mean | None
    state_dict, load_state_dict = checkpoint.state_dict, checkpoint.load_state_dict

    def __init__(
        self, data: Data, preset: Preset, *, seed: int = 0, device: torch.device | str | None = None
    ) -> None:
        self.data, self.preset, self.seed = data, preset, seed
        self.device = torch.device(device or data.train.images.device)
        self.rank, self.world = place()
        torch.manual_seed(seed)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._feed = Feed(data.train.images.device, self.device, self.generator, seed)
        self.remedy = made(preset)
        self._architecture(preset.steps, preset.multiplier)
        self.genotype = self.arch.genotype()
        self.history: list[dict[str, Any]] = []
        self.spent_s, self._began_s, self._best, self._waited, self._mutated = 0.0, 0.0, math.inf, 0, 0
        self._enter("warm-up" if preset.warmup else "search")

    def run(self, folder: str | Path | None = None) -> Iterator[dict[str, Any]]:
        """Yield one row for each epoch until the search is done.

        Parameters
        ----------
        folder : path, optional
            The first rank writes ``metrics.jsonl`` here and, after every epoch, ``checkpoint.pt``.
        """
        yield from filter(None, checkpoint.recorded(self, folder))

    def advance(self) -> dict[str, Any]:
        """Train for one epoch, or grow the supernet; enter the next phase if this one is over.

        Returns
        -------
        dict
            ``phase``, ``epoch`` (from 1) of ``epochs``, ``lr``, ``loss`` and ``accuracy`` in training,
            ``validation_loss`` and ``validation_accuracy`` in the search, ``held_out_loss`` and
            ``held_out_accuracy`` in retraining, ``entropy`` before it, ``genotype``, ``seconds``, and in the
            last epoch of search or retraining ``stopped``: ``epochs``, ``patience``, ``skips`` or ``budget``.
            A ``mutation`` has ``grown`` (how), ``difference`` (the largest of scores) and ``parameters``.
        """
        *_, row = self.steps()
        return present(row, "the last row")

    def steps(self) -> Iterator[dict[str, Any] | None]:
        """Do what ``advance`` does; yield None after each batch, and the row in the end."""
        if mutation := self._mutation():
            yield self._mutate(mutation)
            return
        started, phase = time.perf_counter(), self.phase
        lr = self._anneal()
        with self._threads():
            sums = yield from (self._retrained() if phase == "retraining" else self._searched())
        if phase == "search" and not self._skipped():
            self.genotype = self.arch.genotype()
        self.epoch += 1
        row = self._row(phase, started, lr=lr, **sums)
        if stopped := self._stopped(row):
            row["stopped"] = stopped
        if stopped and phase == "search" and self.remedy.selects:
            self._select(row)
        if stopped and phase != "retraining" and self.preset.retrain_epochs:
            self._enter("retraining")
        elif stopped:
            self.phase = "done"
            if self.mean:
                self.mean.stay()
        elif phase == "warm-up" and self.epoch == self.preset.warmup:
            self.phase = "search"
        yield row

    def train(self, genotype: Genotype) -> None:
        """Enter retraining with a given genotype: nothing more is searched."""
        self.genotype = genotype
        self._enter("retraining")

    @torch.no_grad()
    def evaluate(self, part: Split) -> tuple[float, float]:
        """Return the network's loss and accuracy on a split, with running statistics."""
        as_first(self.net)
        scores: Any = self.passes.scores
        if self.preset.retrain_views and isinstance(self.net, EvalNetwork):
            scores = functools.partial(of_views, scores)
        with self.mean.there() if self.mean else contextlib.nullcontext():
            return evaluated(self.net, scores, part, self.device)

    def save(self, path: str | Path) -> None:
        """Write the state to a file, atomically: on failure, the file is unchanged."""
        checkpoint.write(self.state_dict(), Path(path))

    @classmethod
    def restore(cls, path: str | Path, data: Data, *, device: torch.device | str | None = None) -> Trainer:
        """Return a trainer that continues from a saved one; on the CPU, with bitwise equal results.

        Parameters
        ----------
        path : path
            A file written by ``save``.
        data : Data
            The same images, in the same splits.
        device : torch.device or str, optional
            A device of the same type as before: states of random generators differ between types.

        Raises
        ------
        InvalidInputError
            If the file has another format, other data, or another type of device.
        """
        state = checkpoint.read(path)
        checkpoint.require(state, path, data, torch.device(device or data.train.images.device))
        trainer = cls(data, Preset(**state["preset"]), seed=state["seed"], device=device)
        trainer.load_state_dict(state)
        return trainer

    def _threads(self) -> AbstractContextManager[None]:
        return threads(self.preset.threads if self.device.type == "cpu" else None)

    def _architecture(self, steps: int, multiplier: int) -> None:
        """Make an architecture and its optimizer."""
        p = self.preset
        self.arch = self.remedy.architecture(steps, p.primitives, multiplier).to(self.device)
        decay, fused = p.arch_weight_decay, self.device.type == "cuda" or None  # fused: one launch
        self.arch_optimizer = torch.optim.Adam(
            self.arch.parameters(), lr=p.arch_lr, betas=p.arch_betas, weight_decay=decay, fused=fused
        )

    def _mutation(self) -> Mutation | None:
        """Return the next mutation if its epoch is reached."""
        due = self.preset.mutations[self._mutated : self._mutated + 1]
        return due[0] if due and self.phase == "search" and due[0].epoch <= self.epoch else None

    def _mutate(self, mutation: Mutation) -> dict[str, Any]:
        """Grow the supernet; the search continues with its optimizers' state."""
        started = time.perf_counter()
        assert isinstance(self.net, SearchNetwork)  # noqa: S101  true in every search
        as_first(self.net)
        optimizers = self.optimizer, self.arch_optimizer
        rng = torch.Generator().manual_seed(self.seed + self._mutated)
        images = self.data.validation.images[:CHUNK].to(self.device)
        with self._threads():
            self.net, self.arch, difference = mutate(mutation, self.net, self.arch, optimizers, images, rng)
        self._mutated += 1
        self._renew_passes()
        count = sum(p.numel() for p in self.net.parameters())
        return self._row("mutation", started, grown=str(mutation), difference=difference, parameters=count)

    def _row(self, phase: str, started: float, **more: Any) -> dict[str, Any]:
        """Append a row for the time since ``started``."""
        if isinstance(self.net, SearchNetwork):  # an architecture is searched
            with torch.no_grad():  # a node of the logits on this stream would end a later capture on another
                more["entropy"] = self.arch.entropy().item()
        row = {
            "phase": phase,
            "epoch": self.epoch,
            "epochs": self._epochs(),
            **more,
            "genotype": self.genotype._asdict(),
            "seconds": agreed(time.perf_counter() - started, self.device),
        }
        self.spent_s += row["seconds"]
        self.history.append(row)
        return row

    def _enter(self, phase: Phase, C: int | None = None, inserted: Sequence[int] = ()) -> None:
        """Begin a phase with a new network; a supernet may have grown."""
        p, self.phase, self.epoch, self._began_s = self.preset, phase, 0, self.spent_s
        retrains = phase == "retraining"
        classes, channels = len(self.data.classes), self.data.train.images.shape[1]
        with self._threads():  # trials of a patch are small
            if retrains:
                self.net = EvalNetwork(self.genotype, p.retrain_C, classes, p.retrain_layers, 3, channels)
            else:
                sizes = C or p.C, classes, p.layers, self.arch.steps, self.arch.multiplier
                space: dict[str, Any] = {"primitives": p.primitives, "mode": p.mode, "inserted": inserted}
                space["graphs"] = self.device.type == "cuda"
                self.net = self.remedy.network(*sizes, **space, in_channels=channels)
        self.net.to(self.device)
        self._renew_passes()
        how: dict[str, Any] = {"lr": p.lr, "momentum": p.momentum, "weight_decay": p.weight_decay}
        if retrains and p.retrain_muon:
            self.optimizer = Muon(self.net.parameters(), **how, matrices=p.retrain_muon)
        else:
            fused = self.device.type == "cuda" or None  # 1,400 weights, in a few launches
            self.optimizer = torch.optim.SGD(self.net.parameters(), **how, fused=fused)
        self.update = Update(self.optimizer, p.clip)
        self.mean = Mean(self.net, p.retrain_average) if retrains and p.retrain_average else None

    def _renew_passes(self) -> None:
        """Make the passes of the current network: graphs hold the tensors of one network."""
        p = self.preset
        unused = p.mode != "exact" or self.arch.multiplier < self.arch.steps
        how: dict[str, Any] = {"order": p.order, "unused": unused, "autocast": p.retrain_autocast}
        how["smoothing"] = p.retrain_smoothing
        self.passes = Passes(self.net, self.arch, graphed=p.graphed and self.device.type == "cuda", **how)

    def _epochs(self) -> int:
        p = self.preset
        return p.retrain_epochs if self.phase == "retraining" else p.warmup + p.epochs

    def _batches(self, part: Split, size: int) -> Iterator[Split]:
        return self._feed.batches(part, max(1, size // self.world), rank=self.rank, world=self.world)

    def _ends_s(self) -> float:
        return self.preset.budget_s / (1 if self.phase == "retraining" else 2)

    def _anneal(self) -> float:
        """Set learning rate and path dropping for this epoch, by epochs or by the budget."""
        p, done = self.preset, self.epoch / self._epochs()
        first, last = p.lr, p.lr_min
        if isinstance(self.net, EvalNetwork):
            first, last = p.retrain_lr, p.retrain_lr_min
            self.net.drop_path_prob = p.drop_path * done
        if (seconds := self._ends_s() - self._began_s) > 0:
            done = max(done, (self.spent_s - self._began_s) / seconds)
        if self.phase == "search":
            self.remedy.anneal(self.net, done)
        lr = last + (first - last) * (1 + math.cos(math.pi * done)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _searched(self) -> Epoch:
        """Train the weights for an epoch and, after warm-up, in turn the architecture."""
        size, moves = self.preset.batch, self.phase == "search"
        if isinstance(self.net, SearchNetwork):
            self.net.decide(*(row.detach() for row in self.arch()))  # once an epoch, in modes that decide
        of_weights, of_architecture = Tally(self.device), Tally(self.device)
        rest = self._batches(self.data.validation, size)
        for train in self._batches(self.data.train, size):
            batch = self._augmented(train, flip=self.preset.flip)
            if moves:
                validation = self._augmented(next(rest), flip=self.preset.flip)
                found = self.passes.of_architecture(batch, validation, self.optimizer)
                self.arch.logits.grad = mean(found.gradient)
                self.arch_optimizer.step()
                of_architecture.add(found.loss, found.scores, validation.labels)
            self._learn(batch, of_weights)
            yield
        row = dict(zip(("loss", "accuracy"), of_weights.read(), strict=True))
        if moves:
            row["validation_loss"], row["validation_accuracy"] = of_architecture.read()
        return row

    def _retrained(self) -> Epoch:
        tally, p, done = Tally(self.device), self.preset, self.epoch + 1
        part = alternated(self.data.both, self.seed, done) if p.retrain_alternate else self.data.both
        for batch in self._batches(part, p.retrain_batch):
            self._learn(self._augmented(batch, p.cutout, flip=p.flip and not p.retrain_alternate), tally)
            if self.mean:
                self.mean.add()
            yield
        row = dict(zip(("loss", "accuracy"), tally.read(), strict=True))
        took = self.history[-1]["seconds"] if self.history else math.inf
        last = done == self._epochs() or self.spent_s + 2 * took >= p.budget_s  # or it may be
        if last or done % p.held_out_every == 0:
            row["held_out_loss"], row["held_out_accuracy"] = self.evaluate(self.data.held_out)
        return row

    def _learn(self, batch: Split, tally: Tally) -> None:
        loss, scores = self.passes.of_weights(batch)
        self.update(self.passes.gradients)
        tally.add(loss, scores, batch.labels)

    def _augmented(self, batch: Split, cutout: int = 0, *, flip: bool) -> Split:
        images = augment(batch.images, self.generator, pad=self.preset.pad, flip=flip, cutout=cutout)
        return Split(images, batch.labels)

    def _stopped(self, row: dict[str, Any]) -> str:
        """Return why this phase ends with this epoch; empty if it does not."""
        p = self.preset
        if self.phase == "search":
            better = row["validation_loss"] < self._best
            self._best = min(self._best, row["validation_loss"])
            self._waited = 0 if better else self._waited + 1
        if self.epoch >= self._epochs():
            return "epochs"
        if self.spent_s >= self._ends_s():
            return "budget"
        if self.phase == "search" and p.patience is not None and self._waited >= p.patience:
            return "patience"
        return "skips" if self.phase == "search" and self._skipped() else ""

    def _select(self, row: dict[str, Any]) -> None:
        """Let the remedy choose the genotype at the end of a search."""
        started = time.perf_counter()
        with self._threads():
            self.genotype = self.remedy.selected(self)
        row["genotype"] = self.genotype._asdict()
        seconds = agreed(time.perf_counter() - started, self.device)
        row["seconds"] += seconds
        self.spent_s += seconds

    def _skipped(self) -> bool:
        most = self.preset.skips if self.remedy.skips is None else self.remedy.skips
        return most is not None and self.arch.genotype().skips() > most
