"""The quarantine: rejected kernels and the reasons; and the journal, which finds those that end the process.

There are three kinds: ``wrong`` (a wrong result), ``crashed`` (the process ended, or hung, during the first
run of a kernel) and ``raised`` (it raised in several calls). Each entry has the kernel, the dtype, the reason
and the kernel's identity. It ends after its term, or when the kernel changes.
"""

from __future__ import annotations

import contextlib
import functools
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
"""Seconds that an entry holds; after that the kernel is verified again."""

STRIKES = 3
"""The number of problems of a dtype on which a kernel may raise before it is rejected for all."""

PATIENCE = 30.0
"""Seconds after which a first run that the user interrupts counts as a hang."""


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
class Quarantined:
    """An entry of the quarantine: why a kernel is rejected.

    Attributes
    ----------
    op, kernel, dtype, device : str
        The kernel, the element type and the device model.
    kind : str
        ``wrong``, ``crashed`` or ``raised``.
    reason : str
        The failure.
    since, until : float
        Start and end of the entry, in seconds since the epoch.
    facts : Mapping
        The device, and what the kernel was made of.
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
        """The kernel's refusal."""
        codes = {"wrong": Code.WRONG, "crashed": Code.CRASHED, "raised": Code.QUARANTINED}
        return Refusal(codes[self.kind], str(self))

    def __str__(self) -> str:
        until = time.strftime("%Y-%m-%d", time.gmtime(self.until))
        lift = f"nxcore quarantine clear {self.op} --kernel {self.kernel}"
        return f"quarantined until {until} ({self.kind}): {self.reason}; {lift} lifts it"


class Quarantine:
    """The entries in force, on disk and in memory.

    Parameters
    ----------
    store : Store
        Holds the entries and the journal.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._entries: dict[tuple[str, ...], Quarantined] = {}
        self._strikes: dict[tuple[str, ...], set[Any]] = {}
        self._lock = threading.Lock()
        self._turn = itertools.count()
        self._master: dict[str, Any] | None = None
        self.read()

    def read(self) -> None:
        """Read the entries on disk, and the journal of processes that have ended since."""
        for key, document in self.store.items("quarantine"):
            if (entry := _entry(key, document)) and entry.until > time.time():
                self._entries[_place(key)] = entry
        self._read_journal()

    def work_for(self, pid: int) -> None:
        """Write the journal for another process: what ends both is no kernel of this one."""
        self._master = {"host": platform.node(), "pid": pid, "born": _born(pid)}

    def withdraw(self, pid: int) -> None:
        """Remove the notes of a process on this machine: no kernel is to blame for its end."""
        for key, _ in self.store.items("journal"):
            if key.get("pid") == pid and key.get("host") == platform.node():
                self.store.remove("journal", key)

    def __iter__(self) -> Iterator[Quarantined]:
        """Yield the entries in force, grouped by kind."""
        now = time.time()
        found = [e for e in self._entries.values() if e.until > now]
        yield from sorted(found, key=lambda e: (e.kind, e.op, e.kernel, e.dtype))

    def knows(self, op: str, kernel: str) -> bool:
        """Return whether there is an entry of this kernel."""
        return any(place[:2] == (op, kernel) for place in self._entries)

    def refusal(self, suspect: Suspect) -> Refusal | None:
        """Return why this kernel is rejected; None if it isn't."""
        entry = self._entries.get(_place(suspect.key))
        if entry is None or entry.until <= time.time() or entry.facts != _facts(suspect):
            return None
        return entry.refusal

    def add(self, suspect: Suspect, kind: Kind, reason: str) -> Quarantined:
        """Reject a kernel for all calls of one dtype."""
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
        """Count a problem on which a kernel raised; the last allowed one puts it into quarantine."""
        with self._lock:
            struck = self._strikes.setdefault(_place(suspect.key), set())
            struck.add(problem)
            count = len(struck)
        if count < STRIKES:
            return None
        return self.add(suspect, "raised", f"raised on {count} problems, most recently: {reason}")

    def clear(self, op: str = "", kernel: str = "") -> list[Quarantined]:
        """Remove the entries of an operator, of a kernel or of all; return them."""
        lifted = [e for e in self if (not op or e.op == op) and (not kernel or e.kernel == kernel)]
        for entry in lifted:
            self.lift(entry)
        return lifted

    def lift(self, entry: Quarantined) -> None:
        """Remove one entry, so that its kernel is verified again."""
        key = {"op": entry.op, "kernel": entry.kernel, "dtype": entry.dtype, "device": entry.device}
        with self._lock:
            self._entries.pop(_place(key), None)
            self._strikes.pop(_place(key), None)
        self.store.remove("quarantine", key)

    @contextlib.contextmanager
    def watched(self, suspect: Suspect, what: str) -> Iterator[None]:
        """Note in the journal that ``suspect`` is in ``what``, until that has ended.

        If the process ends before, the note stays, and the next process reads it.
        """
        started = time.time()
        key = {
            "host": platform.node(),
            "pid": os.getpid(),
            "born": _own_birth(os.getpid()),
            "turn": next(self._turn),
        }
        note = {"what": what, "since": started, "suspect": asdict(suspect), "for": self._master}
        self.store.write("journal", key, note)
        try:
            yield
        except KeyboardInterrupt:
            if time.time() - started > PATIENCE:
                self.add(suspect, "crashed", f"{what} was interrupted after {time.time() - started:.0f} s")
            raise
        finally:
            self.store.remove("journal", key)

    def _read_journal(self) -> None:
        """Quarantine the kernels of notes from processes that have ended."""
        if self.store.folder is None:
            return
        for key, note in self.store.items("journal"):
            if _alive(key, note):
                continue
            suspect, master = _suspect(note), note.get("for")
            if suspect and not (isinstance(master, dict) and not _alive(master, note)):
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
    """Return the entry that a document describes, or None."""
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
    """Return when a process started, in system ticks: its number may be reused, its start time isn't."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]  # a zombie has ended
    except (OSError, IndexError, ValueError):
        return ""


@functools.cache
def _own_birth(pid: int) -> str:
    """Return when this process started: a note is written at each sample of a verification."""
    return _born(pid)


def _alive(key: Mapping[str, Any], note: Mapping[str, Any]) -> bool:
    """Return whether the process that wrote a note may still be running."""
    pid, since = key.get("pid"), note.get("since")
    if not isinstance(pid, int) or not isinstance(since, int | float):
        return False
    if key.get("host") != platform.node():
        return time.time() - since < DAY  # processes can't be listed: a day is enough for any first run
    if os.name != "posix":
        return time.time() - since < DAY
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's process
    return _born(pid) == key.get("born")
