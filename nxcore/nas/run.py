"""Run: a module's own ``forward`` on symbols, which shows what it computes and what it reads."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from nxcore.errors import FOREIGN
from nxcore.measure.collection import no_collection
from nxcore.nas.reading import Reads, Unclear
from nxcore.nas.recording import TORCHS, Recording, allowed, called, users
from nxcore.nas.symbols import KNOWN, Form, Symbol
from nxcore.nas.watch import MISSING
from nxcore.nn.exchange import PATCHED, awake
from nxcore.nn.sequential import Sequential


class Holder:
    """A list or dictionary of modules, as code sees it."""

    def __init__(self, run: Run, held: nn.Module, place: tuple[str, ...]) -> None:
        self._run, self._held = run, held
        children = vars(held)["_modules"].items()
        self._made = {name: run.member(child, (*place, name)) for name, child in children}
        self._place = place

    @property  # type: ignore[misc]  # object's can be set
    def __class__(self) -> Any:
        """The class that code may read."""
        return awake(self._held)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._made.values() if isinstance(self._held, nn.ModuleList) else list(self._made))

    def __len__(self) -> int:
        return len(self._made)

    def __contains__(self, key: Any) -> bool:
        return key in self._made

    def __getitem__(self, key: Any) -> Any:
        if type(key) is str or not isinstance(self._held, nn.ModuleList):
            return self._made[key]
        return list(self._made.values())[key]

    def __getattr__(self, name: str) -> Any:
        if name in {"items", "keys", "values"} and not isinstance(self._held, nn.ModuleList):
            return getattr(self._made, name)
        raise self._run.refuses(f"it reads {name} of {'.'.join(self._place)}")


class Member:
    """A module, as the code of the one that holds it sees it."""

    __slots__ = ("_module", "_place", "_run")

    def __init__(self, run: Run, module: nn.Module, place: tuple[str, ...]) -> None:
        for name, value in (("_run", run), ("_module", module), ("_place", place)):
            object.__setattr__(self, name, value)

    @property  # type: ignore[misc]  # object's can be set
    def __class__(self) -> Any:
        """The class that code may read."""
        return getattr(awake(self._module), PATCHED, awake(self._module))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if kwargs or len(args) != 1 or type(args[0]) is not Symbol:
            raise self._run.refuses(f"it calls {'.'.join(self._place)} with more than a tensor")
        return self._run.call(self._module, self._place, args[0])

    def __getattr__(self, name: str) -> Any:
        return self._run.read(self._module, name, self._place)

    def __setattr__(self, name: str, _value: Any) -> None:
        raise self._run.refuses(f"it sets {name} of {'.'.join(self._place)}")


class Run:
    """One run of a module's own ``forward`` on symbols.

    Parameters
    ----------
    module : torch.nn.Module
    leaves : callable
        ``leaves(module)`` returns whether a module's call is one step; else its own code runs too.
    reads : Reads
        Gets what the code reads.
    training : bool
        What the module's code reads as its mode.

    Attributes
    ----------
    calls : list
        The places of the modules that were called, in their order.
    """

    def __init__(
        self, module: nn.Module, leaves: Callable[[nn.Module], bool], reads: Reads, *, training: bool
    ) -> None:
        self.module, self._leaves, self.reads, self._training = module, leaves, reads, training
        self.calls: list[tuple[str, ...]] = []
        self._why = ""
        self._classes: list[type] = []

    def refuses(self, why: str) -> Unclear:
        """Return the error of code that does more than symbols know; code that catches it stays refused."""
        self._why = self._why or why
        return Unclear(why)

    def made(self, form: Form) -> Symbol:
        """Return a symbol."""
        return Symbol(self, form)

    def of(self, make: Callable[[Run], Sequence[Any]]) -> Form:
        """Return the form that the module's own ``forward`` returns.

        Raises
        ------
        Unclear
            If it depends on more, or does more, than symbols and a watch know.
        """
        before = sys.getprofile()
        if before is not None and getattr(before, "__func__", None) is not Recording.seen:
            raise Unclear("a profiler is running")
        try:
            with no_collection():  # a callback of one is the program's code too
                found = self._inside(self.module, (), make(self))
        except Unclear:
            raise
        except FOREIGN as error:
            raise Unclear(self._why or f"it raised {type(error).__name__}: {error}") from None
        finally:
            sys.setprofile(before)
        if self._why:
            raise Unclear(self._why)
        if type(found) is not Symbol:
            raise Unclear("it returns more than a tensor")
        if not self.reads.watch(self.module).holds():
            raise Unclear("it changes what it reads")
        return found.form

    def member(self, module: nn.Module, place: tuple[str, ...]) -> Any:
        """Return what code sees of a module that is held."""
        lists = isinstance(module, nn.ModuleList | nn.ModuleDict)
        return (Holder if lists else Member)(self, module, place)

    def call(self, module: nn.Module, place: tuple[str, ...], x: Symbol) -> Any:
        """Return what the call of a module returns."""
        if self._leaves(module):
            self.calls.append(place)
            return self.made(("call", place, x.form))
        return self._inside(module, place, [x])

    def _inside(self, module: nn.Module, place: tuple[str, ...], args: Sequence[Any]) -> Any:
        """Return what the code of a module returns that isn't one step."""
        cls = getattr(awake(module), PATCHED, awake(module))
        if cls not in (nn.Sequential, Sequential):
            return self._own(module, place, args)
        (x,) = args
        for name, child in vars(module)["_modules"].items():
            x = self.call(child, (*place, name), x)
        return x

    def read(self, module: nn.Module, name: str, place: tuple[str, ...]) -> Any:
        """Return an attribute of a module, and note it."""
        held, where = vars(module), ".".join((*place, name))
        if name == "training" and module.training is self.module.training:
            return self._training
        if name in {"__class__", "__dict__", "_modules", "_parameters", "_buffers", "training"}:
            raise self.refuses(f"it reads {where}")
        if name in held["_modules"] and held["_modules"][name] is not None:
            return self.member(held["_modules"][name], (*place, name))
        cls = getattr(awake(module), PATCHED, awake(module))
        if name not in held and any(name in held[of] for of in ("_parameters", "_buffers")):
            raise self.refuses(f"it reads the tensor {where}")
        self.reads.held.append((place, name, held.get(name, MISSING)))
        if name in held:
            self._value(held[name], where)
            return held[name]
        self.reads.classes(cls, [name])
        return MISSING

    def _value(self, value: Any, where: str) -> None:
        try:
            self.reads.value(value, where)
        except Unclear as why:
            raise self.refuses(str(why)) from None

    def _own(self, module: nn.Module, place: tuple[str, ...], args: Sequence[Any]) -> Any:
        """Run a module's own code."""
        cls = getattr(awake(module), PATCHED, awake(module))
        if "forward" in vars(module):
            raise self.refuses("its forward is an attribute")
        for name in ("__call__", "__getattr__", "__getattribute__", "_call_impl"):
            if getattr(cls, name) is not getattr(nn.Module, name):
                raise self.refuses(f"its class has its own {name}")
        function = self.reads.method(cls, "forward")
        twin = _recorded(cls)
        object.__setattr__(twin, "__dict__", {**vars(module), RUN: (self, module, place)})
        outer = sys.getprofile()
        self._classes.append(cls)
        sys.setprofile(self._profiled)
        try:
            return function(twin, *args)
        finally:
            sys.setprofile(outer)
            self._classes.pop()

    def _profiled(self, frame: types.FrameType, event: str, arg: Any) -> None:
        """See the call of a function."""
        try:
            self._seen(frame, event, arg)
        except Unclear as why:
            raise self.refuses(str(why)) from None

    def _seen(self, frame: types.FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call":
            if called(frame):
                raise Unclear(f"it calls {code.co_name} of Python's library")
            if not users(code):
                caller = frame.f_back
                if code.co_filename.startswith(TORCHS) and caller is not None and users(caller.f_code):
                    raise Unclear(f"it calls {code.co_name} of torch")
                return
            self.reads.runs(code, self._classes[-1])
        elif event == "c_call" and users(code) and not (allowed(arg) or _known(arg)):
            raise Unclear(f"it calls {getattr(arg, '__qualname__', arg)}")


RUN = "_nxcore_run"


def _recorded(cls: type[nn.Module]) -> Any:
    """Return an object of a class of which attributes are read by a run."""
    about = {"__getattribute__": _attribute, "__setattr__": _set, "__getattr__": _no, "__slots__": ()}
    return object.__new__(type(cls.__name__, (cls,), {**about, "__module__": __name__}))


def _attribute(self: Any, name: str) -> Any:
    run, module, place = object.__getattribute__(self, "__dict__")[RUN]
    found = run.read(module, name, place)
    return object.__getattribute__(self, name) if found is MISSING else found


def _no(_self: Any, name: str) -> Any:
    raise AttributeError(name)


def _set(self: Any, name: str, _value: Any) -> None:
    raise object.__getattribute__(self, "__dict__")[RUN][0].refuses(f"it sets {name}")


def _known(function: Any) -> bool:
    """Return whether a function of torch is known for symbols."""
    return isinstance(function, types.BuiltinFunctionType) and function in KNOWN
