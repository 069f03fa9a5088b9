"""Files and folders that a command writes: checked before anything is measured, so that no result is lost."""

from __future__ import annotations

import os
from pathlib import Path

from nxcore.errors import InvalidInputError


def file(path: Path, option: str) -> Path:
    """Return a file's path, whose folder exists then.

    Raises
    ------
    InvalidInputError
        If it can't be written; the message names the option.
    """
    why = "it is a folder" if path.is_dir() else _unwritable(path.parent)
    if not why and path.exists() and not os.access(path, os.W_OK):
        why = "no permission to write it"
    if why:
        raise InvalidInputError(
            f"{option} must be a file that can be written, got {path}: {why}", argument=option
        )
    return path


def folder(path: Path, option: str) -> Path:
    """Return a folder's path, which exists then.

    Raises
    ------
    InvalidInputError
        If nothing can be written there; the message names the option.
    """
    if why := _unwritable(path):
        raise InvalidInputError(f"{option} must be a folder to write to, got {path}: {why}", argument=option)
    return path


def _unwritable(path: Path) -> str:
    """Make a folder with its parents; return why nothing can be written there, or nothing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{error.filename}: {error.strerror}" if error.filename != str(path) else str(error.strerror)
    return "" if os.access(path, os.W_OK | os.X_OK) else "no permission to write there"
