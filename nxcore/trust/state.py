"""State: settings of the process or thread, which a kernel must not change."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import warnings
from _signal import getsignal as _handler  # type: ignore[import-not-found]  # without the name: 3 us a signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._device import DeviceContext

from nxcore.interop import internals
from nxcore.spec import driver
from nxcore.spec.precision import setting_of, to_setting

TRIALS = 16
"""Runs that must all change the state, while as many runs of the reference don't, to convict a kernel."""

UNCHANGED = "the process must be left unchanged"

MATMUL: Mapping[str, str] = MappingProxyType({"ieee": "highest", "tf32": "high", "bf16": "medium"})
"""Torch's newer names of precisions -> the older ones."""

LONGEST = 60
"""The most characters of a value in a reason."""


class Fact(NamedTuple):
    """One setting.

    Attributes
    ----------
    read, write : callable
        Functions that return it, and set it. A value of None is unknown, and isn't compared.
    own : bool
        Whether each thread has its own value, so that no other one can have changed it: one change convicts.
    main : bool
        Whether it is read in the main thread alone: all threads share it, so another may have changed it.
    quick : bool
        Whether it is read at every watched call; others at those that are audited, by the gate and the kit.
    """

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    own: bool = False
    main: bool = False
    quick: bool = False


_LEAST, _HALF = sys.float_info.min, 0.5


def _flushes() -> bool:
    """Return whether this thread's CPU takes numbers below the smallest normal one for zero."""
    return _LEAST * _HALF == 0.0


def _autocasts() -> Any:
    return [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]


def _to_autocast(found: Any) -> None:
    for kind, (on, dtype) in zip(("cpu", "cuda"), found, strict=True):
        torch.set_autocast_enabled(kind, on)
        torch.set_autocast_dtype(kind, dtype)


def _modes() -> list[Any]:
    """Return the modes of torch that are in force; a default device is one."""
    return [*internals.function_mode_stack(), *internals.dispatch_mode_stack()]


def _to_modes(were: list[Any]) -> None:
    for mode in reversed([mode for mode in _modes() if mode not in were]):
        if isinstance(mode, DeviceContext):
            torch.set_default_device(next((m.device for m in were if isinstance(m, DeviceContext)), None))
        else:
            mode.__exit__(None, None, None)


def _to_matmul(backend: str, setting: str) -> None:
    """Set the precision of products by torch's older function: that can't be read after a newer one's use."""
    other = "mkldnn" if backend == "cuda" else "cuda"
    kept = setting_of(other, "matmul")
    torch.set_float32_matmul_precision(MATMUL.get(setting, "highest"))
    for name, wanted in ((backend, setting), (other, kept)):
        if setting_of(name, "matmul") != wanted:
            to_setting(name, "matmul", wanted)


def _allow_tf32_in_cudnn(setting: str) -> None:
    try:
        torch.backends.cudnn.allow_tf32 = setting == "tf32"
    except RuntimeError:  # as above
        to_setting("cuda", "conv", setting)


def _numpys() -> Any:
    if (numpy := sys.modules.get("numpy")) is None:
        return None
    name, words, *rest = numpy.random.get_state()
    return name, words.tobytes(), *rest


def _to_numpy(state: Any) -> None:
    numpy, (name, words, *rest) = sys.modules["numpy"], state
    numpy.random.set_state((name, numpy.frombuffer(words, numpy.uint32), *rest))


_VARIABLES: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # noqa: SLF001  not decoded


def _to_environment(variables: Mapping[bytes, bytes]) -> None:
    for name in os.environb.keys() - variables.keys():
        os.environb.pop(name, None)
    os.environb.update(variables)


def _to_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]  # a list, whatever its type says
    getattr(warnings, "_filters_mutated", lambda: None)()  # what was warned of once is looked at again


_SIGNALS = tuple(map(int, signal.valid_signals()))


