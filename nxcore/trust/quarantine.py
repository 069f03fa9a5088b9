"""Kernels that are kept from calls, and why; and the journal of those that took the process along.

Three kinds, never mixed: ``wrong`` (a wrong answer), ``crashed`` (the process ended, or hung, inside the
first run of a kernel) and ``raised`` (it raised in call after call). Each entry names its kernel, dtype,
reason and what the kernel was made of; it ends with its term, or once the kernel is made of something else.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from nxcore.spec.kernel import Code, Refusal
from nxcore.store.files import Store

_log = logging.getLogger(__name__)

Kind = Literal["wrong", "crashed", "raised"]

DAY = 86_400.0
TERM: Mapping[Kind, float] = {"wrong": 30 * DAY, "crashed": 7 * DAY, "raised": DAY}
"""Seconds that an entry holds: after that the kernel is verified anew."""

STRIKES = 3
"""Problems of one dtype on which a kernel may raise before it is kept from all of them."""

PATIENCE = 30.0
"""Seconds after which a first run that the user interrupts counts as hung."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A kernel as the quarantine knows it.

    Attributes
    ----------
    op, kernel : str
        The operator, and the kernel's label.
    dtype : str
        The element type, as ``"float32"``.
    device : Mapping
        Model, capability and driver; see ``nxcore.trust.fingerprint.device``.
    made_of : Mapping
        Hashes of sources and versions of packages: of another make it is another kernel.
    """

    op: str
    kernel: str
    dtype: str
    device: Mapping[str, Any]
    made_of: Mapping[str, Any]

    @property
    def key(self) -> dict[str, Any]:
        """What an entry is filed under."""
        return {
            "op": self.op,
            "kernel": self.kernel,
            "dtype": self.dtype,
            "device": f"{self.device.get('type')} {self.device.get('name')}",
        }


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Why a kernel is kept from calls.

    Attributes
    ----------
    op, kernel, dtype, device : str
        Which kernel, on which element type, on which model of device.
    kind : str
        ``wrong``, ``crashed`` or ``raised``.
    reason : str
        What happened.
    since, until : float
        Seconds since the epoch.
    facts : Mapping
        The device and the make of the kernel.
    """

    op: str
    kernel: str
    dtype: str
    device: str
    kind: Kind
    reason: str
    since: float
    until: float
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain data."""
        return asdict(self)

    @property
    def refusal(self) -> Refusal:
        """Why the kernel may not serve."""
        codes = {"wrong": Code.WRONG, "crashed": Code.CRASHED, "raised": Code.QUARANTINED}
        return Refusal(codes[self.kind], str(self))

    def __str__(self) -> str:
        until = time.strftime("%Y-%m-%d", time.gmtime(self.until))
        return f"quarantined until {until} ({self.kind}): {self.reason}; nxcore quarantine clear lifts it"


class Quarantine:
    """The entries in force, on disk and in memory.

    Parameters
    ----------
    store : Store
        Where entries and the journal are kept.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._entries: dict[tuple[str, ...], Quarantined] = {}
        self._strikes: dict[tuple[str, ...], set[Any]] = {}
        self._lock = threading.Lock()
        self._turn = itertools.count()
        for key, document in store.items("quarantine"):
            if (entry := _entry(key, document)) and entry.until > time.time():
                self._entries[_place(key)] = entry
        self._read_journal()

    def __iter__(self) -> Iterator[Quarantined]:
        """Yield the entries in force, those of one kind together."""
        now = time.time()
        found = [e for e in self._entries.values() if e.until > now]
        yield from sorted(found, key=lambda e: (e.kind, e.op, e.kernel, e.dtype))

    def knows(self, op: str, kernel: str) -> bool:
        """Return whether any entry is of this kernel."""
        return any(place[:2] == (op, kernel) for place in self._entries)

    def refusal(self, suspect: Suspect) -> Refusal | None:
        """Return why this kernel may not serve; None if it may."""
        entry = self._entries.get(_place(suspect.key))
        if entry is None or entry.until <= time.time() or entry.facts != _facts(suspect):
            return None
        return entry.refusal

    def add(self, suspect: Suspect, kind: Kind, reason: str) -> Quarantined:
        """Keep a kernel from the calls of one dtype."""
        now = time.time()
        entry = Quarantined(
            **suspect.key, kind=kind, reason=reason, since=now, until=now + TERM[kind], facts=_facts(suspect)
        )
        with self._lock:
            self._entries[_place(suspect.key)] = entry
        self.store.write("quarantine", suspect.key, entry.to_dict())
        _log.info("quarantine: %s of %s, %s: %s", suspect.kernel, suspect.op, kind, reason)
        return entry

    def strike(self, suspect: Suspect, problem: Any, reason: str) -> Quarantined | None:
        """Count a problem on which a kernel raised; the last that it may have puts it into quarantine."""
        with self._lock:
            struck = self._strikes.setdefault(_place(suspect.key), set())
            struck.add(problem)
            count = len(struck)
        if count < STRIKES:
            return None
        return self.add(suspect, "raised", f"raised on {count} problems, at last: {reason}")

    def clear(self, op: str = "", kernel: str = "") -> list[Quarantined]:
        """Lift the entries of an operator, of a kernel or of all; return them."""
        lifted = [e for e in self if (not op or e.op == op) and (not kernel or e.kernel == kernel)]
        for entry in lifted:
            self.lift(entry)
        return lifted

    def lift(self, entry: Quarantined) -> None:
        """Let one kernel try again."""
        key = {"op": entry.op, "kernel": entry.kernel, "dtype": entry.dtype, "device": entry.device}
        with self._lock:
            self._entries.pop(_place(key), None)
            self._strikes.pop(_place(key), None)
        self.store.remove("quarantine", key)

    @contextlib.contextmanager
    def watched(self, suspect: Suspect, what: str) -> Iterator[None]:
        """Note in the journal that ``suspect`` is at ``what``, until it is done.

        A process that ends in between leaves the note behind, and the next one to start reads it.
        """
        started = time.time()
        key = {
            "host": platform.node(),
            "pid": os.getpid(),
            "born": _born(os.getpid()),
            "turn": next(self._turn),
        }
        self.store.write("journal", key, {"what": what, "since": started, "suspect": asdict(suspect)})
        try:
            yield
        except KeyboardInterrupt:
            if time.time() - started > PATIENCE:
                self.add(suspect, "crashed", f"{what} was interrupted after {time.time() - started:.0f} s")
            raise
        finally:
            self.store.remove("journal", key)

    def _read_journal(self) -> None:
        """Quarantine what dead processes were at."""
        if self.store.folder is None:
            return
        for key, note in self.store.items("journal"):
            if _alive(key, note):
                continue
            suspect = _suspect(note)
            if suspect:
                what = str(note.get("what", "its first run"))
                self.add(
                    suspect, "crashed", f"a process ended during {what}: it crashed, or hung and was killed"
                )
            self.store.remove("journal", key)


