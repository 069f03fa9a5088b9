"""Closures: the source that a function reaches by names, as one digest that formatting doesn't change.

Modules are parsed, never imported. A definition counts by its syntax; see ``syntax``. It leads to the
definitions whose names it uses, and to the files of device code that its strings name. A digest holds no
address of a module that it follows: a definition may move.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nxcore.trust.device_code import SUFFIXES, includes, normalised
from nxcore.trust.syntax import IMPORTS, Spelt, bound, imported, is_text

EFFECTS = ""
"""The name of what a module does beside binding names; all of its definitions lead there."""


Place = tuple[str, str]
"""Where a definition is: a module's address and a name, or a folder and a file's name."""


@dataclass
class Module:
    """A module's statements, by the names that they bind.

    ``package`` is that which relative imports begin at. Files of device code may lie beside its file,
    ``path``. ``imports`` are name -> module and attribute that an import binds it to; no attribute for a
    module.
    """

    name: str
    path: Path
    package: str
    names: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Definition:
    """A name's binding in a module, or a file of device code.

    ``text`` is the digest of its own text. It ``uses`` names, each with the place of the definition, or with
    an address that isn't followed; ``files`` are those in which it and these names were found.
    """

    text: str
    uses: tuple[tuple[str, Place | str], ...] = ()
    files: frozenset[Path] = frozenset()


@dataclass(frozen=True)
class Closure:
    """All that some targets reach: a ``digest`` of it, empty where a target's module has no source.

    ``places`` are where the definitions are, and ``files`` those that were read for it.
    """

    digest: str
    places: frozenset[Place]
    files: frozenset[Path]


def digest(parts: Iterable[str]) -> str:
    """Return one digest of several texts.

    >>> digest(["ab", "c"]) == digest(["a", "bc"])
    False
    """
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class Sources:
    """The sources of packages.

    Parameters
    ----------
    roots : Mapping, optional
        Top-level package -> its folder. The import system finds the others.
    followed : callable
        ``followed() -> packages``: those into which names are followed from another package.
    """

    def __init__(
        self,
        roots: Mapping[str, Path] | None = None,
        followed: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._roots, self._followed = dict(roots or {}), followed
        self._modules: dict[str, Module | None] = {}
        self._definitions: dict[tuple[Place, frozenset[str] | None], Definition] = {}
        self._read: set[Path] = set()
        self._lock = threading.Lock()
        self._files: dict[Path, dict[str, str]] = {}

    def root(self, package: str) -> Path | None:
        """Return the folder, or the file, of a top-level package."""
        return self._path(package)

    def closure(
        self, targets: Iterable[str], *, halts: tuple[str, ...] = (), apart: frozenset[str] = frozenset()
    ) -> Closure:
        """Return the closure of targets.

        Parameters
        ----------
        targets : iterable of str
            ``"module:attribute"``; of what is nested, the definition around it counts. A file of device code
            is ``"module:file.cu"``, and counts where it lies beside the module.
        halts : tuple of str
            Modules and packages whose definitions count by their names, unless they are targets.
        apart : frozenset of str
            The arguments of a spec that don't count.
        """
        with self._lock:
            places = [place for target in targets for place in self._targets(target)]
            if None in places:
                return Closure("", frozenset(), frozenset())
            return self._walked([place for place in places if place], halts, apart)

    def _walked(self, waiting: list[Place], halts: tuple[str, ...], apart: frozenset[str]) -> Closure:
        seen, digests, files = set(waiting), set(), set[Path]()
        while waiting:
            definition = self._definition(waiting.pop(), apart)
            files |= definition.files
            parts = [definition.text]
            for name, to in definition.uses:
                if isinstance(to, str) or _halted(to[0], halts):
                    parts += name, to if isinstance(to, str) else to[1]
                    continue
                parts += name, self._definition(to, apart).text
                if to not in seen:
                    seen.add(to)
                    waiting.append(to)
            digests.add(digest(parts))
        return Closure(digest(sorted(digests)), frozenset(seen), frozenset(files))

    def _targets(self, target: str) -> list[Place | None]:
        """Return the places of a target; None where there is no source."""
        address, _, attribute = target.partition(":")
        if (module := self.module(address)) is None:
            return [None]
        if attribute.endswith(".cu"):
            files = self._device_files(module.path.parent)
            return [(str(module.path.parent), attribute)] if attribute in files else []
        found = self._looked_up(module, (attribute.partition(".")[0],))
        return [to for to in found if isinstance(to, tuple)] or [*self._all(module)]

    def _definition(self, place: Place, apart: frozenset[str]) -> Definition:
        found = self._definitions.get((place, None)) or self._definitions.get((place, apart))
        if found is None:
            self._read, file, spelt = set(), Path(*place), Spelt(apart)
            found = self._device_code(file) if file.is_absolute() else self._defined(*place, spelt)
            found = replace(found, files=frozenset(self._read))
            # Most definitions hold no spec: one digest serves them whatever is left apart.
            self._definitions[place, apart if spelt.specs else None] = found
        return found

    def _device_code(self, path: Path) -> Definition:
        text = normalised(path.read_text(encoding="utf-8"))
        self._read.add(path)
        beside = (name for name in includes(text) if (path.parent / name).is_file())
        return Definition(digest([text]), tuple((name, (str(path.parent), name)) for name in beside))

    def _defined(self, address: str, name: str, spelt: Spelt) -> Definition:
        module = self.module(address)
        assert module is not None  # noqa: S101  a place is of a module that was found
        for statement in module.names.get(name, ()):
            spelt.add(statement)
        inner = {
            name: (source, attribute) for name, source, attribute in imported(spelt.imports, module.package)
        }
        uses: set[tuple[str, Place | str]] = set()
        for path in spelt.paths | {(name,) for name in inner}:
            if path[0] in inner:
                to = self._imported(module, *inner[path[0]], path[1:])
            elif path[0] in module.names or path[0] in module.imports:
                to = self._looked_up(module, path)
            else:
                continue
            uses.update((".".join(path), place) for place in to if place != (address, name))
        if name != EFFECTS and EFFECTS in module.names:
            uses.add((EFFECTS, (address, EFFECTS)))
        files = self._device_files(module.path.parent)
        uses.update(("", (str(module.path.parent), files[text])) for text in spelt.strings if text in files)
        return Definition(digest(spelt.text), tuple(sorted(uses, key=str)))

    def _looked_up(self, module: Module, path: tuple[str, ...]) -> list[Place | str]:
        """Return the places, or the address, of a module's attribute."""
        if path[0] in module.names:
            return [(module.name, path[0])]
        if module.imports.get(path[0], (module.name, path[0])) != (module.name, path[0]):
            return self._imported(module, *module.imports[path[0]], path[1:])
        if (inner := self.module(f"{module.name}.{path[0]}")) is not None:
            return self._looked_up(inner, path[1:]) if path[1:] else [*self._all(inner)]
        return [".".join(path)]

    def _imported(
        self, user: Module, address: str, attribute: str, rest: tuple[str, ...]
    ) -> list[Place | str]:
        """Return the places, or the address, of what an import binds, and of an attribute of it."""
        top = address.partition(".")[0]
        followed = top == user.name.partition(".")[0] or top in self._followed()
        module = self.module(address) if followed else None
        if module is None:
            return [f"{address}.{attribute}"]
        path = (attribute, *rest) if attribute else rest
        return self._looked_up(module, path) if path else [*self._all(module)]

    def _all(self, module: Module) -> list[Place]:
        """Return every definition of a module that is used whole."""
        return [(module.name, name) for name in module.names]

    def module(self, address: str) -> Module | None:
        """Return a module, parsed once; None if there is no source of it."""
        if address not in self._modules:
            path = self._path(address)
            self._modules[address] = _parsed(address, path) if path else None
        if found := self._modules[address]:
            self._read.add(found.path)
        return found

    def _path(self, address: str) -> Path | None:
        top, *rest = address.split(".")
        if top not in self._roots:
            try:
                spec = importlib.util.find_spec(top)
            except (ImportError, ValueError):
                return None
            if spec is None or not spec.origin or not (origin := Path(spec.origin)).is_file():
                return None
            if not spec.submodule_search_locations:
                return origin if not rest and origin.suffix == ".py" else None
            self._roots[top] = origin.parent
        at = self._roots[top].joinpath(*rest)
        return next((p for p in (at / "__init__.py", at.with_suffix(".py")) if p.is_file()), None)

    def _device_files(self, folder: Path) -> dict[str, str]:
        """Return the files of device code of a folder by name, and those of kernels by stem too."""
        if folder not in self._files:
            names = sorted(p.name for p in folder.iterdir() if p.suffix in SUFFIXES)
            stems = {name.removesuffix(".cu"): name for name in names if name.endswith(".cu")}
            self._files[folder] = stems | {name: name for name in names}
        return self._files[folder]


@functools.lru_cache(maxsize=4096)
def _halted(address: str, halts: tuple[str, ...]) -> bool:
    return any(address == halt or address.startswith(f"{halt}.") for halt in halts)


def _parsed(address: str, path: Path) -> Module:
    package = address if path.name == "__init__.py" else address.rpartition(".")[0]
    module = Module(address, path, package)
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, IMPORTS):
            for name, source, attribute in imported([statement], package):
                module.imports[name] = source, attribute
        elif not is_text(statement):
            for name in dict.fromkeys(bound(statement)) or (EFFECTS,):
                module.names.setdefault(name, []).append(statement)
    return module
