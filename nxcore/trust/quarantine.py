"""The quarantine: rejected kernels and the reasons; and the journal, which finds those that end the process.

A process may also have been ended from outside. So a note of the journal is a doubt at first: the kernel is
tried in a process of its own, and rejected if it ends that one too.

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
from types import MappingProxyType
from typing import Any, Literal

from nxcore.spec.kernel import Code, Refusal
from nxcore.store.files import Store
from nxcore.trust.suspect import Doubt, Suspect

_log = logging.getLogger(__name__)

Kind = Literal["wrong", "crashed", "raised"]

DAY = 86_400.0
TERM: Mapping[Kind, float] = {"wrong": 30 * DAY, "crashed": 7 * DAY, "raised": DAY}
"""Seconds that an entry holds; after that the kernel is verified again."""

STRIKES = 3
"""The number of problems of a dtype on which a kernel may raise before it is rejected for all."""

PATIENCE = 30.0
"""Seconds after which a first run that the user interrupts may be a hang, so that it is tried."""

LATEST, MOST_PROCESSES = 1e11, 1 << 30
"""The last date, and the largest number of a process: other ones say nothing."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An entry of the quarantine: why a kernel is rejected.

    The ``kind`` is ``wrong``, ``crashed`` or ``raised``, ``since`` and ``until`` are seconds since the epoch,
    and ``facts`` are the device, and what the kernel was made of.
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

    First runs are noted in the ``journal``, not so in a process that is one kernel's trial.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._entries: dict[tuple[str, ...], Quarantined] = {}
        self._strikes: dict[tuple[str, ...], set[Any]] = {}
        self._doubts: dict[tuple[str, ...], Doubt] = {}
        self._lock = threading.Lock()
        self._turn = itertools.count()
        self._master: dict[str, Any] | None = None
        self.journal = True
        self.read()

    def read(self) -> None:
        """Read the entries on disk, and the journal of processes that have ended since."""
        for key, document in self.store.items("quarantine"):
            if (entry := _entry(key, document)) and entry.until > time.time():
                self._entries[_place(key)] = entry
        for _, document in self.store.items("doubts"):
            if (doubt := _doubt(document)) and time.time() - doubt.since < TERM["crashed"]:
                self._doubts[_place(doubt.suspect.key)] = doubt
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

    @property
    def doubts(self) -> list[Doubt]:
        """The kernels that are tried in a process of their own before they run here."""
        return list(self._doubts.values())

    def doubt(self, suspect: Suspect) -> Doubt | None:
        """Return the doubt about this kernel; None if there is none, or it was about another version."""
        found = self._doubts.get(_place(suspect.key)) if self._doubts else None
        return found if found and _facts(found.suspect) == _facts(suspect) else None

    def acquit(self, suspect: Suspect) -> None:
        """Remove the doubt about a kernel."""
        if self._doubts.pop(_place(suspect.key), None):
            self.store.remove("doubts", suspect.key)

    def _doubted(self, suspect: Suspect, what: str, call: Mapping[str, Any]) -> None:
        """Note that a process ended in a kernel."""
        self._doubts[_place(suspect.key)] = doubt = Doubt(suspect, what, dict(call), time.time())
        self.store.write("doubts", suspect.key, doubt.to_dict())
        _log.info("doubt: %s of %s: a process ended during %s", suspect.kernel, suspect.op, what)

    def add(self, suspect: Suspect, kind: Kind, reason: str) -> Quarantined:
        """Reject a kernel for all calls of one dtype."""
        self.acquit(suspect)
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
        for doubt in self.doubts:
            if op in ("", doubt.suspect.op) and kernel in ("", doubt.suspect.kernel):
                self.acquit(doubt.suspect)
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
    def watched(
        self, suspect: Suspect, what: str, call: Mapping[str, Any] = MappingProxyType({})
    ) -> Iterator[None]:
        """Note in the journal that ``suspect`` is in ``what``, until that has ended.

        If the process ends before, the note stays, and the next process reads it. ``call`` is that of a
        ``Doubt``.
        """
        if not self.journal:
            yield
            return
        started = time.time()
        key = {
            "host": platform.node(),
            "pid": os.getpid(),
            "born": _own_birth(os.getpid()),
            "turn": next(self._turn),
        }
        note = {"what": what, "since": started, "suspect": asdict(suspect), "for": self._master}
        note["call"] = dict(call)
        self.store.write("journal", key, note)
        try:
            yield
        except KeyboardInterrupt:
            if time.time() - started > PATIENCE:
                self._doubted(suspect, what, call)
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
                call = note.get("call")
                what = str(note.get("what", "its first run"))
                self._doubted(suspect, what, call if isinstance(call, dict) else {})
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
        and all(isinstance(t, int | float) and 0 <= t <= LATEST for t in times)
        and isinstance(entry.kind, str)
        and entry.kind in TERM
        and isinstance(entry.facts, dict)
        and _place(key) == _place(document)
    )
    return entry if sound else None


def _doubt(document: Mapping[str, Any]) -> Doubt | None:
    what, call, since = (document.get(name) for name in ("what", "call", "since"))
    found = _suspect(document)
    if found is None or not (isinstance(what, str) and isinstance(call, dict) and isinstance(since, float)):
        return None
    return Doubt(found, what, call, since)


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
    if not 0 < pid <= MOST_PROCESSES or not 0 <= since <= LATEST:
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
