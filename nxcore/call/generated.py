"""The source of a planned call: an operator's ``__call__``, key and guards, generated from its signature.

A plan is found in one of two ways. *Near*: cheap properties of the arguments lead to a few plans, each behind
one guard per tensor: torch's own ``TensorGuards``, which guard dynamo's graphs. One call in C++ compares
class, dtype, device, sizes, strides, ``requires_grad`` and the dispatch keys, which cover layout, lazy
negation, inference mode, autocast, tracing, transforms and modes. *Far*: by the complete key. A plan that was
found far is near the next time. Where torch has no such guards, all calls go far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import call, is_
from typing import Any

from torch import Tensor, strided

from nxcore.spec.problem import tensors_of
from nxcore.spec.spec import REQUIRED, Drawn, OpSpec, Param

try:
    from torch._C._dynamo import guards as _of_torch
except ImportError:  # they are not public in torch
    _of_torch = None  # type: ignore[assignment]  # a module, if it exists

Guard = Callable[[Any], bool]

GUARDED = ("tensor", "tensors", "operand")
"""The kinds of parameters that are, or may be, tensors."""

FIXED = ("static", "size")
"""The kinds of parameters whose values a plan is specialised on."""

AROUND = (
    "grad_enabled()",
    "deterministic()",
    "autocast() and autocast_state()",
    "dispatch_modes()",
    "function_modes() and not only_default_device()",
    "functorch()",
    "forward_ad._current_level",
    "preference()",
)
"""The context of a call."""


def source(spec: OpSpec) -> str:
    """Return the source of ``__call__``, ``by_kernel``, ``run``, ``far``, ``key`` and ``near_key``.

    ``by_kernel_compiled`` is ``by_kernel`` for an operator whose plans the extension finds.
    """
    names = ", ".join(p.name for p in spec.params)
    guarded = [p.name for p in spec.params if p.kind in GUARDED]
    static = [p.name for p in spec.params if p.kind in FIXED]
    guards = "".join(f"guard_{n}, " for n in guarded) + "".join(f"static_{n}, " for n in static)
    # The first tensor's shape led here, so the others are more likely to differ. Equal static values are most
    # often identical; 1, 1.0 and True are equal, but not all of them pass the checks.
    tests = [f"guard_{n}({n})" for n in reversed(guarded)]
    tests += [f"({n} is static_{n} or alike({n}, static_{n}))" for n in static]
    passed = " and ".join(tests)
    given = ", ".join(f"{p.name}={p.name}" if p.keyword else p.name for p in spec.params)
    out = "".join(f" or {p.name} is not None" for p in spec.params if p.kind == "out")
    odd = f"tracing() or function_modes() or forward_ad._current_level >= 0{out}"
    look = f"""\
    if is_compiling():
        return self.far({names})
    try:
        for {guards}_key, plan in () if {odd} else self.near[{_near_key(spec)}]:
            if {passed}:
                break
        else:
            plan = None
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError):
        plan = None
"""
    served = f"""\
    try:
        return plan({names})
    except BaseException as error:
        return self.failed(_key, plan, error, {names})
"""
    far_by_kernel = f"""\
        try:
            return self.far({names}, kernels=True)
        except _InvalidInputError:  # which is the caller's to refuse
            return None"""
    return f"""\
def __call__(self, {_signature(spec)}):{_selects(spec, given)}{_draws(spec)}{_reads(spec)}
{look}    if plan is None:
        return self.far({names})
{served}
def by_kernel(self, {names}):{_reads(spec)}
{look.replace(f"far({names})", f"far({names}, kernels=True)")}    if plan is None:
{far_by_kernel}
    if plan is reference or leads_to(plan, reference):
        return None
{served}
def by_kernel_compiled(self, {names}):
    if is_compiling():  # which traces no function of C
        return self.far({names}, kernels=True)
{_reads(spec)[1:]}
    _found = self.find({names})
    if _found is None:
{far_by_kernel}
    _key, plan, _bare = _found
    if plan is reference or leads_to(plan, reference):
        return None
    if _bare is not plan:  # the extension calls it without the functions around it
        return self({given})
{served}
def run(self, {names}):
    return self({given})

def far(self, {names}, kernels=False):
    if is_compiling():
        return self.miss(None, {names}, kernels=kernels)
    if tracing() or ({_odd(spec)}) and _stand_ins(({names},)):
        # A trace records each size that is read, and ends where torch refuses to.
        return self.miss(None, {names}, kernels=kernels)
    near = self.near
    try:
        _key = {_key(spec)}
        plan = self.plans.get(_key)
    except (TypeError, AttributeError, RuntimeError, ValueError):  # the last of a stand-in of torch.fx
        _key = plan = None
    if plan is None:
        met = self.rare.get(_key)
        if met is None and _key is not None:
            if self.families.serve(self.family(_key, {names}), self.rare, {names}):
                self.spec.check(*self.frozen(({names},)))
                met = 0
        if met is None or met >= RARE:
            return self.miss(_key, {names}, kernels=kernels)
        self.rare[_key] = met + 1
        plan = reference
    elif not (function_modes(){out}):
        self.approach(near, _key, plan, {names})
    if kernels and leads_to(plan, reference):
        return None
{served}
def key(self, {names}):
    return {_key(spec)}

