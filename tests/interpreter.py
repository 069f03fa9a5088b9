"""Triton's interpreter, with what it works out for every value kept: types, shapes, and its language.

Most of its time is its own bookkeeping: a value of a kernel has a type and a shape, which it makes anew from
the same few numbers at every operation. What is computed stays the same.
"""

import inspect
import os
import sys
import threading
from typing import Any


def keep_bookkeeping() -> None:
    """Have the interpreter, once it is there, keep what it would work out again; not so the compiler."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    interpreter: Any = sys.modules.get("triton.runtime.interpreter") if interpreted else None
    remap = getattr(interpreter, "_patch_lang", None)  # private: another release may have none
    if remap is None or remap.__module__ == __name__:
        return
    _remap_once(interpreter, remap)
    _launch_in_turns(interpreter.GridExecutor)
    core = interpreter.tl.core
    _keep_shapes(core)
    _keep_types(core)
    _take_equal_types(core, type(interpreter.interpreter_semantic))
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
    known: dict[Any, bool] = {}

    def once(function: Any) -> Any:
        if function not in known:
            values = function.__globals__.values()
            known[function] = any(inspect.ismodule(m) and m is language.core for m in values)
        modules = (language, language.core)[: 1 + known[function]]
        done = not any(language.core.is_builtin(module.load) for module in modules)
        return interpreter._LangPatchScope() if done else remap(function)  # an empty one

    interpreter._patch_lang = once


def _keep_shapes(core: Any) -> None:
    """Make the shape of a value once: it is a tuple of constants that has a type of its own."""
    of_numbers: dict[str, Any] = {}
    make = core.tensor.__init__

    def initial(self: Any, handle: Any, type: Any) -> None:  # noqa: A002  the name is Triton's
        known = type.shape.__dict__ if type.is_block() else of_numbers
        kept = known.get("of_values")
        if kept is None:
            make(self, handle, type)
            known["of_values"] = self.numel, self.shape
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = kept

    core.tensor.__init__ = initial


def _take_equal_types(core: Any, semantic: Any) -> None:
    """Take two operands of one type and shape as they are, and one number for a block of its type."""
    check, broadcast = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value

    def checked(self: Any, lhs: Any, rhs: Any, *flags: bool) -> Any:
        same = type(lhs) is type(rhs) is core.tensor and lhs.dtype is rhs.dtype
        # Halves become float32 for a division, which the fourth flag says; pointers may be refused.
        plain = same and len(flags) < 4 and not lhs.dtype.is_ptr()
        return fitted(self, lhs, rhs) if plain else check(self, lhs, rhs, *flags)

    def fitted(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if type(left) is core.block_type:
            if type(right) is core.block_type:
                same = left.shape is right.shape or left.shape.values == right.shape.values
                return (lhs, rhs) if same else broadcast(self, lhs, rhs)
            kind = left.with_element_ty(right)
            return lhs, self.tensor(self.builder.create_splat(kind, rhs.handle), kind)
        if type(right) is core.block_type:
            kind = right.with_element_ty(left)
            return self.tensor(self.builder.create_splat(kind, lhs.handle), kind), rhs
        return lhs, rhs

    sanitize = semantic.binary_op_sanitize_overflow_impl

    def sanitized(self: Any, *operands: Any) -> None:
        """Look for an overflow where one would be told: an assertion without ``debug`` is nothing."""
        if self.builder.options.debug:
            sanitize(self, *operands)

    semantic.binary_op_sanitize_overflow_impl = sanitized
    semantic.binary_op_type_checking_impl = checked
    semantic.broadcast_impl_value = fitted


def _keep_types(core: Any) -> None:
    """Check a shape and write down its name once for each type of its elements."""
    known: dict[Any, tuple[Any, int, str]] = {}
    make, unwrap = core.block_type.__init__, core._unwrap_if_constexpr

    def initial(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([s.value if type(s) is core.constexpr else s for s in shape])
        key = sizes, type(element_ty), element_ty.name
        kept = known.get(key)
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

    def of_element(self: Any, element: Any) -> Any:
        by_element = self.shape.__dict__.setdefault("of_types", {})
        key = type(element), element.name
        if key not in by_element:
            by_element[key] = core.block_type(element, self.shape)
        return by_element[key]

    core.block_type.__init__ = initial
    core.block_type.with_element_ty = of_element
    core.block_type.to_ir = lambda self, builder: self  # the interpreter's own are the language's
    core._unwrap_if_constexpr = value_of