def _handlers() -> dict[int, Any]:
    return {number: _handler(number) for number in _SIGNALS}


def _to_handlers(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None and _handler(number) != handler:  # None is one that Python didn't set
            signal.signal(number, handler)


FACTS: Mapping[str, Fact] = MappingProxyType(
    {
        "torch.is_grad_enabled()": Fact(
            torch.is_grad_enabled, internals.set_grad_enabled, own=True, quick=True
        ),
        "torch.get_num_threads()": Fact(torch.get_num_threads, torch.set_num_threads, own=True, quick=True),
        "torch.get_default_dtype()": Fact(torch.get_default_dtype, torch.set_default_dtype, quick=True),
        "torch.get_deterministic_debug_mode()": Fact(
            torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, quick=True
        ),
        "torch.is_autocast_enabled()": Fact(_autocasts, _to_autocast, own=True, quick=True),
        "torch's modes, such as torch.set_default_device()": Fact(_modes, _to_modes, own=True, quick=True),
        "torch.is_anomaly_enabled()": Fact(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        "gc.isenabled()": Fact(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        "torch.set_flush_denormal()": Fact(_flushes, torch.set_flush_denormal, own=True, quick=True),
        **{
            f"torch.backends.{backend}.matmul.fp32_precision": Fact(
                partial(setting_of, backend, "matmul"), partial(_to_matmul, backend)
            )
            for backend in ("cuda", "mkldnn")
        },
        "torch.backends.cudnn.conv.fp32_precision": Fact(
            partial(setting_of, "cuda", "conv"), _allow_tf32_in_cudnn
        ),
        **{
            f"torch.backends.cudnn.{name}": Fact(
                partial(getattr, torch.backends.cudnn, name), partial(setattr, torch.backends.cudnn, name)
            )
            for name in ("enabled", "benchmark", "deterministic")
        },
        "random.getstate()": Fact(random.getstate, random.setstate, main=True),
        "numpy.random.get_state()": Fact(_numpys, _to_numpy, main=True),
        "os.environ": Fact(lambda: dict(_VARIABLES), _to_environment),
        "os.getcwd()": Fact(os.getcwd, os.chdir),
        "warnings.filters": Fact(lambda: list(warnings.filters), _to_filters),
        "signal.getsignal()": Fact(_handlers, _to_handlers, main=True),
    }
)

CUDA_FACTS: Mapping[str, Fact] = MappingProxyType(
    {
        "torch.cuda.current_device()": Fact(
            torch.cuda.current_device, torch.cuda.set_device, own=True, quick=True
        ),
        "torch.cuda.current_stream()": Fact(
            torch.cuda.current_stream, torch.cuda.set_stream, own=True, quick=True
        ),
        driver.WHAT[0]: Fact(driver.aside, driver.set_aside),
        driver.WHAT[1]: Fact(driver.window, driver.set_window, own=True),
    }
)

GENERATOR = "the state of torch's random number generator"


@dataclass(frozen=True, slots=True)
class State:
    """The settings at one moment, and the states of torch's generators.

    There are none of these outside the main thread: all threads share the generators, so a background thread
    can't determine which thread drew numbers. If it is ``quick``, only the settings were read that every
    watched call reads.
    """

    facts: Mapping[str, Any]
    generators: Mapping[torch.Generator, Tensor]
    quick: bool = False

    @classmethod
    def now(cls, device: torch.device, *, quick: bool = False) -> State:
        """Read the state; on CUDA only outside of captures."""
        main = threading.current_thread() is threading.main_thread()
        known = _facts(device).items()
        facts = {n: fact.read() for n, fact in known if (fact.quick or not quick) and (main or not fact.main)}
        if not main:
            return cls(facts, {}, quick)
        own = [torch.default_generator]
        if device.type == "cuda":
            own.append(torch.cuda.default_generators[device.index or 0])
        return cls(facts, {g: g.get_state() for g in own}, quick)

    @classmethod
    def own(cls, device: torch.device) -> State:
        """Read what each thread has a value of its own of: it takes a few microseconds on a CPU."""
        return cls({name: fact.read() for name, fact in _facts(device).items() if fact.own}, {}, quick=True)

    def changed(self, since: State) -> str:
        """Return the first difference from an earlier state, with both values; empty if there is none."""
        for name, was in since.facts.items():
            if (now := self.facts.get(name, was)) != was and was is not None:
                return _difference(name, was, now)
        drawn = any(not torch.equal(self.generators[g], s) for g, s in since.generators.items())
        return f"{GENERATOR} has changed" if drawn else ""

    def restore(self, device: torch.device, *, own: bool = False) -> None:
        """Restore every setting; with ``own``, only those that no other thread can have set."""
        for name, fact in _facts(device).items():
            if (fact.own or not own) and (was := self.facts.get(name)) is not None and fact.read() != was:
                fact.write(was)

    def left(self, device: torch.device) -> str:
        """Return which of the thread's own settings has changed since, with both values, and restore them."""
        if reason := State.own(device).changed(self._owned(device)):
            self.restore(device, own=True)
        return reason

    def _owned(self, device: torch.device) -> State:
        known = _facts(device)
        return State({name: value for name, value in self.facts.items() if known[name].own}, {})

    def rewind(self) -> None:
        """Restore the generators."""
        for generator, state in self.generators.items():
            generator.set_state(state)


def disturbance(
    before: State, device: torch.device, run: Callable[[], Any], control: Callable[[], Any]
) -> str:
    """Return what a kernel that has just run changed since ``before``; empty if nothing, or if it is unsure.

    What each thread has a value of its own of, the kernel has changed. Any other change may be another
    thread's. So the kernel's ``run`` is repeated, in turns with a ``control`` that changes nothing. The
    kernel is convicted only if its runs always change the state and the controls never do. The state is
    restored afterwards. A thread that isn't the main one is unsure: audits in the program's calls decide.
    """
    after = State.now(device, quick=before.quick)
    reason = after.changed(before)
    if not reason:
        return ""
    if own := before.left(device):
        return own
    if threading.current_thread() is not threading.main_thread():
        return ""  # a trial would put back what the program sets meanwhile
    for _ in range(TRIALS):
        before.restore(device)
        if _changes(control, device, before.quick):
            break
        drawn = State.now(device, quick=before.quick)
        for generator in before.generators:  # so that setting the same seed again is detected
            torch.empty(1, device=generator.device).uniform_(generator=generator)
        if not _changes(run, device, before.quick):
            drawn.rewind()
            break
    else:
        before.restore(device)
        before.rewind()
        return reason
    after.restore(device)
    before.restore(device, own=True)
    return ""


def _changes(run: Callable[[], Any], device: torch.device, quick: bool) -> bool:
    mark = State.now(device, quick=quick)
    run()
    return bool(State.now(device, quick=quick).changed(mark))


def _difference(name: str, was: Any, now: Any) -> str:
    """Return a setting's name with both values; where it has many parts, of the first one that differs."""
    if name.endswith("state()"):
        return f"{name} has changed"
    if isinstance(was, dict):
        part = next(k for k in {**was, **now} if was.get(k) != now.get(k))
        values = (os.fsdecode(v) if isinstance(v, bytes) else v for v in (part, was.get(part), now.get(part)))
        part, was, now = values
        name = f"{name.removesuffix('()')}[{part!r}]"
    elif isinstance(was, list):
        missing, added = ([v for v in a if v not in b] for a, b in ((was, now), (now, was)))
        was, now = f"{len(was)} of them", f"{len(now)}, such as {(added or missing or now)[:1]}"
    return f"{name} was {_cut(was)}, is {_cut(now)}"


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _facts(device: torch.device) -> Mapping[str, Fact]:
    return FACTS if device.type != "cuda" else {**FACTS, **CUDA_FACTS}