def near_key(self, {names}):
    return {_near_key(spec)}

def family(self, _key, {names}):
    return {_family(spec)}
"""


def defaults(spec: OpSpec) -> dict[str, Any]:
    """Return the names that the source uses for each parameter: its default, and what draws or reads it."""
    found = {f"default_{p.name}": p.default for p in spec.params}
    draws = {f"draw_{p.name}": p.default.draw for p in spec.params if isinstance(p.default, Drawn)}
    reads = {f"read_{p.name}": p.read for p in spec.params if p.read}
    return found | draws | reads


def guards(spec: OpSpec, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the guards of calls like that of ``args``, then its static values; None if guards can't be used.

    Calls with an ``out`` have none: a guard doesn't check whether it is an input. Neither have calls with a
    tensor without strides, for which torch's guard aborts the process.
    """
    named = list(zip(spec.params, args, strict=True))
    if _of_torch is None or any(p.kind == "out" and a is not None for p, a in named):
        return None
    if not all(t.layout is strided and not t.is_nested for t in tensors_of(args)):
        return None
    checks = (_guard(a) for p, a in named if p.kind in GUARDED)
    return (*checks, *(a for p, a in named if p.kind in FIXED))


def alike(a: Any, b: Any) -> bool:
    """Return whether equal values have the same classes; most often their items are identical."""
    if a.__class__ is not b.__class__:
        return False
    return a.__class__ is not tuple or all(map(is_, a, b)) or all(map(alike, a, b))


def class_of(value: Any) -> Any:
    """Return the class of a value, and for a tuple those of its items."""
    return value.__class__ if value.__class__ is not tuple else (*map(class_of, value),)


def _guard(value: Any) -> Guard:
    if isinstance(value, Tensor):
        # torch's stub lacks the tensors, which are the first argument.
        made = _of_torch.TensorGuards(value, dynamic_dims_sizes=None, dynamic_dims_strides=None)  # type: ignore[misc, arg-type]
        return made.check
    if not isinstance(value, tuple | list):
        return _pass  # a number: its class is in the key
    checks = tuple(map(_guard, value))
    return lambda tensors: all(map(call, checks, tensors))  # the key contains their number


def _pass(_value: Any) -> bool:
    return True


def _signature(spec: OpSpec) -> str:
    parts, keyword = [], False
    for p in spec.params:
        if p.keyword and not keyword:
            parts.append("*")
            keyword = True
        parts.append(p.name if p.default is REQUIRED else f"{p.name}=default_{p.name}")
    if any(isinstance(p.default, Drawn) for p in spec.params):
        parts += ["generator=None"] if keyword else ["*", "generator=None"]
    if spec.selector:
        parts += ["*"] * ("*" not in parts) + [f"{spec.selector.name}={spec.selector.default!r}"]
    return ", ".join(parts)


def _selects(spec: OpSpec, given: str) -> str:
    """Return the source that calls the operator that an argument names, if it isn't this one."""
    if spec.selector is None:
        return ""
    name, default = spec.selector.name, spec.selector.default
    return f"""
    if {name} != {default!r}:
        return selected({name})({given})"""


def _draws(spec: OpSpec) -> str:
    """Return the source that draws the tensors that the caller left out."""
    first = spec.params[0].name
    return "".join(
        f"""
    if {p.name} is default_{p.name}:
        {p.name} = draw_{p.name}({first}, generator)"""
        for p in spec.params
        if isinstance(p.default, Drawn)
    )


def _reads(spec: OpSpec) -> str:
    """Return the source that reads settings where None was given; a traced call leaves that for later."""
    first = spec.params[0].name
    return "".join(
        f"""
    if {p.name} is None and not is_compiling():
        {p.name} = read_{p.name}({first})"""
        for p in spec.params
        if p.read
    )


def _facts(name: str, *more: str) -> str:
    # The strides of a contiguous tensor follow from its shape, and checking that costs half as much.
    strides = f"{name}.is_contiguous() or {name}.stride()"
    # Zeros that torch never stored have no address, and tensors of a transform raise: they have no plan.
    # Reading it from a subclass may warn.
    absent = f"{name}.__class__ in PLAIN and {name}.data_ptr() == 0"
    facts = ("__class__", "shape", "dtype", "device", "requires_grad", *more)
    return f"({strides}, {absent}, {name}.is_neg(), {', '.join(f'{name}.{fact}' for fact in facts)})"


