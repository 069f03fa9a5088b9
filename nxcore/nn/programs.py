"""Programs: an accelerated model whose calls are graphs of torch's dynamo, replayed as CUDA graphs.

Dynamo's guards say whether a graph still is what the model's code does; where none is, the call runs, and no
graph is made within it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from nxcore.context import Purpose, in_force
from nxcore.graphs.dice import hosts, put_hosts_back
from nxcore.graphs.hooks import hooked
from nxcore.graphs.part import SELDOM
from nxcore.graphs.recorder import Recorder
from nxcore.graphs.snapshot import attributes
from nxcore.graphs.whole import FOUND
from nxcore.measure.collection import young_alone
from nxcore.nn.marks import alike, mode_of, requested, tensors
from nxcore.nn.tracing import Siblings, plainly
from nxcore.nn.whole import LOOK, beside, parts_of, recorder_for
from nxcore.program.audit import Audits, audited
from nxcore.program.compilers.entrants import Entrants
from nxcore.program.front import Graph, Program, programmed
from nxcore.program.memory import leave, spare
from nxcore.program.names import Names, draws
from nxcore.program.replay import Replay, State, unfit
from nxcore.session import default

MET = 2
"""Calls of a signature before its graphs are made."""

MOST, KEPT = 8, 256
"""The most times that graphs are made: dynamo itself keeps no more of one function. The most signatures that
are counted.
"""

CONFIG = {
    "skip_nnmodule_hook_guards": False,
    "skip_fsdp_guards": False,
    "suppress_errors": True,
    "optimize_ddp": False,
}
"""Settings of dynamo's under which graphs are made: hooks that a module gets later are seen, and the graph of
a model within ``DistributedDataParallel`` is whole.
"""

SHARDED = {"FSDPModule", "FullyShardedDataParallel"}
"""Classes of torch's whose modules hold a part of each parameter."""

IN_VAIN = 16
"""Calls in a row without a graph after which no further one is looked for."""


class _TracedError(Exception):
    """A graph of the whole call is made, and nothing of the call has run."""


