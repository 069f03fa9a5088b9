"""Owner: a file that is loaded, executed, unpickled or believed is opened here, or in a folder that passed.

A file passes if it belongs to the user or to root, and no other user may write into it or into its folder, or
exchange a folder on the way there. It is judged by its descriptor, so what was judged is what is read. A file
that doesn't pass is left alone, and one warning says why and how to mend it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import tempfile
import warnings
from pathlib import Path
from typing import Any

FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""How a file is opened: a FIFO in its place doesn't block."""

UNFOLLOWED = FLAGS | getattr(os, "O_NOFOLLOW", 0)

LINKS = 40
"""The most symbolic links on the way to a file, as in Linux."""

_UNIX = hasattr(os, "geteuid")  # on other systems a user's folder is private
_warned: set[str] = set()


class StoreWarning(UserWarning):
    """A file couldn't be read or written; its content is determined again."""


class ForeignError(OSError):
    """Another user may have written a file, or is able to exchange it.

    Attributes
    ----------
    path : str
        The file or folder at fault.
    """

    def __init__(self, path: str | Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = str(path)


def warn(path: str, text: str) -> None:
    """Warn of a path, once a process.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     for _ in range(2):
    ...         warn("/nowhere", "/nowhere is foreign")
    >>> len(caught)
    1
    """
    if path not in _warned:
        _warned.add(path)
        warnings.warn(text, StoreWarning, stacklevel=4)


def made(folder: str | Path) -> Path:
    """Return a folder that passed, created with mode 0700 where it is missing.

    Raises
    ------
    ForeignError
        If others may write into it or exchange it.
    OSError
        If it can't be created.
    """
    missing, place = [], Path(folder).absolute()
    while not os.path.lexists(place):
        missing.append(place)
        place = place.parent
    if missing:
        _walked(place)
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
    require_folder(folder)
    return Path(folder)


def writable(folder: str | Path) -> bool:
    """Return whether the user may write into a folder."""
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def temporary() -> Path:
    """Return the folder of this process, which is removed when the process ends.

    Raises
    ------
    ForeignError
        If others may exchange it.
    """
    folder = Path(_temporary(os.getpid()).name)
    require_folder(folder)
    return folder


@functools.cache
def _temporary(_process: int) -> Any:
    return tempfile.TemporaryDirectory(prefix="nxcore-", ignore_cleanup_errors=True)


def require_folder(folder: str | Path) -> None:
    """Raise ``ForeignError`` unless a folder passes; ``FileNotFoundError`` where there is none.

    The way there is judged once a process, the folder itself each time.
    """
    place = Path(folder)
    _require(place, place.stat())
    if _UNIX:
        _passed(place if place.is_absolute() else place.absolute(), os.geteuid())


def opened(path: str | Path) -> int:
    """Return the descriptor of a regular file that passes, in a folder that passes.

    Raises
    ------
    ForeignError
        If it doesn't.
    OSError
        If it can't be opened, or is a symbolic link.
    """
    require_folder(Path(path).parent)
    return _judged(path, UNFOLLOWED)


def read_owned(path: str | Path, most: int) -> bytes:
    """Return what is in a file that passes, in a folder that passes.

    Raises
    ------
    OSError
        If it doesn't pass, can't be read, or has more than ``most`` bytes.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "file"
    >>> path.write_bytes(b"text")
    4
    >>> read_owned(path, 100)
    b'text'
    """
    return _whole(opened(path), path, most)


def given(path: str | Path, most: int) -> bytes:
    """Return what is in a file that the user names: links are followed, and its folder may be sticky.

    Raises
    ------
    ForeignError
        If it, or a folder or a link on the way there, doesn't pass.
    OSError
        If it can't be read, or has more than ``most`` bytes.
    """
    return _whole(_judged(_walked(path) if _UNIX else path, UNFOLLOWED), path, most)


def packaged(path: str | Path, most: int) -> bytes:
    """Return what is in a file of an installed package: its code runs, so its owner doesn't matter."""
    return _whole(_regular(path, os.open(path, FLAGS)), path, most)


def _judged(path: str | Path, flags: int) -> int:
    handle = _regular(path, os.open(path, flags))
    try:
        _require(path, os.fstat(handle))
    except OSError:
        os.close(handle)
        raise
    return handle


def _regular(path: str | Path, handle: int) -> int:
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise ForeignError(path, "is no regular file; remove it")


def _whole(handle: int, path: str | Path, most: int) -> bytes:
    with os.fdopen(handle, "rb", buffering=0) as file:
        if os.fstat(handle).st_size > most:
            raise OSError(f"{path} has more than {most} bytes")
        parts = [b""]
        while part := file.read(1 << 20):
            parts.append(part)
    return b"".join(parts)


def _require(path: str | Path, found: os.stat_result) -> None:
    """Raise unless the owner of a file or folder passes, and its mode."""
    if not _UNIX:
        return
    user, mode = os.geteuid(), stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, user):
        mend = f"remove it, or, if you trust what it holds: chown -R {user} {path}"
        raise ForeignError(path, f"belongs to user {found.st_uid}, not to {user} (mode {mode:o}); {mend}")
    _require_alone(path, found)


@functools.lru_cache(maxsize=4096)
def _passed(folder: Path, _user: int) -> str:
    return _walked(folder)


def _walked(path: str | Path) -> str:
    """Return a path without links, unless others may exchange a part of the way."""
    waiting = list(reversed(Path(path).absolute().parts[1:]))
    at, links = Path("/"), 0
    _require_way(at, at.lstat())
    while waiting:
        part = waiting.pop()
        place = at.parent if part == ".." else at / part
        found = place.lstat()
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > LINKS:
                raise ForeignError(path, "has too many symbolic links")
            _require_way(place, found)
            target = place.readlink()
            waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = Path("/") if target.is_absolute() else at
            continue
        if stat.S_ISDIR(found.st_mode):
            _require_way(place, found)
        at = place
    return str(at)


def _require_way(place: Path, found: os.stat_result) -> None:
    """Raise where others than the user and root may exchange what lies in a folder, or a link."""
    if found.st_uid not in (0, os.geteuid(), _unmapped()):
        _require(place, found)
    if stat.S_ISDIR(found.st_mode) and not found.st_mode & stat.S_ISVTX:
        _require_alone(place, found)


def _require_alone(path: str | Path, found: os.stat_result) -> None:
    """Raise where other users may write into a file or folder."""
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _private(found.st_gid)):
        how = f"mode {stat.S_IMODE(found.st_mode):o}, owner {found.st_uid}"
        raise ForeignError(path, f"can be written by other users ({how}); chmod go-w {path}")


@functools.cache
def _private(group: int) -> bool:
    """Return whether a group has the user alone: many systems give each user one, and let it write."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = group == user.pw_gid != 0 and found.gr_name == user.pw_name
    return own and not {*found.gr_mem} - {user.pw_name}


@functools.cache
def _unmapped() -> int:
    """Return the user of the host root's folders, in a container that doesn't know that user; else 0."""
    with contextlib.suppress(OSError, ValueError):
        first = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        if first != ["0", "0", "4294967295"]:
            return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    return 0
