"""JSON documents on disk: one per file, written completely and then renamed, so that processes need no locks.

A document that can't be read, or that another user may have written, is skipped with one warning. A folder
that other users may write into is replaced by memory with one warning; of a folder that can't be written,
documents are read, and new ones are kept in memory. Nothing is ever unpickled or evaluated.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nxcore.settings import cache_folder
from nxcore.store import owner
from nxcore.store.encoding import DECODER, decoded, encoded
from nxcore.store.owner import ForeignError, StoreWarning

VERSION = "v1"
LIMIT = 1 << 20
"""The most bytes of a document."""

USUAL = 1 << 15
"""The bytes that hold the key of any document."""

MISSING_S = 1.0
"""Seconds for which a missing folder counts as such: a new process reads hundreds of documents."""

BEGINNING = '{"key": '
"""The beginning of a file."""

KEPT = 4096
"""The most documents of a kind in memory without a folder; beyond it the oldest is dropped."""

IN_MEMORY = "measurements stay in memory. Set NXCORE_CACHE to another folder"

Document = dict[str, Any]

_SORTED = json.JSONEncoder(sort_keys=True)


class Store:
    """Documents, by kind and key.

    Parameters
    ----------
    folder : Path, optional
        The folder of the files; None keeps them in memory.
    clock : callable
        Returns seconds.
    """

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder / VERSION if folder else None
        self._memory: dict[str, dict[str, tuple[Document, Document]]] = defaultdict(dict)
        self._removed: set[tuple[str, str]] = set()  # from a folder that can't be written
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._missing, self._clock = dict[str, float](), clock
        self._later: frozenset[str] = frozenset()
        self._waiting: dict[tuple[str, str], str] = {}  # kind and file's name -> text
        self._writes = True
        if self.folder is not None and folder is not None:
            self._open(folder, self.folder)

    def _open(self, *folders: Path) -> None:
        """Take the folders for the store's own, unless another user may write into them."""
        try:
            for folder in folders:
                owner.made(folder)
        except ForeignError as foreign:
            self.folder = None
            owner.warn(foreign.path, f"{foreign}; {IN_MEMORY}")
        except OSError as error:
            if folders[-1].is_dir() and not _foreign(folders[-1]):
                self._keep_in_memory(error)
                return
            self.folder = None
            self._warn(f"can't write to {folders[0]}: {error}; {IN_MEMORY}")
        else:
            if not owner.writable(folders[-1]):
                self._keep_in_memory("it is read-only")

    def read(self, kind: str, key: Mapping[str, Any]) -> Document | None:
        """Return the document under ``key``, or None if there is none or it can't be read."""
        text = _text(key)
        name = _name(text)
        if self._memory and (found := self._memory[kind].get(name)):
            return found[1]
        if self.folder is None or (self._removed and (kind, name) in self._removed):
            return None
        if (waiting := self._waiting.get((kind, f"{name}.json"))) is not None:
            found_waiting: Document = json.loads(waiting)["value"]
            return found_waiting
        if self._clock() - self._missing.get(kind, -MISSING_S) < MISSING_S:
            return None
        loaded = self._load(f"{self.folder}/{kind}/{name}.json")  # read in a miss: a Path would be slower
        if loaded is None and not (self.folder / kind).is_dir():
            self._missing[kind] = self._clock()
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
        if self.folder is not None and self._writes:
            try:
                owner.made(self.folder / kind)
                replace_file(self.folder / kind / name, text.encode())
            except OSError as error:
                self._keep_in_memory(error)
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
                if self._writes:
                    (self.folder / kind / f"{name}.json").unlink(missing_ok=True)
            except OSError as error:
                self._keep_in_memory(error)
            if not self._writes:
                self._removed.add((kind, name))

    def items(self, kind: str) -> Iterator[tuple[Document, Document]]:
        """Yield key and document of every document of a kind, in order of file names."""
        kept = dict(self._memory[kind])
        for path in self._paths(kind):
            if path.stem not in kept and (loaded := self._load(path)):
                kept[path.stem] = loaded
        yield from (found for _, found in sorted(kept.items()))

    def keys(self, kind: str) -> Iterator[Document]:
        """Yield the key of every document of a kind; the values aren't parsed."""
        kept = dict(self._memory[kind])
        yield from (key for key, _ in kept.values())
        for path in self._paths(kind):
            if path.stem not in kept and (found := _key_of(path)) is not None:
                yield found

    def _paths(self, kind: str) -> list[Path]:
        if self.folder is None:
            return []
        found = sorted((self.folder / kind).glob("*.json"))
        return [path for path in found if (kind, path.stem) not in self._removed] if self._removed else found

    def _load(self, path: str | Path) -> tuple[Document, Document] | None:
        try:
            found = decoded(owner.read_owned(path, LIMIT).decode())
            if not isinstance(found, dict):
                raise TypeError(f"holds {type(found).__name__}, not an object")
            key, value = found.get("key"), found.get("value")
            if not isinstance(key, dict) or not isinstance(value, dict):
                raise TypeError("has no key and value")
        except FileNotFoundError:
            return None
        except ForeignError as foreign:
            owner.warn(foreign.path, f"{foreign}; it is ignored")
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            self._warn(f"{path} is ignored: {type(error).__name__}: {error}")
            return None
        return key, value

    def _keep_in_memory(self, why: object) -> None:
        self._writes = False
        if isinstance(why, ForeignError):
            owner.warn(why.path, f"{why}; {IN_MEMORY}")
        else:
            self._warn(f"can't write to {self.folder}: {why}; {IN_MEMORY}")

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
    if root is None:
        return None
    try:
        for folder in (root, root / toolkit):
            owner.made(folder)
    except ForeignError as foreign:
        owner.warn(foreign.path, f"{foreign}; compiled code isn't kept")
        return None
    except OSError:
        return None  # the store says so
    return root / toolkit if owner.writable(root / toolkit) else None


def _key_of(path: Path) -> Document | None:
    """Return the key at the beginning of a file as ``write`` leaves it; None for another file."""
    try:
        with os.fdopen(owner.opened(path), "rb", buffering=0) as file:
            text = file.read(USUAL).decode(errors="replace")
        found = DECODER.raw_decode(text.removeprefix(BEGINNING))[0]
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(key: Mapping[str, Any]) -> str:
    return _SORTED.encode(key)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def replace_file(path: Path, content: bytes) -> None:
    """Write a file: another process sees all of it, or what was there before."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _foreign(folder: Path) -> bool:
    try:
        owner.require_folder(folder)
    except OSError:
        return True
    return False