class ModelProgram:
    """Replays the calls of a model.

    Parameters
    ----------
    model : torch.nn.Module
        The model; no reference to it is kept.
    record : callable
        As of ``nxcore.graphs.part.Part``.
    entrants : sequence of str, optional
        Modes and backends of ``torch.compile`` that may serve in place of replays.

    Attributes
    ----------
    resting : bool
        Whether a watch over the model's steps lets all calls run.
    refusal : str
        Why all calls run; empty if they needn't.
    made : int
        The recordings so far.
    entrants : Entrants
        What may serve in place of replays.
    """

    def __init__(
        self,
        model: nn.Module,
        record: Callable[[torch.device], Recorder | None],
        entrants: Sequence[str] = (),
    ) -> None:
        self.resting, self.refusal, self.made, self._interrupted = False, "", 0, 0
        self.entrants = Entrants(entrants)
        self._of, self._record = weakref.ref(model), record
        self._programs: list[Program] = []
        self._met: dict[Any, int] = {}
        self._due = set[Any]()  # the signatures of which graphs are to be made
        self._calls, self._made, self._missed = 0, 0, 0
        self._whole, self._pure, self._audits = True, True, Audits()
        self._tracing = 0  # the thread in whose call graphs are made
        self._names: list[Names | Siblings] = []
        self._siblings = Siblings(model)
        self._early, self._swept = False, True
        self._compiled: Callable[..., Any] | None = None
        self._run: Callable[..., Any] = _root()
        self._code: types.CodeType | None = None  # of what dynamo gets

    @property
    def interrupted(self) -> int:
        """The traces, audits and compilations so far, whose steps say nothing of how fast others are."""
        return self._interrupted + self.entrants.works

    @property
    def captured(self) -> int:
        """The number of signatures that are replayed."""
        return sum(replay.state is State.OURS for replay in self._replays)

    @property
    def pool(self) -> int:
        """The bytes of the device's memory that recordings have taken."""
        return sum(memory.bytes for memory in {replay.memory for replay in self._replays})

    @property
    def saved_ms(self) -> float:
        """The milliseconds that replays save a call; 0 where nothing is replayed."""
        return sum(r.ran_ms - r.replayed_ms for r in self._replays if r.state is State.OURS)

    @property
    def stands(self) -> bool:
        """Whether calls are replayed, or may be."""
        return not self.refusal

    @property
    def pending(self) -> bool:
        """Whether one of the next calls may be recorded."""
        waits = [replay.state in (State.COUNTING, State.WAITING) for replay in self._replays]
        return self.stands and bool(self._met) and (any(waits) or not self._made)

    @property
    def state(self) -> str:
        """Whether its calls run or replay, and why."""
        if self.refusal:
            return f"runs: {self.refusal}"
        if not self._programs:
            return f"runs: calls so far: {self._calls}"
        return (
            "; ".join(f"{p.count} operations: {r.report}" for p, r in self._graphs)
            or "no call of a graph yet"
        )

    @property
    def report(self) -> list[str]:
        """Its state, as lines."""
        return [f"the model: {self.state}", *self.entrants.report]

    @property
    def _graphs(self) -> list[tuple[Program, Replay]]:
        return [(program, replay) for program in self._programs for replay in program.replays.values()]

    @property
    def _replays(self) -> list[Replay]:
        return [replay for _, replay in self._graphs]

    @property
    def _served(self) -> int:
        return sum(program.served for program in self._programs)

    def end(self, why: str) -> None:
        """Run all calls from now on; free the recordings."""
        self.refusal = why
        for program in self._programs:
            program.end(why)
        self._programs.clear()
        self._names.clear()

    def call(self, module: nn.Module, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replay the call, if there is a graph of it; otherwise run it, by ``call``."""
        if self.refusal or module is not self._of() or unfit() or hooked(module) or requested():
            return call(*args, **kwargs)
        self.entrants.mode = mode_of(module)
        if self.resting and not self.entrants.warms:
            self._swept = not self._programs
            return call(*args, **kwargs)
        if not self._swept:  # the memory of plain steps
            self._swept = True
            leave(self._programs[0].device)
        self._calls += 1
        if self._due or not self._programs:
            key = _key(module, args, kwargs)
            if key in self._due:
                self._due.discard(key)
                return self._traced(module, call, args, kwargs)
            if not self._programs:
                self._miss(key)
                # The graph has kernels of its own: what is chosen and verified here would serve few calls.
                first = self._met.get(key, 0) <= MET
                with in_force(purpose=Purpose.WAIT) if first else contextlib.nullcontext():
                    return call(*args, **kwargs)
        if self._calls % LOOK == 0:
            self._look()
        if not all(names.hold() for names in self._names):
            self._rebound()
        if not self._programs:  # what was looked at has ended them
            return call(*args, **kwargs)
        before = self._served
        if self._pure and self._audits.due(lambda: spare(self._programs[0].device, self.pool)):
            result = self._audited(module, call, args, kwargs)
        else:
            result = self._run(module, *args, **kwargs)  # by graphs, or as it is where their guards fail
        if self._served == before:
            self._miss(_key(module, args, kwargs))
        else:
            self._missed = 0
        return result

    def _miss(self, key: Any) -> None:
        """Count a call that no graph serves; let dynamo make one of the next like it, if it comes often."""
        met = self._met[key] = self._met.get(key, 0) + 1
        self._missed += 1
        if len(self._met) > KEPT:
            self._met.clear()
        if self._made < MOST:
            if met >= MET and met * SELDOM >= self._calls:
                self._due.add(key)
        elif self._missed >= IN_VAIN:
            self.end(f"dynamo has made graphs for {MOST} signatures or states, and none is of its calls now")

    def _traced(
        self, module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Let dynamo make graphs of the call, and run it: by ``call``, unless graphs are of parts of it."""
        self._made, host = self._made + 1, hosts()
        self._tracing, self._interrupted = threading.get_ident(), self._interrupted + 1
        self._siblings = Siblings(module)
        dynamo = importlib.import_module("torch._dynamo")  # which takes seconds
        if self._compiled is None:
            how: Any = {"backend": self._backend, "options": {"guard_filter_fn": self._kept}}
            root = _root()
            self._code, self._compiled = root.__code__, torch.compile(root, dynamic=False, **how)
            self._run = dynamo.run(self._compiled)
        try:
            with dynamo.config.patch(**CONFIG), plainly(module):
                result = self._compiled(module, *args, **kwargs)
        except _TracedError:
            put_hosts_back(host)
            result = call(*args, **kwargs)
        finally:
            self._tracing = 0
        if not self._programs and not self.refusal:
            self.end("dynamo has made no graph of it")
        elif self._programs and all(program.why for program in self._programs):
            self.end(self._programs[0].why)
        return result

    def _kept(self, entries: Sequence[Any]) -> list[bool]:
        """Return which of dynamo's guards are kept; hold the methods of classes that it has met."""
        found = [e.value for e in entries if e.has_value and isinstance(e.value, type)]
        own = [cls for cls in found if not issubclass(cls, nn.Module)]
        met = [cls for cls in own if not cls.__module__.startswith("torch")]
        if met:
            self._names.append(Names(nn.Module(), fx.GraphModule({}, fx.Graph()), met))
        return self._siblings.kept(entries)

    def _rebound(self) -> None:
        """Forget all graphs: a name that dynamo takes for fixed has another value than it had."""
        if self._whole and self._made < MOST:
            for program in self._programs:
                program.end("a method, a function of torch or the environment was changed")
            self._programs.clear()
            self._names.clear()
            self._compiled = None
        else:  # graphs of parts are tied to the user's own functions
            self.end("a method, a function of torch or the environment was changed")

    def _backend(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Graph:
        """Return what runs a graph; in the call of which it was made, that is the user's own code."""
        reason = getattr(graph, "compile_subgraph_reason", None)
        dynamo = importlib.import_module("torch._dynamo")
        frame = dynamo.symbolic_convert.InstructionTranslator.current_tx()
        # In the model's own frame alone nothing of the call has run yet.
        apiece = reason is None or reason.graph_break or frame.f_code is not self._code
        effects = frame.output.side_effects
        self._whole = self._whole and not apiece
        self._pure = self._pure and self._whole and not _changes(effects)
        if (model := self._of()) is not None:
            found = [*map(vars, effects.id_to_variable.values())]
            met = [own.get("value", own.get("random")) for own in found]
            if draws(graph, met):
                raise dynamo.exc.SkipFrame("its random numbers would be others")
            self._names += [Names(model, graph, met), self._siblings]
        made = programmed(
            graph, inputs, self._record, self._as_is, audits=not self._pure, entrants=self.entrants
        )
        if not isinstance(made, Program):
            return made
        self._programs.append(made)
        if "checkpoint" in made.why:  # the graph isn't what the code does, also where it runs
            self.end(made.why)
            raise dynamo.exc.SkipFrame(made.why)

        def run(*inputs: Any) -> Sequence[Any]:
            if self._tracing == threading.get_ident() and not apiece:
                raise _TracedError
            return made(*inputs)

        return run

    @contextlib.contextmanager
    def _as_is(self) -> Iterator[None]:
        """Have a recording take what is known: torch serves the rest, and no call waits for it."""
        chooser = default().chooser
        chooser.beforehand.end()
        chooser.survey.left_to_calls = 0
        self.made += 1
        with young_alone(), chooser.tuner.gate.store.later(*FOUND), beside():
            yield

    def _look(self) -> None:
        """Give the model back if nothing is replayed; record again once more is learnt."""
        self._due.clear()  # those that came no more
        states = {replay.state for replay in self._replays}
        if states and states <= {State.PLAIN, State.REFUSED} and self.entrants.over:
            self.end(self.state.removeprefix("runs: "))
        elif default().learning:
            self._early = True
        elif self._early:
            self._early, self._audits = False, Audits()
            for program in self._programs:
                program.renew()

    def _audited(
        self, module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of the model's own call, compared with that of its graphs."""
        self._swept, self._interrupted = False, self._interrupted + 1
        own = [t for m in module.modules() for _, value in attributes(m) for t in tensors(value)]
        recorder = self._record(self._programs[0].device)
        if recorder is None:
            return call(*args, **kwargs)

        def replayed(before: int = self._served) -> Any:
            result = self._run(module, *args, **kwargs)
            return None if self._served == before else result

        return audited(
            functools.partial(call, *args, **kwargs),
            replayed,
            [t for t in (*module.parameters(), *own, *tensors(args), *tensors(kwargs)) if t.is_leaf],
            [t for t in (*module.buffers(), *own) if not t.requires_grad],
            recorder,
            self._audits,
            self.end,
        )


def program_for(model: nn.Module, entrants: Sequence[str] = ()) -> ModelProgram | str | None:
    """Return what replays the calls of ``model`` by dynamo's graphs; or why nothing does.

    None for a single layer, whose calls launch little.
    """
    if next(model.children(), None) is None:
        return None
    if next(parts_of(model), None) is not None:
        return "parts of it may be"
    for name, module in model.named_modules():
        if vars(module).get("_compiled_call_impl") is not None or isinstance(module, torch.jit.ScriptModule):
            return f"{name or 'it'} is compiled"
        if any(cls.__name__ in SHARDED for cls in type(module).__mro__):
            return f"{name or 'it'} is sharded: its parameters come and go within a call"
    return ModelProgram(model, recorder_for, entrants)


def _root() -> Callable[..., Any]:
    """Return a function that runs a model, with code of its own, to which dynamo's graphs are tied."""

    def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module.forward(*args, **kwargs)

    return types.FunctionType(run.__code__.replace(), globals(), "run")


def _key(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what is equal for calls that are alike."""
    return alike(args, kwargs), mode_of(module)


def _changes(effects: Any) -> bool:
    """Return whether the code that dynamo traces changes an object that it was given, but for tensors."""
    from torch._dynamo.variables import base

    given = (base.AttributeMutationExisting, base.ValueMutationExisting)
    found = effects.id_to_variable.values()
    return any(isinstance(v.mutation_type, given) and effects.is_modified(v) for v in found)
