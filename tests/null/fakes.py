"""Backends with scripted behaviour, a clock that moves when it is told to, and plugins made of air."""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from nxcore.measure import race
from nxcore.measure.race import Effort
from nxcore.measure.timing import Timing
from nxcore.ops import nxcore_ops
from nxcore.plugin import API_VERSION, REQUIRED, hookimpl
from nxcore.registry import reference
from nxcore.registry.registry import Registry, Source
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.kernel import YES, Backend, Kernel, Verdict
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.sample import Sample, rand
from nxcore.spec.spec import OpSpec, Param
from nxcore.trust.conditions import variants, whole
from nxcore.trust.identity import Identities, Identity
from nxcore.trust.memory import each

SPECS = {spec.name: spec for spec in nxcore_ops()}
CORE = Source("core", "nxcore-kernels")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
QUICK = Effort(looks=(12,), warm_s=1e-4, budget_s=1.0)
DIFFERENTIABLE = sorted(name for name, spec in SPECS.items() if spec.gradient)


def one_shape(spec: OpSpec) -> bool:
    """Tell whether an operator takes tensors of one shape alone: tests derive its calls then."""
    plain = all(p.kind == "tensor" and p.default is REQUIRED for p in spec.params)
    return plain and all(len({s.shape for s in sample.sketches}) == 1 for sample in spec.samples)


def modest(spec: OpSpec) -> list[Sample]:
    """Return the samples that need little time and memory."""
    return [s for s in spec.samples if not {"bench", "huge"} & s.tags]


def verified_runs(op: str, dtype: torch.dtype = torch.float32) -> int:
    """Return how often the gate runs a kernel that is right."""
    spec = SPECS[op]
    smoke = [s.build(spec, "cpu", dtype) for s in spec.tagged("smoke")]
    first, *others = [args for args in smoke if whole(spec, args)]
    # The first twice: plainly, moved, in a thread, in inference mode, and each of its variants.
    return len(smoke) + len(others) + 2 * (4 + len(variants(spec, first, Problem.of(spec, first))))


class Clock:
    """Nanoseconds that pass only where a fake says so, and one at each look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now

    def costing(self, us: float, call: Callable[..., Any] = lambda *args: None) -> Callable[..., Any]:
        """Return ``call`` that takes ``us`` microseconds of this clock."""

        @functools.wraps(call)
        def timed(*args: Any) -> Any:
            self.now += round(us * 1e3)
            return call(*args)

        return timed


class Counter:
    """A kernel in disguise that knows how often it ran."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.count = call, 0

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        return self.call(*args)


class Moody:
    """An addition that works until it is told not to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.error:
            raise self.error
        return SPECS["add"].reference(*args)


@dataclass(frozen=True)
class FakeKernel(Kernel):
    """A kernel whose planner is given, not imported."""

    planner: Callable[..., Any] = lambda problem: None

    @property
    def plan(self) -> Callable[..., Any]:
        return self.planner


def first(result: Any) -> Any:
    """Return the result that may have a gradient: of several the first."""
    return result[0] if isinstance(result, tuple) else result


def _aligned(call: Callable[..., Any], *args: Any) -> Any:
    """Call on copies at even addresses: torch's batch_norm ends a CUDA context elsewhere, in float16."""
    return call(*each(args, lambda t: t.clone() if t.is_cuda and t.data_ptr() % 16 else t))


def kernel(op: str, call: Callable[..., Any] | None = None, **how: Any) -> FakeKernel:
    """Return a kernel: torch's reference in disguise, or ``call``."""
    # Never the very object: nxcore would take it for torch's own call.
    run = call or Counter(functools.partial(_aligned, SPECS[op].reference))
    how = {"dtypes": DTYPES, "target": f"fakes:{op}_{how.get('variant', '')}"} | how
    return FakeKernel(op=op, **({"planner": lambda problem: run} | how))


def backend(name: str = "fake", *kernels: Kernel, probe: Callable[[], Verdict] = lambda: YES) -> Backend:
    """Return a backend of these kernels; of the reference in disguise for every operator if none is given."""
    return Backend(name, probe, kernels or tuple(kernel(op) for op in SPECS), api=API_VERSION)


def specs_with(*changed: OpSpec) -> list[OpSpec]:
    """Return the core's operators, with these in place of those of their names."""
    return list((SPECS | {spec.name: spec for spec in changed}).values())


def addition(clock: Clock, us: float = 100.0) -> list[OpSpec]:
    """Return the core's operators, of which an addition takes torch so many microseconds of a clock."""
    add = SPECS["add"]
    return specs_with(replace(add, reference=clock.costing(us, add.reference), idioms={}))


def adders(clock: Clock, us: dict[str, float], call: Callable[..., Any] | None = None) -> list[Backend]:
    """Return backends with a kernel each, to which an addition takes so many microseconds of a clock."""
    call = call or SPECS["add"].reference
    return [backend(n, kernel("add", clock.costing(t, call), target=f"{n}:plan")) for n, t in us.items()]


def registry(*backends: Backend, specs: Sequence[OpSpec] | None = None) -> Registry:
    """Return a registry of the core's operators, torch and ``backends``."""
    found = Registry()
    specs = list(SPECS.values()) if specs is None else specs
    found.add_ops(specs, CORE)
    found.add_backend(reference.backend(specs), CORE)
    for b in backends:
        found.add_backend(b, Source(b.name, f"nxcore-{b.name} 1.0"))
    return found


