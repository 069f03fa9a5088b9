"""The type stub of ``nxcore.ops``, generated from the specs, since no source file defines the operators."""

import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from nxcore.spec.spec import REQUIRED, Drawn, OpSpec, Param

HEAD = """\
# The types of the core's operators, generated from their specs by `nxcore ops --stub`.

from collections.abc import Iterable, Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from nxcore.call.operator import Operator
from nxcore.plugin import OpSpec

def nxcore_ops() -> Iterable[OpSpec]: ...
def __getattr__(name: str) -> Operator: ...
"""


def stub(specs: Iterable[OpSpec]) -> str:
    """Return the text of ``nxcore/ops/__init__.pyi``.

    Parameters
    ----------
    specs : iterable of OpSpec
        The operators, each typed by its parameters and by the annotations of its reference. Those that are
        called for a gradient alone are left out: to a type checker they take anything.

    Returns
    -------
    str
        Python source; ``ruff format`` may change its layout.
    """
    found = {spec.name: spec for spec in specs}
    gradients = [spec.gradient for spec in found.values() if spec.gradient]
    called = found.keys() - {name for gradient in gradients for name in (gradient.op, gradient.forward)}
    return HEAD + "".join(f"\n{_operator(found[name])}" for name in sorted(called))


def _operator(spec: OpSpec) -> str:
    kind = "_" + "".join(word[:1].upper() + word[1:] for word in spec.name.split("_"))
    calls = list(_calls(spec))
    if len(calls) > 1:
        calls = [f"    @overload\n{call}" for call in calls]
    return f"class {kind}(Operator):\n{chr(10).join(calls)}\n\n{spec.name}: {kind}\n"


def _calls(spec: OpSpec) -> Iterator[str]:
    """Yield the signature; three overloads if a flag such as ``return_indices`` adds to the result."""
    result = typing.get_type_hints(spec.reference)["return"]
    flag = next((p for p in spec.params if p.name.startswith("return_")), None)
    if flag is None:
        yield _call(spec, result)
        return
    alone, more = typing.get_args(result)
    yield _call(spec, alone, **{flag.name: "Literal[False] = False"})
    yield _call(spec, more, **{flag.name: "Literal[True]"})
    yield _call(spec, result, **{flag.name: "bool"})


def _call(spec: OpSpec, result: Any, **given: str) -> str:
    """Return one signature; ``given`` replaces the annotations of some parameters."""
    hints = typing.get_type_hints(spec.reference)
    written, starred = ["self"], False
    for param in spec.params:
        text = given.get(param.name)
        if not starred and (param.keyword or (text and "=" not in text)):
            written.append("*")
            starred = True
        written.append(f"{param.name}: {text}" if text else _parameter(param, hints[param.name]))
    if any(isinstance(param.default, Drawn) for param in spec.params):
        written += ["*"] * (not starred) + ["generator: torch.Generator | None = None"]
    if spec.selector:
        values = ", ".join(map(repr, spec.selector.operators))
        written += ["*"] * ("*" not in written)
        written.append(f"{spec.selector.name}: Literal[{values}] = {spec.selector.default!r}")
    return f"    def __call__({', '.join(written)}) -> {_type(result)}: ..."


def _parameter(param: Param, hint: Any) -> str:
    name = f"{param.name}: {_type(hint, loose=param.kind in ('static', 'size'))}"
    if isinstance(param.default, Drawn):
        return f"{name} | None = None"
    if param.default is REQUIRED:
        return name
    return f"{name} = {_default(param.default)}"


def _default(value: Any) -> str:
    plain = (bool, int, float, str, type(None))
    literal = isinstance(value, plain) or (
        isinstance(value, tuple) and all(isinstance(v, plain) for v in value)
    )
    return repr(value) if literal else "..."


def _type(hint: Any, *, loose: bool = False) -> str:
    """Write an annotation; ``loose`` allows any sequence where the annotation is a tuple."""
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        wider = [arm for arm in arms if arm is not int or float not in arms]  # a float may be an int
        return " | ".join(dict.fromkeys(_type(arm, loose=loose) for arm in wider))
    if origin is None:
        return {type(None): "None", torch.Tensor: "Tensor", ...: "..."}.get(hint) or _name(hint)
    if loose and origin in (tuple, list):
        return f"Sequence[{' | '.join(dict.fromkeys(_type(arm) for arm in arms if arm is not ...))}]"
    return f"{origin.__name__}[{', '.join(_type(arm) for arm in arms)}]"


def _name(kind: Any) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