def _odd(spec: OpSpec) -> str:
    """Return the test for the first argument, or another tensor that must be given, of another class."""
    n = spec.params[0].name
    lead = f"({n}[0] if ({_sequence(n)}) and {n} else {n})" if spec.params[0].kind == "tensors" else n
    more = [p.name for p in spec.params[1:] if p.kind == "tensor" and p.default is REQUIRED]
    return " or ".join(f"{name}.__class__ not in PLAIN" for name in (lead, *more))


def _sequence(name: str) -> str:
    return f"{name}.__class__ is tuple or {name}.__class__ is list"


def _number(name: str) -> str:
    """Return the expression of a number: a plan serves all of a class, but for whole ones beyond 64 bits."""
    return f"({name}.__class__ if {name}.__class__ is not int or {-(2**63)} <= {name} < {2**64} else {name})"


def _plain(p: Param) -> str:
    """Return the key's expression for a number or a static value."""
    n = p.name
    if p.kind == "scalar":
        return _number(n)
    # With classes: 1, 1.0 and True are equal, but not all of them pass the checks.
    return f"(tuple({n}), *map(_class_of, {n})) if {_sequence(n)} else ({n}.__class__, {n})"


def _key(spec: OpSpec) -> str:
    """Return the key's expression."""
    parts = []
    inputs = ", ".join(p.name for p in spec.params if p.kind in ("tensor", "operand"))
    for p in spec.params:
        n = p.name
        if p.kind == "tensor":
            facts = _facts(n, "layout")
            parts.append(f"None if {n} is None else {facts}" if p.default is None else facts)
        elif p.kind == "tensors":
            # One layout for all: a tensor without strides among them raises in any implementation.
            many = f"({n} and {n}[0].layout, *[{_facts('t')} for t in {n}])"
            parts.append(f"{many} if {_sequence(n)} else {_facts(n, 'layout')}")
        elif p.kind == "operand":
            parts.append(f"{_number(n)} if {n}.__class__ in NUMBERS else {_facts(n, 'layout')}")
        elif p.kind == "out":
            parts.append(f"None if {n} is None else ({_facts(n, 'layout')}, overlap({n}, {inputs}))")
        else:
            parts.append(_plain(p))
    return f"({', '.join((*parts, *AROUND))})"


def _family(spec: OpSpec) -> str:
    """Return the expression of a family: the key but for the sizes and strides of tensors."""
    parts = []
    for p in spec.params:
        n = p.name
        facts = "({t}.__class__, {t}.dim(), {t}.dtype, {t}.device, {t}.requires_grad, {t}.layout)"
        if p.kind == "tensor":
            fact = facts.format(t=n)
            parts.append(f"None if {n} is None else {fact}" if p.default is None else fact)
        elif p.kind == "tensors":
            many = f"(*[{facts.format(t='t')} for t in {n}],)"
            parts.append(f"{many} if {_sequence(n)} else {facts.format(t=n)}")
        elif p.kind == "operand":
            parts.append(f"({n}.__class__, {n}) if {n}.__class__ in NUMBERS else {facts.format(t=n)}")
        elif p.kind == "size":
            parts.append(f"len({n}) if {_sequence(n)} else ({n}.__class__, {n})")
        elif p.kind == "scalar":  # it may be out of range
            parts.append(f"({n}.__class__, {n})")
        elif p.kind != "out":
            parts.append(_plain(p))
    outs = " or ".join(f"{p.name} is not None" for p in spec.params if p.kind == "out")
    found = f"({', '.join(parts)}, _key[-{len(AROUND)}:])"
    return f"None if {outs} else {found}" if outs else found


def _near_key(spec: OpSpec) -> str:
    """Return the expression of the near key: a shape, numbers, and the context that guards don't cover."""
    # A guard aborts the process for a nested tensor. It has no sizes: its shape raises, which leads far.
    parts = ["grad_enabled()", "deterministic()", "preference()"]
    if "lower" in spec.autocast.values():
        parts.append("autocast() and autocast_state()")  # a guard doesn't check the dtype to cast to
    first = True
    for p in spec.params:
        n = p.name
        if p.kind == "tensors":
            many = f"(len({n}), {n} and {n}[0].shape, any(map(is_nested, {n})))"
            parts.append(f"{many} if {_sequence(n)} else {n}.shape")
        elif p.kind == "tensor":
            fact = f"{n}.shape" if first else f"{n}.is_nested"
            parts.append(f"{n} if {n} is None else {fact}" if p.default is None else fact)
        elif p.kind == "operand":
            parts.append(f"{_number(n)} if {n}.__class__ in NUMBERS else {n}.is_nested")
        elif p.kind == "scalar":
            parts.append(_number(n))
        elif p.kind in FIXED:
            parts.append(n)
        first = False
    return f"({', '.join(parts)})"
