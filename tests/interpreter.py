"""Triton's interpreter, with what it works out for every value kept: types, shapes, and its language.

Most of its time is its own bookkeeping: a value of a kernel has a type and a shape, which it makes anew from
the same few numbers at every operation. What is computed stays the same.
"""

import inspect
import sys
import threading
from typing import Any


def keep_bookkeeping() -> None:
    """Have the interpreter, once it is there, keep what it would work out again."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    remap = getattr(interpreter, "_patch_lang", None)  # private: another release may have none
    if remap is None or remap.__module__ == __name__:
        return
    _remap_once(interpreter, remap)
    _launch_in_turns(interpreter.GridExecutor)
    core = interpreter.tl.core
    _keep_shapes(core)
    _keep_types(core)
    numbers = interpreter._get_np_dtype
    named: dict[tuple[type, str], Any] = {}

    def of_numpy(kind: Any) -> Any:
        """The type of an element: it is a table of all types that is made at every operation."""
        element = getattr(kind, "element_ty", kind) if type(kind) is core.block_type else kind
        key = type(element), element.name
        if key not in named:
            named[key] = numbers(element)
        return named[key]

    interpreter._get_np_dtype = of_numpy


def _launch_in_turns(executor: Any) -> None:
    """Have threads launch one after the other: the grid of a launch is the interpreter's own."""
    turn, call = threading.RLock(), executor.__call__

    def one(self: Any, *args: Any, **kwargs: Any) -> Any:
        with turn:
            return call(self, *args, **kwargs)

    executor.__call__ = one


def _remap_once(interpreter: Any, remap: Any) -> None:
    """Remap the language once a launch: the interpreter does so at every call of a function."""
    language = interpreter.tl

    def once(function: Any) -> Any:
        known = [m for m in function.__globals__.values() if inspect.ismodule(m) and m is language.core]
        done = not any(language.core.is_builtin(module.load) for module in (language, *known))
        return interpreter._LangPatchScope() if done else remap(function)  # an empty one

    interpreter._patch_lang = once


def _keep_shapes(core: Any) -> None:
    """Make the shape of a value once: it is a tuple of constants that has a type of its own."""
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    make = core.tensor.__init__

    def initial(self: Any, handle: Any, type: Any) -> None:  # noqa: A002  the name is Triton's
        key = type.shape if type.is_block() else ()
        kept = shapes.get(key)
        if kept is None:
            make(self, handle, type)
            shapes[key] = self.numel, self.shape
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = kept

    core.tensor.__init__ = initial


def _keep_types(core: Any) -> None:
    """Check a shape and write down its name once for each type of its elements."""
    known: dict[Any, tuple[Any, int, str]] = {}
    make, unwrap = core.block_type.__init__, core._unwrap_if_constexpr

    def initial(self: Any, element_ty: Any, shape: Any) -> None:
        if type(shape) is list or type(shape) is tuple:
            sizes = tuple([s.value if type(s) is core.constexpr else s for s in shape])
        else:
            sizes = None
        key = sizes, type(element_ty), element_ty.name
        kept = known.get(key) if sizes is not None else None
        if kept is None:
            make(self, element_ty, shape)
            known[key] = self.shape, self.numel, self.name
            return
        self.element_ty = element_ty
        self.shape, self.numel, self.name = kept

    plain = {core.tensor, core.dtype, core.pointer_type, core.block_type, int, float, bool, str, type(None)}

    def value_of(given: Any) -> Any:
        kind = type(given)
        if kind is core.constexpr:
            return given.value
        return given if kind in plain else unwrap(given)

    core.block_type.__init__ = initial
    core._unwrap_if_constexpr = value_of
