"""Compiled files: each with the digest of what it holds, which is checked before it is loaded.

A document with the digest has the name that a file is kept under, and the file has the digest in its name. So
of two processes that compile the same, each writes whole files, and the last document counts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from nxcore.store import owner
from nxcore.store.encoding import decoded, encoded
from nxcore.store.files import replace_file
from nxcore.store.owner import ForeignError

MOST = 1 << 30
"""The most bytes of a compiled file."""

SEAL = 4096
"""The most bytes of the document beside it."""

LETTERS = 16
"""The letters of the digest in a file's name."""


def compiled_folder(folder: Path) -> Path:
    """Return a folder for compiled code, created with mode 0700: ``folder``, or one of this process.

    The latter where another user may write into ``folder``, or where it is read-only; one warning says so.

    >>> import tempfile
    >>> from pathlib import Path
    >>> root = Path(tempfile.mkdtemp())
    >>> compiled_folder(root / "mine").relative_to(root)
    PosixPath('mine')
    """
    try:
        return owner.made(folder)
    except ForeignError as foreign:
        owner.warn(foreign.path, f"{foreign}; compiled code is kept for this process alone")
    except OSError as error:
        owner.warn(str(folder), f"can't write to {folder}: {error}; compiled code is kept for this process")
    return owner.temporary()


def compiled_file(path: Path) -> Path | None:
    """Return the file that is kept under a name, to be loaded now.

    None if there is none, if another user may have written it, or if it doesn't hold what was kept.

    >>> import tempfile
    >>> from pathlib import Path
    >>> compiled_file(Path(tempfile.mkdtemp()) / "kernel.so") is None
    True
    """
    try:
        seal = decoded(owner.read_owned(_seal(path), SEAL).decode())
        digest = str(seal["sha256"])
        found = _named(path, digest)
        if hashlib.sha256(owner.read_owned(found, MOST)).hexdigest() == digest:
            return found
        owner.warn(str(found), f"{found} doesn't hold what was kept; it is ignored")
    except FileNotFoundError:
        return None
    except ForeignError as foreign:
        owner.warn(foreign.path, f"{foreign}; it is ignored")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        owner.warn(str(path), f"{path} is ignored: {type(error).__name__}: {error}")
    return None


def keep_compiled(path: Path, content: bytes) -> Path:
    """Keep ``content`` under a name; return the file, which is complete when other processes see it.

    Where it can't be kept it is a file of this process, and one warning says so.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "kernel.so"
    >>> keep_compiled(path, b"code") == compiled_file(path)
    True
    """
    digest = hashlib.sha256(content).hexdigest()
    try:
        owner.made(path.parent)
        replace_file(_named(path, digest), content)
        replace_file(_seal(path), encoded({"sha256": digest}).encode())
    except OSError as error:
        text = str(error) if isinstance(error, ForeignError) else f"can't write to {path.parent}: {error}"
        owner.warn(getattr(error, "path", str(path.parent)), f"{text}; compiled code isn't kept")
        path = owner.temporary() / path.name
        replace_file(_named(path, digest), content)
    return _named(path, digest)


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _named(path: Path, digest: str) -> Path:
    if not digest.isalnum():
        raise ValueError("the digest must be hexadecimal")
    return path.with_name(f"{path.stem}-{digest[:LETTERS]}{path.suffix}")
