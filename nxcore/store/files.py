"""JSON documents on disk: one a file, written whole and renamed, so that processes need no locks.

What can't be read is a miss and one warning; a folder that can't be written, or that isn't this user's alone,
is replaced by memory and one warning. Nothing here is ever unpickled or evaluated.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nxcore.settings import cache_folder

VERSION = "v1"
LIMIT = 1 << 20
"""Bytes a document may have."""

USUAL = 1 << 15
"""Bytes that most have: room for more is dearer to find than to fill."""

KEPT = 4096
"""Documents of a kind that are kept in memory where there is no folder; then the oldest goes."""

Document = dict[str, Any]

_SORTED = json.JSONEncoder(sort_keys=True)


class StoreWarning(UserWarning):
    """Something on disk couldn't be read or written; what it would have told is asked anew."""


class Store:
    """Documents by kind and key.

    Parameters
    ----------
    folder : Path, optional
        Where they lie; in memory alone where None.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder / VERSION if folder else None
        self._memory: dict[str, dict[str, tuple[Document, Document]]] = defaultdict(dict)
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        if folder and (why := _unsafe(folder)):
            self._forsake(why)

    def read(self, kind: str, key: Mapping[str, Any]) -> Document | None:
        """Return the document under ``key``, None if there is none that can be read."""
        text = _text(key)
        name = _name(text)
        if self.folder is None:
            found = self._memory[kind].get(name)
            return found[1] if found else None
        loaded = self._load(f"{self.folder}/{kind}/{name}.json")  # a miss waits for it: no Path is made
        return loaded[1] if loaded and (loaded[0] == key or _text(loaded[0]) == text) else None

    def write(self, kind: str, key: Mapping[str, Any], value: Mapping[str, Any]) -> None:
        """Keep ``value`` under ``key``, in place of what was there."""
        name, document = _name(_text(key)), {"key": _plain(key), "value": _plain(value)}
        if self.folder is not None:
            try:
                _replace(self.folder / kind, f"{name}.json", json.dumps(document))
            except OSError as error:
                self._forsake(f"can't write to {self.folder}: {error}")
            else:
                return
        with self._lock:
            kept = self._memory[kind]
            kept[name] = document["key"], document["value"]
            if len(kept) > KEPT:
                del kept[next(iter(kept))]

    def remove(self, kind: str, key: Mapping[str, Any]) -> None:
        """Forget what is under ``key``, if anything is."""
        name = _name(_text(key))
        self._memory[kind].pop(name, None)
        if self.folder is not None:
            try:
                (self.folder / kind / f"{name}.json").unlink(missing_ok=True)
            except OSError as error:
                self._forsake(f"can't write to {self.folder}: {error}")

    def items(self, kind: str) -> Iterator[tuple[Document, Document]]:
        """Yield key and document of all of a kind, in order of their files' names."""
        if self.folder is None:
            yield from [found for _, found in sorted(self._memory[kind].items())]
            return
        for path in sorted((self.folder / kind).glob("*.json")):
            if loaded := self._load(path):
                yield loaded

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
            self._warn(f"{path} is left out: {type(error).__name__}: {error}")
            return None
        return key, value

    def _forsake(self, why: str) -> None:
        self.folder = None
        self._warn(f"{why}; what is learnt is kept in memory, for this process. NXCORE_CACHE names another")

    def _warn(self, text: str) -> None:
        with self._lock:
            first = text not in self._warned
            self._warned.add(text)
        if first:
            warnings.warn(text, StoreWarning, stacklevel=4)


def toolkit_folder(toolkit: str) -> Path | None:
    """Return the folder in which a toolkit keeps what it compiled, made with mode 0700 if it is missing.

    Toolkits load code from there, so None where the cache is kept in memory alone, or where another user may
    write into it.
    """
    root = cache_folder()
    if root is None or _unsafe(root) or _unsafe(root / toolkit):
        return None
    return root / toolkit


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON would give it back."""
    return json.loads(json.dumps(value))


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
    """Make the folder; return why it can't be trusted or written, empty if it can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return f"can't write to {folder}: {error}"
    if hasattr(os, "getuid"):  # elsewhere a folder of the user's is the user's alone
        if found.st_uid != os.getuid():
            return f"{folder} belongs to user {found.st_uid}, not to {os.getuid()}"
        if found.st_mode & 0o022:
            return f"{folder} can be written by others (mode {found.st_mode & 0o777:o}, expected 700)"
    return "" if os.access(folder, os.W_OK) else f"can't write to {folder}: it is read-only"
