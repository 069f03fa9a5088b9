"""What can go wrong, as one tree; every error carries attributes, not only text.

NxcoreError
├── InvalidInputError (ValueError)        an argument breaks the operator's contract
├── UnknownOperatorError (KeyError)       no operator of that name; names the nearest
├── BackendUnavailableError               this machine can't run that backend
│   └── UnknownBackendError (KeyError)    no backend of that name; names the nearest
├── UnsupportedProblemError               the backend asked for declines this call
├── VerificationError                     a kernel disagrees with the float64 reference
├── CaptureError                          a function can't be captured in a CUDA graph
├── MeasurementError                      a timing that can't be trusted
├── DeviceLostError                       a kernel ended the process's CUDA context
└── PluginError                           a plugin breaks the contract
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class NxcoreError(Exception):
    """The root: ``except nxcore.errors.NxcoreError`` catches all that nxcore raises by itself."""

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> Any:  # so that an error crosses processes whole, whatever its constructor takes
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
        The name of the offending argument.
    """

    def __init__(self, message: str, *, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, or the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names) or 'none'}"


class UnknownOperatorError(NxcoreError, KeyError):
    """No operator has that name.

    Attributes
    ----------
    name : str
        The name asked for.
    known : tuple of str
        The names there are.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(sorted(known))
        super().__init__(f"no operator is named {name!r}{nearest(name, self.known)}")


class BackendUnavailableError(NxcoreError):
    """The backend that was asked for can't run on this machine.

    Attributes
    ----------
    backend : str
        The backend asked for.
    reason : str
        Why it can't run here.
    """

    def __init__(self, message: str, *, backend: str, reason: str = "") -> None:
        super().__init__(message)
        self.backend, self.reason = backend, reason


class UnknownBackendError(BackendUnavailableError, KeyError):
    """No backend has that name: it isn't installed, or it is misspelt.

    Attributes
    ----------
    known : tuple of str
        The names of the backends there are.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.known = tuple(sorted(known))
        super().__init__(
            f"no backend is named {name!r}{nearest(name, self.known)}", backend=name, reason="unknown"
        )


class UnsupportedProblemError(NxcoreError):
    """The one backend that the caller asked for can't take this call.

    Attributes
    ----------
    operator, backend : str
        What was asked for.
    reasons : tuple of str
        One reason for each kernel that was tried.
    """

    def __init__(self, operator: str, backend: str, reasons: Iterable[str]) -> None:
        self.operator, self.backend, self.reasons = operator, backend, tuple(reasons)
        listed = "; ".join(self.reasons) or "it has no kernel for this operator"
        super().__init__(f"backend {backend!r} can't take this call of {operator!r}: {listed}")


class VerificationError(NxcoreError):
    """A kernel disagrees with the float64 reference, or a sample can't tell right from wrong."""


class MeasurementError(NxcoreError):
    """A timing that can't be trusted, such as work that ran on another stream."""


class CaptureError(NxcoreError):
    """A function can't be captured in a CUDA graph; the message names argument, result or line."""


class DeviceLostError(NxcoreError):
    """A kernel ended the process's CUDA context; nothing on that device works until the process restarts.

    Attributes
    ----------
    op, kernel : str
        What was running.
    sure : bool
        It was the kernel's first launch, waited for; else an earlier launch may be to blame.
    reason : str
        What the driver said.
    """

    def __init__(self, reason: str, *, op: str, kernel: str, sure: bool, before: Iterable[str] = ()) -> None:
        self.op, self.kernel, self.sure, self.reason = op, kernel, sure, reason
        earlier = ", ".join(before) or "none of nxcore's"
        who = (
            f"{kernel!r} of {op!r} did, at its first launch; it is quarantined"
            if sure
            else f"it showed in a call of {op!r} ({kernel!r}); an earlier launch may be to blame: {earlier}"
        )
        super().__init__(
            f"the CUDA context of this process was ended: {reason}; {who}. Restart the process: nothing on "
            "this device works until then. `nxcore verify` finds the kernel, each in a process of its own"
        )


class PluginError(NxcoreError):
    """A plugin breaks the contract.

    Attributes
    ----------
    plugin : str
        The entry point's name.
    distribution : str
        The distribution and version that it came from.
    """

    def __init__(self, message: str, *, plugin: str = "", distribution: str = "") -> None:
        super().__init__(message)
        self.plugin, self.distribution = plugin, distribution
