"""Numba's cache in nxcore's folder: what is unpickled, this user has written."""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

from nxcore.plugin import compiled_file, compiled_folder, keep_compiled, read_owned, toolkit_folder

FOLDER = compiled_folder(Path(numba.config.CACHE_DIR)) if numba.config.CACHE_DIR else toolkit_folder("numba")
"""Where compiled kernels are kept; None for nowhere."""

LIMIT = 1 << 28
"""The most bytes of an index of Numba's."""

_log = logging.getLogger("nxcore.numba")


_Base: Any = getattr(caching, "UserProvidedCacheLocator", None) or caching._UserProvidedCacheLocator  # noqa: SLF001  Numba before 0.62


class _Locator(_Base):  # type: ignore[misc]  # Numba is untyped, as below
    """Finds a function's files in nxcore's folder, so that uninstalling leaves none in ``site-packages``."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)
        self._cache_path = str(compiled_folder(FOLDER / self.get_suitable_cache_subpath(py_file)))

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        return cls(py_func, py_file)


class _Files(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class _Owned(caching.IndexDataCacheFile):  # type: ignore[misc]
    """Unpickles what the user alone may have written, and of machine code what was kept."""

    def _load_index(self) -> Any:
        try:
            file = io.BytesIO(read_owned(self._index_path, LIMIT))
            # Another version's index isn't unpickled further.
            if pickle.load(file) == self._version:  # noqa: S301  written by this user
                stamp, overloads = pickle.load(file)  # noqa: S301  see above
                return dict(overloads) if stamp == self._source_stamp else {}
        except FileNotFoundError:
            pass
        except Exception as error:  # noqa: BLE001  a broken pickle raises anything
            _log.warning("%s is ignored: %s: %s", self._index_path, type(error).__name__, error)
        return {}

    def _load_data(self, name: str) -> Any:
        found = compiled_file(Path(self._data_path(name)))
        if found is None:
            raise FileNotFoundError(name)
        return pickle.loads(found.read_bytes())  # noqa: S301  see above

    def _save_data(self, name: str, data: Any) -> None:
        keep_compiled(Path(self._data_path(name)), self._dump(data))


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _Files

    def __init__(self, py_func: Any) -> None:
        super().__init__(py_func)
        of = self._impl
        self._cache_file = _Owned(self._cache_path, of.filename_base, of.locator.get_source_stamp())

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return a compiled function of the cache; None where there is none, or it can't be used."""
        try:
            return super()._load_overload(sig, target_context)
        except Exception as error:  # noqa: BLE001  a broken pickle raises anything
            _log.warning("numba: %s of the cache is ignored: %s: %s", sig, type(error).__name__, error)
            return None

    def _save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function, unless the disk is full or can't be written."""
        try:
            super()._save_overload(sig, data)
        except OSError as error:  # the function is compiled all the same
            _log.warning("numba: %s isn't kept: %s", sig, error)


def kept(compiled: Any, function: Callable[..., Any]) -> Any:
    """Return a function of Numba's that keeps its machine code, and finds that of other processes."""
    if FOLDER is not None:
        with contextlib.suppress(OSError, RuntimeError):  # it can't be written any more
            compiled._cache = _Cache(function)  # noqa: SLF001  Numba has no public way to name a folder for it
    return compiled