def session(*backends: Backend, specs: Sequence[OpSpec] | None = None, effort: Effort = QUICK) -> Session:
    """Return a session that knows nothing of what is installed."""
    return Session(Settings(policy="measure"), registry(*backends, specs=specs), effort)


def raced(monkeypatch: Any, run: Callable[..., Any]) -> None:
    """Have a function measure candidates in place of the race."""
    monkeypatch.setattr(race, "race", run)


def clocked(monkeypatch: Any, clock: Clock) -> None:
    """Have races read a clock that their candidates move."""
    raced(monkeypatch, functools.partial(race.race, clock=clock))


def scripted(clock: Clock, monkeypatch: Any, op: str, times: dict[str, float], **how: Any) -> Session:
    """Return a session in which each kernel of ``op`` takes the microseconds that ``times`` gives its label.

    ``torch`` and ``torch-idiom`` are torch's; each other label is a backend of its own.
    """
    clocked(monkeypatch, clock)
    spec = SPECS[op]
    idioms = {
        label.removeprefix("torch-"): clock.costing(us, spec.reference)
        for label, us in times.items()
        if label.startswith("torch-")
    }
    spec = replace(spec, reference=clock.costing(times["torch"], spec.reference), idioms=idioms)
    others = [
        backend(label, kernel(op, clock.costing(us, SPECS[op].reference), **how))
        for label, us in times.items()
        if not label.startswith("torch")
    ]
    return session(*others, specs=specs_with(spec))


def on_cuda(*shape: int, dtype: torch.dtype = torch.float32) -> TensorMeta:
    """Return a tensor minus its data, as if on a CUDA device."""
    strides = torch.empty(shape, device="meta").stride()
    return TensorMeta(shape, strides, dtype, torch.device("cuda", 0))


def timing(us: Sequence[float]) -> Timing:
    """Return a CPU timing of these blocks."""
    return Timing(tuple(us), tuple(us))


def build(op: str, name: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """Return the arguments of one of an operator's samples, on the CPU."""
    return next(s for s in SPECS[op].samples if s.name == name).build(SPECS[op], "cpu", dtype)


def called(operator: Any, args: tuple[Any, ...]) -> Any:
    """Call an operator with all arguments positional, but for those that are keywords only."""
    params = operator.spec.params[: len(args)]
    named = {p.name: a for p, a in zip(params, args, strict=True) if p.keyword}
    return operator(*args[: len(args) - len(named)], **named)


def leaves(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested sequence."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in leaves(v)] if isinstance(value, tuple | list) else []


@contextlib.contextmanager
def counting_resolves(operator: Any) -> Iterator[list[str]]:
    """Note the label of every plan that ``operator`` asks its session for."""
    seen: list[str] = []
    resolve = operator._resolve

    def counted(*args: Any) -> Any:
        plan = resolve(*args)
        seen.append(plan.label)
        return plan

    operator._resolve = counted
    try:
        yield seen
    finally:
        operator._resolve = resolve


def twice(name: str = "twice", **how: Any) -> OpSpec:
    """Return an operator that nobody else has."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        """Return ``2 * x``."""
        return 2 * x

    facts = {
        "params": (Param("x", "tensor"),),
        "reference": reference,
        "check": lambda x: None,
        "cost": lambda x: None,
        "samples": (Sample("some", (rand(33),), tags=frozenset({"smoke"})),),
        "errors": (),
        "magnitude": lambda x: 2 * x.abs(),
        "terms": lambda x: 1,
    }
    return OpSpec(name=name, **(facts | how))


@dataclass(frozen=True)
class Distribution:
    """A distribution as an entry point sees it."""

    name: str
    version: str


class Entry:
    """An entry point that loads what it was given, or raises it."""

    group = "nxcore"

    def __init__(self, name: str, module: Any, dist: str | None = None, version: str = "3.2") -> None:
        self.name, self.module, self.value = name, module, f"{dist or name}_module"
        self.dist = Distribution(dist or f"nxcore-{name}", version)
        self.loaded = 0

    def load(self) -> Any:
        self.loaded += 1
        if isinstance(self.module, Exception):
            raise self.module
        return self.module


def identified(monkeypatch: Any, identity: str | Callable[[Backend, Kernel], str] = "1") -> None:
    """Give kernels an identity, one for all unless it is a function: that of scripted ones isn't known."""

    def of(_: Any, backend: Backend, kernel: Kernel, spec: OpSpec) -> Identity:
        found = identity if isinstance(identity, str) else identity(backend, kernel)
        return Identity(found, found)

    monkeypatch.setattr(Identities, "of", of)


def plugin(**hooks: Callable[[], Any]) -> types.ModuleType:
    """Return a module with these hooks."""
    module = types.ModuleType("made_of_air")
    module.__file__ = "/nowhere/made_of_air.py"
    for name, hook in hooks.items():
        setattr(module, name, hookimpl(_named(name, hook)))
    return module


def _named(name: str, hook: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        return hook()

    call.__name__ = name
    return call


def saved_by(op: Callable[..., Any], *args: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return a call's result, and the tensors that it saves for its gradient."""
    saved: list[torch.Tensor] = []
    with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        return op(*args), saved


def raising(error: Exception | type[Exception]) -> Callable[..., Any]:
    """Return a callable that raises."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise error

    return call
