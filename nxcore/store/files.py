"""JSON documents on disk: one per file, written completely and then renamed, so that processes need no locks.

A document that can't be read is skipped with one warning. A folder that can't be written, or that other users
may write into, is replaced by memory with one warning. Nothing is ever unpickled or evaluated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nxcore.settings import cache_folder
from nxcore.store.encoding import encoded

VERSION = "v1"
LIMIT = 1 << 20
"""The most bytes of a document."""

USUAL = 1 << 15
"""The buffer size for reading, in bytes: most documents are smaller."""

MISSING_S = 1.0
"""Seconds for which a missing folder counts as such: a new process reads hundreds of documents."""

BEGINNING = '{"key": '
"""The beginning of a file."""

KEPT = 4096
"""The most documents of a kind in memory without a folder; beyond it the oldest is dropped."""

Document = dict[str, Any]

_SORTED = json.JSONEncoder(sort_keys=True)


class StoreWarning(UserWarning):
    """A file couldn't be read or written; its content is determined again."""


class Store:
    """Documents, by kind and key.

    Parameters
    ----------
    folder : Path, optional
        The folder of the files; None keeps them in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder / VERSION if folder else None
        self._memory: dict[str, dict[str, tuple[Document, Document]]] = defaultdict(dict)
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._missing: dict[str, float] = {}
        self._later: frozenset[str] = frozenset()
        self._waiting: dict[tuple[str, str], str] = {}  # kind and file's name -> text
        if folder and (why := _unsafe(folder)):
            self._forsake(why)

    def read(self, kind: str, key: Mapping[str, Any]) -> Document | None:
        """Return the document under ``key``, or None if there is none or it can't be read."""
        text = _text(key)
        name = _name(text)
        if self.folder is None:
            found = self._memory[kind].get(name)
            return found[1] if found else None
        if (waiting := self._waiting.get((kind, f"{name}.json"))) is not None:
            found_waiting: Document = json.loads(waiting)["value"]
            return found_waiting
        if time.monotonic() - self._missing.get(kind, -MISSING_S) < MISSING_S:
            return None
        loaded = self._load(f"{self.folder}/{kind}/{name}.json")  # read in a miss: a Path would be slower
        if loaded is None and not (self.folder / kind).is_dir():
            self._missing[kind] = time.monotonic()
        return loaded[1] if loaded and (loaded[0] == key or _text(loaded[0]) == text) else None

    def refresh(self) -> None:
        """Look for folders that were missing: another process has written documents."""
        self._missing.clear()

    def write(self, kind: str, key: Mapping[str, Any], value: Mapping[str, Any]) -> None:
        """Store ``value`` under ``key``, in place of an earlier one."""
        name, text = f"{_name(_text(key))}.json", encoded({"key": key, "value": value})
        with self._lock:  # the thread of ``later`` mustn't end between the question and the answer
            waits = self.folder is not None and (kind in self._later or (kind, name) in self._waiting)
            if waits:
                self._waiting[kind, name] = text
        if not waits:
            self._write(kind, name, text)

    @contextlib.contextmanager
    def later(self, *kinds: str) -> Iterator[None]:
        """Write documents of these kinds after the block, in a thread; until then, ``read`` alone finds them.

        To make a file takes the host up to a millisecond, and a network's first kernels have hundreds.
        """
        before, self._later = self._later, self._later | set(kinds)
        try:
            yield
        finally:
            self._later = before
            thread = threading.Thread(target=self._write_waiting, name="nxcore store")
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._write_waiting()

    def _write_waiting(self) -> None:
        while found := list(self._waiting.items()):
            for place, text in found:
                self._write(*place, text)
                with self._lock:
                    if self._waiting.get(place) is text:
                        del self._waiting[place]

    def _write(self, kind: str, name: str, text: str) -> None:
        if self.folder is not None:
            try:
                _replace(self.folder / kind, name, text)
            except OSError as error:
                self._forsake(f"can't write to {self.folder}: {error}")
            else:
                self._missing.pop(kind, None)
                return
        document = json.loads(text)
        with self._lock:
            kept = self._memory[kind]
            kept[name.removesuffix(".json")] = document["key"], document["value"]
            if len(kept) > KEPT:
                del kept[next(iter(kept))]

    def remove(self, kind: str, key: Mapping[str, Any]) -> None:
        """Remove the document under ``key``, if there is one."""
        name = _name(_text(key))
        self._memory[kind].pop(name, None)
        self._waiting.pop((kind, f"{name}.json"), None)
        if self.folder is not None:
            try:
                (self.folder / kind / f"{name}.json").unlink(missing_ok=True)
            except OSError as error:
                self._forsake(f"can't write to {self.folder}: {error}")

    def items(self, kind: str) -> Iterator[tuple[Document, Document]]:
        """Yield key and document of every document of a kind, in order of file names."""
        if self.folder is None:
            yield from [found for _, found in sorted(self._memory[kind].items())]
            return
        for path in sorted((self.folder / kind).glob("*.json")):
            if loaded := self._load(path):
                yield loaded

    def keys(self, kind: str) -> Iterator[Document]:
        """Yield the key of every document of a kind; the values aren't parsed."""
        if self.folder is None:
            yield from [key for key, _ in list(self._memory[kind].values())]
            return
        for path in (self.folder / kind).glob("*.json"):
            if (found := _key_of(path)) is not None:
                yield found

    def _load(self, path: str | Path) -> tuple[Document, Document] | None:
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123  see read
                text = file.read(USUAL)
                if len(text) == USUAL:
                    text += file.read(LIMIT + 1 - USUAL)
            if len(text) > LIMIT:
                raise ValueError(f"has more than {LIMIT} bytes")
            found = json.loads(text.decode())
            if not isinstance(found, dict):
                raise TypeError(f"holds {type(found).__name__}, not an object")
            key, value = found.get("key"), found.get("value")
            if not isinstance(key, dict) or not isinstance(value, dict):
                raise TypeError("has no key and value")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            self._warn(f"{path} is ignored: {type(error).__name__}: {error}")
            return None
        return key, value

    def _forsake(self, why: str) -> None:
        self.folder = None
        self._warn(f"{why}; measurements stay in memory. Set NXCORE_CACHE to another folder")

    def _warn(self, text: str) -> None:
        with self._lock:
            first = text not in self._warned
            self._warned.add(text)
        if first:
            warnings.warn(text, StoreWarning, stacklevel=4)


