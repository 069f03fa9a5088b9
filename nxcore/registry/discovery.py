"""Entry points -> Registry. One broken plugin never breaks the others.

pluggy's own loader stops at the first plugin that fails to import, keeps a plugin that failed validation, and
drops a second entry point of the same name silently. So each plugin is loaded in its own try block, staged,
and removed again if anything about it is wrong. Only its operators stay: they run on torch, and another
plugin may have kernels for them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

import nxcore.ops
from nxcore.errors import PluginError, nearest
from nxcore.registry import hookspecs, inductor, made, reference
from nxcore.registry.registry import BackendStatus, Registry, Source
from nxcore.registry.waiting import waiting
from nxcore.settings import Settings
from nxcore.spec.device import torch_note
from nxcore.spec.exits import RAISED, blamed
from nxcore.spec.kernel import Check
from nxcore.spec.origin import FOLDERS, installing

GROUP = "nxcore"
CORE = Source("core", "nxcore-kernels")


class _Core:
    """The core's own plugin; the package itself would return something for any hook name."""

    nxcore_ops = staticmethod(nxcore.ops.nxcore_ops)


class PluginWarning(UserWarning):
    """A plugin was not loaded; the message names its distribution, its version and the fix."""


class TorchWarning(UserWarning):
    """The installed torch is newer than all versions that this nxcore was tested with."""


def installed(settings: Settings) -> Registry:
    """Return what ``discover`` finds under these settings."""
    find = functools.partial(
        discover, allow=settings.backends, disable=settings.disable, strict=settings.strict
    )
    try:
        return find()
    except RecursionError:  # the caller is deep in one, and a thread begins anew
        with ThreadPoolExecutor(1, "nxcore plugins") as pool:
            return pool.submit(find).result()


def discover(
    *,
    allow: frozenset[str] | None = None,
    disable: frozenset[str] = frozenset(),
    strict: bool = False,
    found: Iterable[EntryPoint] | None = None,
) -> Registry:
    """Load every plugin and return the registry.

    Parameters
    ----------
    allow : frozenset of str, optional
        The only entry points to import; None imports all.
    disable : frozenset of str
        Entry points not to import.
    strict : bool
        Raise at the first broken plugin instead of warning.
    found : iterable of EntryPoint, optional
        Replaces the installed entry points.

    Returns
    -------
    Registry
        The core's operators and torch's backend, then what each plugin adds, in order of name.

    Raises
    ------
    PluginError
        If ``strict`` and a plugin is broken.

    Warns
    -----
    PluginWarning
        For each plugin that isn't loaded.
    TorchWarning
        If torch is newer than all tested versions.
    """
    if note := torch_note():
        warnings.warn(note, TorchWarning, stacklevel=2)
    registry, manager = Registry(), pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(_Core, name=CORE.plugin)
    registry.add_ops(nxcore.ops.nxcore_ops(), CORE)
    staged: list[tuple[Source, Any]] = []
    for entry, source, first in _named(found if found is not None else entry_points(group=GROUP)):
        if first is not None:
            _refuse_duplicate(registry, source, first, strict=strict)
        elif entry.name in disable or (allow is not None and entry.name not in allow):
            by = "NXCORE_DISABLE" if entry.name in disable else "NXCORE_BACKENDS"
            registry.refused.append(
                BackendStatus(entry.name, "disabled", f"disabled by {by}", f"unset {by}", source)
            )
        else:
            with _refused_if_broken(registry, manager, source, strict=strict):
                staged.append(_stage(manager, entry, source))
    _warn_of_strangers((allow or frozenset()) | disable, {s.source.plugin for s in registry.refused}, staged)
    # Operators of all plugins first: a backend may have kernels for another plugin's operator.
    with_ops: list[tuple[Source, Any]] = []
    for source, module in staged:
        with _refused_if_broken(registry, manager, source, strict=strict):
            registry.add_ops(_call(manager, module, "nxcore_ops", source) or (), source)
            with_ops.append((source, module))
    made.add_activations(registry, CORE)
    registry.add_backend(reference.backend(registry.ops.values()), CORE)
    registry.add_backend(inductor.backend(registry.ops.values()), CORE)
    for source, module in with_ops:
        with _refused_if_broken(registry, manager, source, strict=strict):
            checks = _checked(_call(manager, module, "nxcore_doctor", source))
            backend = _call(manager, module, "nxcore_backend", source)
            if backend is not None:
                registry.add_backend(backend, source)
            registry.checks.extend(checks)
    return registry