def _facts(suspect: Suspect) -> dict[str, Any]:
    return {"device": dict(suspect.device), "made_of": dict(suspect.made_of)}


def _place(key: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(key.get(name)) for name in ("op", "kernel", "dtype", "device"))


def _entry(key: Mapping[str, Any], document: Mapping[str, Any]) -> Quarantined | None:
    """Return the entry that a document describes, None if it describes none."""
    try:
        entry = Quarantined(**document)
    except TypeError:
        return None
    texts = (entry.op, entry.kernel, entry.dtype, entry.device, entry.reason)
    times = (entry.since, entry.until)
    sound = (
        all(isinstance(t, str) for t in texts)
        and all(isinstance(t, int | float) for t in times)
        and entry.kind in TERM
        and isinstance(entry.facts, dict)
        and _place(key) == _place(document)
    )
    return entry if sound else None


def _suspect(note: Mapping[str, Any]) -> Suspect | None:
    try:
        found = Suspect(**note["suspect"])
    except (KeyError, TypeError):
        return None
    texts = all(isinstance(t, str) for t in (found.op, found.kernel, found.dtype))
    return found if texts and isinstance(found.device, dict) and isinstance(found.made_of, dict) else None


def _born(pid: int) -> str:
    """Return when a process started, in the system's own ticks: a number is used again, its start is not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]  # a zombie has ended
    except (OSError, IndexError, ValueError):
        return ""


def _alive(key: Mapping[str, Any], note: Mapping[str, Any]) -> bool:
    """Return whether the process that wrote a note may still be at it."""
    pid, since = key.get("pid"), note.get("since")
    if not isinstance(pid, int) or not isinstance(since, int | float):
        return False
    if key.get("host") != platform.node():
        return time.time() - since < DAY  # nobody can look: a day is enough for any first run
    if os.name != "posix":
        return time.time() - since < DAY
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return _born(pid) == key.get("born")
