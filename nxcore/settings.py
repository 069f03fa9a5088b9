"""What the environment says."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

VARIABLES = ("NXCORE_BACKENDS", "NXCORE_DISABLE", "NXCORE_STRICT")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says, read once per session.

    Attributes
    ----------
    backends : frozenset of str, optional
        ``NXCORE_BACKENDS``: the only plugins to load, separated by commas; all where None.
    disable : frozenset of str
        ``NXCORE_DISABLE``: plugins not to load.
    strict : bool
        ``NXCORE_STRICT``: a broken plugin raises; "", "0", "false", "no" and "off" mean no.
    """

    backends: frozenset[str] | None = None
    disable: frozenset[str] = frozenset()
    strict: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read ``NXCORE_*``; a name that isn't known warns. ``NXCORE_<PLUGIN>_*`` is that plugin's own."""
        env = os.environ if environment is None else environment
        plugins = tuple(f"NXCORE_{p.name.upper()}_" for p in entry_points(group="nxcore"))
        for name in sorted(env):
            if name.startswith("NXCORE_") and name not in VARIABLES and not name.startswith(plugins):
                known = ", ".join(VARIABLES)
                warnings.warn(f"{name} is not a setting of nxcore; known: {known}", stacklevel=3)
        return cls(
            backends=_names(env["NXCORE_BACKENDS"]) if "NXCORE_BACKENDS" in env else None,
            disable=_names(env.get("NXCORE_DISABLE", "")),
            strict=env.get("NXCORE_STRICT", "").strip().lower() not in ("", "0", "false", "no", "off"),
        )


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())
