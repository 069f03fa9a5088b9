"""Suspect: a kernel as the quarantine knows it; and a doubt about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Suspect:
    """A kernel with its dtype, device and identity.

    Attributes
    ----------
    op, kernel : str
        The operator, and the kernel's label.
    dtype : str
        The element type, as ``"float32"``.
    device : Mapping
        Model, capability and driver; see ``nxcore.trust.fingerprint.device``.
    made_of : Mapping
        Identity and versions of toolkits: a change makes it a new, unverified kernel.
    """

    op: str
    kernel: str
    dtype: str
    device: Mapping[str, Any]
    made_of: Mapping[str, Any]

    @property
    def key(self) -> dict[str, Any]:
        """The key of its entry."""
        return {
            "op": self.op,
            "kernel": self.kernel,
            "dtype": self.dtype,
            "device": f"{self.device.get('type')} {self.device.get('name')}",
        }


@dataclass(frozen=True, slots=True)
class Doubt:
    """A kernel whose process ended, for whatever reason, while it ran for the first time.

    Attributes
    ----------
    suspect : Suspect
        The kernel.
    what : str
        What it was in, such as its verification.
    call : Mapping
        The problem and its expression as plain data, empty if unknown: what is tried again.
    since : float
        When that was found, in seconds since the epoch.
    """

    suspect: Suspect
    what: str
    call: Mapping[str, Any]
    since: float

    @property
    def reason(self) -> str:
        """The doubt in words."""
        return f"a process ended during {self.what}"

    def to_dict(self) -> dict[str, Any]:
        """Return the doubt as plain data."""
        return asdict(self)
