"""The errors that nxcore raises, as one tree. Every error carries attributes besides its text.

NxcoreError
├── InvalidInputError (ValueError)        an argument breaks the operator's contract
│   └── ExpressionError                   a function or a text is no pointwise expression
├── UnknownOperatorError (KeyError)       no operator of that name; names the nearest
├── BackendUnavailableError               this machine can't run the backend
│   └── UnknownBackendError (KeyError)    no backend of that name; names the nearest
├── UnsupportedProblemError               the requested backend rejects this call
├── VerificationError                     a kernel's result differs from the float64 reference
├── CaptureError                          a function can't be captured in a CUDA graph
├── MeasurementError                      a timing that can't be trusted
├── DeviceLostError                       a kernel ended the process's CUDA context
└── PluginError                           a plugin breaks the contract
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

MANY = 20
"""The most operators that a message lists."""

FOREIGN = (Exception,)
"""Errors of code that is not nxcore's: a plugin, a compiler, a driver or a user's module raises anything."""


class NxcoreError(Exception):
    """The base class: ``except nxcore.errors.NxcoreError`` catches every error that nxcore raises."""

    def __str__(self) -> str:  # KeyError prints the repr of its message
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> Any:  # pickles all attributes, whatever arguments the constructor takes
        return _restored, (type(self), self.args, self.__dict__)


def _restored(cls: type[NxcoreError], args: tuple[Any, ...], attributes: dict[str, Any]) -> NxcoreError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class InvalidInputError(NxcoreError, ValueError):
    """An argument breaks the operator's contract; raised before any backend is tried.

    Attributes
    ----------
    argument : str
        The name of the invalid argument.

    Examples
    --------
    >>> error = InvalidInputError("k must be at least 1, got 0", argument="k")
    >>> error.argument
    'k'
    """

    def __init__(self, message: str, *, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument


class ExpressionError(InvalidInputError):
    """A function or a text that is no pointwise expression; the message points at the place in a text.

    Attributes
    ----------
    text : str
        The expression; empty for a function.
    column : int
        Where the fault begins in the text, from 0; -1 for a function.

    Examples
    --------
    >>> print(nxcore.errors.ExpressionError("needs an operand here", text="x +* y", column=3))
    needs an operand here
        x +* y
           ^
    """

    def __init__(self, message: str, *, text: str = "", column: int = -1) -> None:
        self.text, self.column = text, column
        start = text.rfind("\n", 0, max(column, 0)) + 1
        line = text[start:].split("\n", 1)[0]
        shown = f"\n    {line}\n    {' ' * (column - start)}^" if column >= 0 else ""
        super().__init__(message + shown, argument="expression")


def present(value: T | None, name: str) -> T:
    """Return ``value``, which is never None at this point.

    Raises
    ------
    AssertionError
        If it is None: a fault of nxcore, not of the caller.
    """
    if value is None:
        raise AssertionError(f"{name} must not be None here")
    return value


def of_type(value: object, wanted: type[T], what: str, argument: str) -> T:
    """Return an argument if it has the type that it must have.

    Raises
    ------
    InvalidInputError
        If it hasn't.

    >>> nxcore.errors.of_type(3, torch.nn.Module, "a torch.nn.Module", "model")
    Traceback (most recent call last):
    nxcore.errors.InvalidInputError: model must be a torch.nn.Module, got 3, of type int
    """
    if not isinstance(value, wanted):
        message = f"{argument} must be {what}, got {value!r}, of type {type(value).__name__}"
        raise InvalidInputError(message, argument=argument)
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, or the list of known names."""
    names = sorted(known)
    return _meant(name, names) or f"; known: {', '.join(names) or 'none'}"


def one_of(what: str, got: object, known: Iterable[str]) -> str:
    """Return the message of an argument that must be one of a few names, with the closest one.

    >>> nxcore.errors.one_of("policy", "mesure", ("auto", "measure"))
    "policy must be one of auto, measure, got 'mesure'; did you mean 'measure'?"
    """
    names = tuple(known)
    return f"{what} must be one of {', '.join(names)}, got {got!r}{_meant(got, names)}"


