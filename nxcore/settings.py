"""Settings from the environment variables ``NXCORE_*``."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import platformdirs

from nxcore.errors import InvalidInputError, one_of

VARIABLES = (
    "NXCORE_AUDIT",
    "NXCORE_BACKENDS",
    "NXCORE_CACHE",
    "NXCORE_DISABLE",
    "NXCORE_LOCK",
    "NXCORE_LOG",
    "NXCORE_NATIVE",
    "NXCORE_NO_JIT",
    "NXCORE_NO_MEASURE",
    "NXCORE_POLICY",
    "NXCORE_STRICT",
    "NXCORE_WATCH",
    "NXCORE_WORKERS",
)
POLICIES = ("auto", "measure", "frozen")
FORMER = {"online": "auto", "estimate": "frozen"}
"""The names that policies had -> those in their place."""
NO = frozenset({"", "0", "false", "no", "off"})
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a session, read once from the environment.

    Attributes
    ----------
    audit : bool
        ``NXCORE_AUDIT``: results of verified kernels are checked in some of their calls; "", "0", "false",
        "no" and "off" mean no.
    backends : frozenset of str, optional
        ``NXCORE_BACKENDS``: the only plugins to load, separated by commas; None loads all.
    cache : Path, optional
        ``NXCORE_CACHE``: the folder for measurements, by default in the user's cache. None, set by "", "0",
        "false", "no" or "off", keeps them in memory alone.
    disable : frozenset of str
        ``NXCORE_DISABLE``: plugins not to load.
    jit : bool
        ``NXCORE_NO_JIT``: nothing is compiled; "", "0", "false", "no" and "off" mean that it may be. A kernel
        whose code is neither on disk nor in its wheel is refused.
    lock : Path, optional
        ``NXCORE_LOCK``: a file that fixes the winner of each problem; see ``nxcore wisdom lock``.
    log : str
        ``NXCORE_LOG``: ``debug``, ``info``, ``warning`` or ``error``: the lowest level of the logger
        ``nxcore`` that is written to standard error. Empty leaves logging as it is.
    measure : bool
        ``NXCORE_NO_MEASURE``: nothing is measured, whatever the policy; "", "0", "false", "no" and "off" mean
        that it may be.
    native : bool
        ``NXCORE_NATIVE``: whether calls find their plans in the extension of ``nxcore-native``, if it is
        installed; "", "0", "false", "no" and "off" mean no.
    policy : str
        ``NXCORE_POLICY``: ``auto`` (measure a new problem once, where that costs least), ``measure`` (measure
        it at its first call) or ``frozen`` (use the lock alone; without one, the records alone).
    strict : bool
        ``NXCORE_STRICT``: a broken plugin raises an error; "", "0", "false", "no" and "off" mean no.
    watch : bool
        ``NXCORE_WATCH``: steps of accelerated models are compared with plain ones, and modules that don't pay
        are given back; "", "0", "false", "no" and "off" mean no.
    workers : int, optional
        ``NXCORE_WORKERS``: the most processes that compile kernels beside the program; "", "0", "false", "no"
        and "off" mean none. None is by the number of cores.
    """

    audit: bool = True
    backends: frozenset[str] | None = None
    cache: Path | None = None
    disable: frozenset[str] = frozenset()
    jit: bool = True
    lock: Path | None = None
    log: str = ""
    measure: bool = True
    native: bool = True
    policy: str = "auto"
    strict: bool = False
    watch: bool = True
    workers: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read ``NXCORE_*``; an unknown name warns. ``NXCORE_<PLUGIN>_*`` belongs to that plugin."""
        env = os.environ if environment is None else environment
        plugins = tuple(f"NXCORE_{p.name.upper()}_" for p in entry_points(group="nxcore"))
        for name in sorted(env):
            if name.startswith("NXCORE_") and name not in VARIABLES and not name.startswith(plugins):
                known = ", ".join(VARIABLES)
                warnings.warn(f"{name} is not a setting of nxcore; known: {known}", stacklevel=3)
        return cls(
            audit=_on(env.get("NXCORE_AUDIT", "1")),
            backends=_names(env["NXCORE_BACKENDS"]) if "NXCORE_BACKENDS" in env else None,
            cache=cache_folder(env),
            disable=_names(env.get("NXCORE_DISABLE", "")),
            jit=not _on(env.get("NXCORE_NO_JIT", "")),
            lock=Path(env["NXCORE_LOCK"]).expanduser() if env.get("NXCORE_LOCK") else None,
            log=_level(env.get("NXCORE_LOG", "")),
            measure=not _on(env.get("NXCORE_NO_MEASURE", "")),
            native=_on(env.get("NXCORE_NATIVE", "1")),
            policy=require_policy(env.get("NXCORE_POLICY", "auto").strip().lower(), "NXCORE_POLICY"),
            strict=_on(env.get("NXCORE_STRICT", "")),
            watch=_on(env.get("NXCORE_WATCH", "1")),
            workers=_workers(env.get("NXCORE_WORKERS")),
        )


def require_policy(policy: str, name: str = "policy") -> str:
    """Return ``policy``, or raise where it isn't one.

    Raises
    ------
    InvalidInputError
        If it isn't a policy; the message names the nearest, or the one in place of a former one.
    """
    if policy not in POLICIES:
        now = FORMER.get(policy) if isinstance(policy, str) else None
        told = f"; {now!r} is in its place" if now else ""
        raise InvalidInputError(one_of(name, policy, POLICIES) + told, argument=name)
    return policy


def log_to_stderr(level: str) -> None:
    """Write the lines of the logger ``nxcore`` to the standard error, once a process.

    Parameters
    ----------
    level : str
        One of ``LEVELS``; nothing happens where it is empty.
    """
    logger = logging.getLogger("nxcore")
    if not level:
        return
    logger.setLevel(level.upper())
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)


def _on(text: str) -> bool:
    return text.strip().lower() not in NO


def _level(text: str) -> str:
    level = text.strip().lower()
    if level in NO:
        return ""
    if level not in LEVELS:
        raise InvalidInputError(one_of("NXCORE_LOG", level, LEVELS), argument="NXCORE_LOG")
    return level


def _workers(text: str | None) -> int | None:
    if text is None or text.strip().lower() == "auto":
        return None
    if text.strip().lower() in NO:
        return 0
    if not text.strip().isdecimal():
        raise InvalidInputError(
            f"NXCORE_WORKERS must be a number or 'auto', got {text!r}", argument="NXCORE_WORKERS"
        )
    return int(text)


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def cache_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder that ``NXCORE_CACHE`` names, by default the user's; None keeps all in memory."""
    given = (os.environ if environment is None else environment).get("NXCORE_CACHE")
    if given is None:
        return platformdirs.user_cache_path("nxcore", appauthor=False)
    return None if given.strip().lower() in NO else Path(given).expanduser()
