"""Front: the backend ``nxcore`` of ``torch.compile``, which gets graphs from torch's dynamo.

Dynamo's guards decide which graph serves a call, so the code of a model may be any that dynamo traces. A
graph is of torch's functions, before autograd, and has the parameters and buffers of modules as inputs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from nxcore.graphs.reads import STATES
from nxcore.graphs.recorder import Recorder, recorder_of
from nxcore.program.compilers.beside import packed
from nxcore.program.compilers.entrants import Entrants
from nxcore.program.memory import memory_of
from nxcore.program.passes.order import rewritten
from nxcore.program.replay import Around, Replay

MOST = 64
"""The most sizes of a graph whose calls are counted."""

Graph = Callable[..., Sequence[Any]]
"""Returns a graph's results, of its inputs."""

_programs: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def nxcore(graph: fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Graph:
    """Return what runs a graph of dynamo's: on a CUDA device it is replayed, once that is found to pay.

    It is the backend ``torch.compile(model, backend="nxcore")``. On a device without graphs, such as the CPU,
    the graph runs as it is.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The graph.
    inputs : sequence
        Tensors and sizes like those that it will be called with.

    Examples
    --------
    >>> double = torch.compile(lambda x: x + x, backend="nxcore")  # doctest: +SKIP
    >>> double(torch.ones(2))  # doctest: +SKIP
    tensor([2., 2.])
    """
    return programmed(graph, inputs)


def programmed(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    record: Callable[[torch.device], Recorder | None] | None = None,
    around: Around = contextlib.nullcontext,
    *,
    audits: bool = True,
    entrants: Entrants | None = None,
) -> Graph:
    """Return what runs a graph; ``record`` is as of ``nxcore.graphs.part.Part``, the rest of ``Program``."""
    device = next((t.device for t in inputs if isinstance(t, Tensor)), None)
    if device is None or (recorder := (record or recorder_of)(device)) is None:
        run: Graph = graph.forward
        return run
    return Program(graph, inputs, device, recorder, around, audits=audits, entrants=entrants)


class Program:
    """A graph of dynamo's, and the replays of its signatures: one, unless it takes sizes as numbers.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The graph.
    inputs : sequence
        Tensors and sizes like those that it will be called with.
    device : torch.device
        The device of its tensors.
    recorder : Recorder
        The recorder of that device.
    around : callable, optional
        A context for a recording.
    audits : bool, optional
        Whether replays are audited here; not where the caller audits its own calls.
    entrants : Entrants, optional
        What may serve in place of replays.

    Attributes
    ----------
    why : str
        Why it isn't replayed; empty if it may be.
    broken : str
        Why and where dynamo has ended the graph before the call's end; empty if it hasn't.
    passes : dict of str to int
        The passes that have rewritten it, and how many nodes each has put there.
    served : int
        How often it was called.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        device: torch.device,
        recorder: Recorder,
        around: Around = contextlib.nullcontext,
        *,
        audits: bool = True,
        entrants: Entrants | None = None,
    ) -> None:
        broken = getattr(graph, "compile_subgraph_reason", None)
        self.broken = _place(broken) if broken and broken.graph_break else ""
        self.why, self.served, self.device = refusal(graph, device), 0, device
        self.count = sum(node.op.startswith("call") for node in graph.graph.nodes)
        self._entrants = (
            (entrants, packed(graph)) if entrants and entrants.names and not entrants.ended else None
        )
        self.passes = {} if self.why else rewritten(graph)
        self._graph = graph
        self.run: Graph = graph.forward
        self._recorder, self._around, self._audits = recorder, around, audits
        self.replays: dict[Any, Replay] = {}
        self._owners: dict[int, weakref.ref[Tensor]] = {}
        self._stay = {i for i, t in enumerate(inputs) if _stays(t)}  # another model's aren't marked
        self._own = next((i for i, t in enumerate(inputs) if isinstance(t, nn.Parameter)), None)
        self._sized = any(_sized(node) for node in graph.graph.nodes if node.op == "placeholder")
        _programs[next(_numbers)] = self

    def end(self, why: str) -> None:
        """Run all calls from now on, and free the memory."""
        self.why = why
        for replay in self.replays.values():
            replay.end(why)

    @property
    def has_operators(self) -> bool:
        """Whether the graph has operators of nxcore's."""
        called = (getattr(node.target, "namespace", "") == "nxcore" for node in self._graph.graph.nodes)
        return bool(self.passes) or any(called)

    def renew(self) -> None:
        """Record again, by the kernels that were learnt since, where the graph has operators of nxcore's."""
        if self.has_operators:
            for replay in self.replays.values():
                replay.renew()

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Return the results of the graph."""
        if not self.served:  # dynamo has marked these tensors; where it splits a graph it has shown others
            self._stay |= {i for i, t in enumerate(inputs) if _stays(t)}
        self.served += 1
        # A graph may serve several models of one class, each with its own parameters.
        owner = None if self._own is None else inputs[self._own]
        key = (id(owner), torch.is_inference_mode_enabled(), _sizes(inputs) if self._sized else ())
        replay = self.replays.get(key)
        if replay is None:
            if len(self.replays) >= MOST:
                return self.run(*inputs)
            if owner is not None and id(owner) not in self._owners:
                self._owners[id(owner)] = weakref.ref(owner, functools.partial(self._forget, id(owner)))
            memory = memory_of(owner)
            given = self._stay, self._recorder, memory, self._around
            replay = Replay(self.run, inputs, *given, audits=self._audits, entrants=self._entrants)
            self.replays[key] = replay
            if self.why:
                replay.refuse(self.why)
        return replay(inputs)

    def _forget(self, owner: int, _: object) -> None:
        """Drop the replays of a model that is gone."""
        self._owners.pop(owner, None)
        for key in [key for key in self.replays if key[0] == owner]:
            del self.replays[key]


def replays_of(model: nn.Module) -> Iterator[tuple[Program, Replay]]:
    """Yield the replays of a model, each with its graph, in the order in which these were made."""
    owners = {*map(id, model.parameters())}
    for program in [*_programs.values()]:
        yield from ((program, replay) for (owner, *_), replay in program.replays.items() if owner in owners)


def report(model: nn.Module) -> list[str]:
    """Return the state of each graph of a model that ``torch.compile`` made with the backend, as lines."""
    return [f"{program.count} operations: {replay.report}" for program, replay in replays_of(model)]


def refusal(graph: fx.GraphModule, device: torch.device) -> str:
    """Return why a graph can't be replayed; empty if it may be.

    What the host computes would be a constant of a recording.
    """
    for module in graph.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if getattr(node.target, "__name__", "") in STATES:
                return f"its code calls {node.target.__name__}"
            if str(node.target) == "tag_activation_checkpoint" and (name := _unlike(module, node)):
                return f"its checkpoint would run {name} twice, with other numbers or one count more"
            home = getattr(node.target, "__module__", None) or ""
            if "c10d" in str(node.target) or home.startswith("torch.distributed"):
                return f"its code exchanges tensors with other ranks, by {node.target}"
            for tensor in pytree.tree_leaves(node.meta.get("example_value")):
                if isinstance(tensor, Tensor) and tensor.device.type != device.type:
                    return f"{node.name} is computed on {tensor.device.type!r}"
    return ""


def _unlike(graph: fx.GraphModule, node: fx.Node) -> str:
    """Return what a checkpoint's second run does in torch's graph alone; empty if it is as in a call."""
    inside: Any = getattr(graph, str(getattr(node.args[0], "target", "")))
    found = [getattr(each.target, "__name__", str(each.target)) for each in inside.graph.nodes]
    return next((name for name in found if "dropout" in name or name in ("batch_norm", "add_")), "")


def _place(broken: Any) -> str:
    """Return why and where dynamo has ended a graph."""
    why = str(broken.reason).partition("\n")[0].replace("step_unsupported", "dynamo traces no further")
    frame = broken.user_stack[-1]
    return f"{why}, in {Path(frame.filename).name}, line {frame.lineno}"


def _stays(value: Any) -> bool:
    """Return whether an input is a module's parameter or buffer, as dynamo marks it."""
    return isinstance(value, nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None


def _sized(node: fx.Node) -> bool:
    """Return whether an input is a number, or has a shape that isn't fixed."""
    value = node.meta.get("example_value")
    if not isinstance(value, Tensor):
        return True
    return any(isinstance(size, torch.SymInt) for size in value.shape)


def _sizes(inputs: Sequence[Any]) -> Any:
    """Return the numbers among the inputs, and the shapes of tensors that aren't a module's."""
    return tuple((t.shape, t.stride()) if isinstance(t, Tensor) else (type(t), t) for t in inputs)