def _named(found: Iterable[EntryPoint]) -> Iterator[tuple[EntryPoint, Source, Source | None]]:
    """Yield entry points in order of name; a second one of the same name with the first's source."""
    first: dict[str, Source] = {}
    for entry in sorted(found, key=lambda e: (e.name, e.value)):
        source = Source(entry.name, _distribution(entry))
        if first.get(entry.name) == source:
            continue  # the same distribution twice on sys.path is no conflict
        yield entry, source, first.get(entry.name)
        first.setdefault(entry.name, source)


def _refuse_duplicate(registry: Registry, source: Source, first: Source, *, strict: bool) -> None:
    """Keep and report why the second of two plugins with one name isn't loaded."""
    reason = f"plugin {source.plugin!r} comes from {source.distribution} and from {first.distribution}"
    fix = f"pip uninstall {source.distribution.split(' ')[0]}"
    message = f"{reason}; the former is not loaded. To fix it: {fix}, or the other"
    if strict:
        raise PluginError(message, plugin=source.plugin, distribution=source.distribution)
    registry.refused.append(BackendStatus(source.plugin, "failed", reason, fix, source))
    _warn(message)


def _warn_of_strangers(named: frozenset[str], refused: set[str], staged: list[tuple[Source, Any]]) -> None:
    """Warn of unknown names in NXCORE_BACKENDS or NXCORE_DISABLE: a misspelt plugin would stay loaded."""
    known = refused | {source.plugin for source, _ in staged}
    for name in sorted(named - known):
        hint = nearest(name, known)
        _warn(f"NXCORE_BACKENDS or NXCORE_DISABLE names {name!r}, but there is no plugin of that name{hint}")


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"


def _stage(manager: pluggy.PluginManager, entry: EntryPoint, source: Source) -> tuple[Source, Any]:
    """Import a plugin and let pluggy validate it."""
    with waiting(source, "the import"):
        module = entry.load()
    manager.register(module, name=entry.name)
    manager.check_pending()  # otherwise a misspelt hook is ignored
    return Source(source.plugin, source.distribution, getattr(module, "__file__", None) or ""), module


def _call(manager: pluggy.PluginManager, module: Any, hook: str, source: Source) -> Any:
    """Call one hook of one plugin: a hook that raises must not stop the others."""
    others = [p for p in manager.get_plugins() if p is not module]
    with waiting(source, hook):
        results = manager.subset_hook_caller(hook, others)()
    return results[0] if results else None


def _checked(checks: Any) -> list[Check]:
    for check in (found := list(checks or ())):
        if not isinstance(check, Check):
            raise PluginError(f"nxcore_doctor must yield Check, got {type(check).__name__}")
    return found


@contextlib.contextmanager
def _refused_if_broken(
    registry: Registry, manager: pluggy.PluginManager, source: Source, *, strict: bool
) -> Iterator[None]:
    """Refuse the plugin if its code raises within."""
    try:
        yield
    except RAISED as raised:
        error = blamed(raised)
        if isinstance(error, RecursionError) and _deep():
            raise
        _refuse(registry, manager, source, error, strict=strict)


def _deep() -> bool:
    """Return whether the calls of the program, not those of a plugin, have filled the stack."""
    return sum(1 for _ in traceback.walk_stack(None)) > sys.getrecursionlimit() // 2


def _refuse(
    registry: Registry, manager: pluggy.PluginManager, source: Source, error: Exception, *, strict: bool
) -> None:
    """Remove a plugin again, keep the reason, and warn once."""
    if manager.has_plugin(source.plugin):
        manager.unregister(name=source.plugin)
    what = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
    dist = source.distribution.split(" ")[0]
    newer = installing(dist) if dist in FOLDERS else f"pip install --upgrade {dist}"
    fix = f"{newer}, or disable it: NXCORE_DISABLE={source.plugin}"
    message = f"plugin {source} is not loaded: {what}. To fix it: {fix}"
    if strict:
        raise PluginError(message, plugin=source.plugin, distribution=source.distribution) from error
    reason = what if isinstance(error, PluginError) else "".join(traceback.format_exception(error)).strip()
    registry.refused.append(BackendStatus(source.plugin, "failed", reason, fix, source))
    _warn(message)


def _warn(message: str) -> None:
    warnings.warn(message, PluginWarning, stacklevel=2)