def _meant(name: object, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name in any case; empty if none is."""
    if not isinstance(name, str):
        return ""  # None is near to "one"
    spelt = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(name).lower(), spelt, n=1)
    return f"; did you mean {spelt[close[0]]!r}?" if close else ""


class UnknownOperatorError(NxcoreError, KeyError):
    """No operator has that name.

    Attributes
    ----------
    name : str
        The requested name.
    known : tuple of str
        The names of all operators.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(sorted(known))
        hint = nearest(name, self.known)
        if len(self.known) > MANY:
            hint = _meant(name, self.known) or f"; `nxcore ops` lists all {len(self.known)}"
        super().__init__(f"no operator is named {name!r}{hint}")


class BackendUnavailableError(NxcoreError):
    """The requested backend can't run on this machine.

    Attributes
    ----------
    backend : str
        The requested backend.
    reason : str
        Why it can't run here.
    """

    def __init__(self, message: str, *, backend: str, reason: str = "") -> None:
        super().__init__(message)
        self.backend, self.reason = backend, reason


class UnknownBackendError(BackendUnavailableError, KeyError):
    """No backend has that name: it isn't installed, or the name is misspelt.

    Attributes
    ----------
    known : tuple of str
        The names of all backends.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.known = tuple(sorted(known))
        super().__init__(
            f"no backend is named {name!r}{nearest(name, self.known)}", backend=name, reason="unknown"
        )


class UnsupportedProblemError(NxcoreError):
    """The backend that the caller requested can't take this call.

    Attributes
    ----------
    operator, backend : str
        The requested operator and backend.
    reasons : tuple of str
        One reason for each kernel that was tried.
    """

    def __init__(self, operator: str, backend: str, reasons: Iterable[str]) -> None:
        self.operator, self.backend, self.reasons = operator, backend, tuple(reasons)
        listed = "; ".join(self.reasons) or "it has no kernel for this operator"
        super().__init__(f"backend {backend!r} can't take this call of {operator!r}: {listed}")


class VerificationError(NxcoreError):
    """A kernel's result differs from the float64 reference, or a sample can't detect wrong results."""


class MeasurementError(NxcoreError):
    """A timing that can't be trusted, for example because the work ran on another stream."""


class CaptureError(NxcoreError):
    """A function can't be captured in a CUDA graph; the message names the argument, result or line."""


class DeviceLostError(NxcoreError):
    """A kernel ended the process's CUDA context; nothing on that device works until the process restarts.

    Attributes
    ----------
    op, kernel : str
        The operator and the kernel that ran.
    sure : bool
        True for a synchronized first launch; if False, an earlier launch may be the cause.
    reason : str
        The driver's message.
    """

    def __init__(self, reason: str, *, op: str, kernel: str, sure: bool, before: Iterable[str] = ()) -> None:
        self.op, self.kernel, self.sure, self.reason = op, kernel, sure, reason
        earlier = ", ".join(before) or "none of nxcore's"
        cause = (
            f"the cause is {kernel!r} of {op!r}, at its first launch; it is quarantined"
            if sure
            else f"a call of {op!r} ({kernel!r}) reported it; an earlier launch may be the cause: {earlier}"
        )
        super().__init__(
            f"the CUDA context of this process was ended: {reason}; {cause}. Restart the process: nothing on "
            "this device works until then. `nxcore verify` finds the kernel: it runs each in its own process"
        )


class PluginError(NxcoreError):
    """A plugin breaks the contract.

    Attributes
    ----------
    plugin : str
        The name of the entry point.
    distribution : str
        The distribution and version that provide it.
    """

    def __init__(self, message: str, *, plugin: str = "", distribution: str = "") -> None:
        super().__init__(message)
        self.plugin, self.distribution = plugin, distribution