def toolkit_folder(toolkit: str) -> Path | None:
    """Return the folder for a toolkit's compiled code, created with mode 0700 if it is missing.

    Toolkits load code from there, so it is None where the cache is kept in memory, or where another user may
    write into it.

    >>> folder = toolkit_folder("mine")
    >>> folder is None or folder.name == "mine"
    True
    """
    root = cache_folder()
    if root is None or _unsafe(root) or _unsafe(root / toolkit):
        return None
    return root / toolkit


def _key_of(path: Path) -> Document | None:
    """Return the key at the beginning of a file as ``write`` leaves it; None for another file."""
    try:
        with path.open("rb", buffering=0) as file:
            text = file.read(USUAL).decode(errors="replace")
        found = json.JSONDecoder().raw_decode(text.removeprefix(BEGINNING))[0]
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(key: Mapping[str, Any]) -> str:
    return _SORTED.encode(key)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _replace(folder: Path, name: str, text: str) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(folder / name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _unsafe(folder: Path) -> str:
    """Create the folder; return why it can't be trusted or written, empty if it can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return f"can't write to {folder}: {error}"
    if hasattr(os, "getuid"):  # on other systems a user's folder is private
        if found.st_uid != os.getuid():
            return f"{folder} belongs to user {found.st_uid}, not to {os.getuid()}"
        if found.st_mode & 0o022:
            return f"{folder} can be written by other users (mode {found.st_mode & 0o777:o}, expected 700)"
    return "" if os.access(folder, os.W_OK) else f"can't write to {folder}: it is read-only"
