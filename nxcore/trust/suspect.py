"""Suspect: a kernel as the quarantine knows it; and a doubt about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Suspect:
    """A kernel with its dtype, device and identity; ``made_of`` also has the versions of its toolkits."""

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

    That was in ``what``, such as its verification, and was found at ``since``, in seconds since the epoch.
    ``call`` is what is tried again: the problem and its expression as plain data, empty if unknown.
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
