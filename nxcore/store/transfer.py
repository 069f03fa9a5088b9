"""Wisdom as one file: export, import, merge and lock."""

from __future__ import annotations

import functools
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nxcore.errors import InvalidInputError
from nxcore.measure.collection import no_collection
from nxcore.store import owner
from nxcore.store.encoding import decoded, encoded
from nxcore.store.files import Document, Store
from nxcore.store.lines import lines
from nxcore.store.owner import StoreWarning
from nxcore.store.pages import FOREIGN, page
from nxcore.store.wisdom import Pages, digest

FORMAT = 1
LIMIT = 256 << 20
"""The most bytes of a file."""

SHIPPED = Path(__file__).parent / "shipped"
"""The wisdom in the package: ``<device type>-<any name>.json``, as ``nxcore wisdom export`` writes it."""


ENTRY = 4
"""How deeply an entry is nested: the document has environments, and one of these its entries."""


def gathered(store: Store) -> tuple[dict[str, Document], Pages]:
    """Return every environment and every page of a store."""
    environments = {digest(facts): facts for _, facts in store.items("environments")}
    pages: Pages = {
        (name, digest(key)): (key, document)
        for name in environments
        for key, document in store.items(f"{name}/entries")
        if page(document) is not None
    }
    return environments, pages


def exported(store: Store) -> Document:
    """Return all that a store holds as one document; the mark of imported pages is the store's own."""
    environments, pages = gathered(store)
    return {
        "format": FORMAT,
        "environments": [
            {
                "facts": facts,
                "entries": [
                    {"key": key, "page": {n: v for n, v in document.items() if n != FOREIGN}}
                    for (of, _), (key, document) in sorted(pages.items())
                    if of == name
                ],
            }
            for name, facts in sorted(environments.items())
        ],
    }


def read(path: Path, *, checked: bool = True) -> tuple[dict[str, Document], Pages]:
    """Return the environments and pages of an exported file.

    Parameters
    ----------
    path : Path
    checked : bool, default True
        Whether every page is looked at. That takes longer than all else, and ``Wisdom`` looks at each page
        that it returns.

    Raises
    ------
    InvalidInputError
        If it isn't such a file.
    """
    return _read(path, read_json(path), checked=checked)


def _read(path: Path, found: Document, *, checked: bool) -> tuple[dict[str, Document], Pages]:
    if found.get("format") != FORMAT or not isinstance(found.get("environments"), list):
        raise InvalidInputError(f"{path} isn't wisdom of format {FORMAT}: got format {found.get('format')!r}")
    environments: dict[str, Document] = {}
    pages: Pages = {}
    for part in found["environments"]:
        if not isinstance(part, dict) or not isinstance(part.get("facts"), dict):
            raise InvalidInputError(f"{path}: an environment has no facts")
        name = digest(part["facts"])
        environments[name] = part["facts"]
        entries = part.get("entries", [])
        for entry in entries if isinstance(entries, list) else [entries]:
            key, document = (entry.get(what) if isinstance(entry, dict) else None for what in ("key", "page"))
            if (
                not isinstance(key, dict)
                or not isinstance(document, dict)
                or (checked and page(document) is None)
            ):
                raise InvalidInputError(f"{path}: an entry is invalid: {reprlib.repr(entry)[:80]}")
            pages[name, digest(key)] = key, document
    return environments, pages


def shipped(kind: str, folder: Path | None = None) -> tuple[dict[str, Document], Pages]:
    """Return the wisdom in the package for devices of type ``kind``; a broken file is one warning.

    Files of other types aren't read: a process on the CPU needs no GPU's figures.
    """
    found = []
    for path in sorted((folder or SHIPPED).glob(f"{kind}-*.json")):
        try:
            found.append(_kept(path, path.stat().st_mtime_ns))
        except InvalidInputError as error:
            warnings.warn(f"shipped wisdom is ignored: {error}", StoreWarning, stacklevel=3)
    return merged(found)


@functools.lru_cache(maxsize=8)
def _kept(path: Path, _changed: int) -> tuple[dict[str, Document], Pages]:
    """Return what ``read`` does, once for all sessions: a file of the package has megabytes.

    ``_changed`` is when it was written last. A test looks at its pages.
    """
    with no_collection():  # which hundreds of thousands of new objects would cause again and again
        return _parsed_late(path) or _read(path, read_json(path, owner.packaged), checked=False)


def _parsed_late(path: Path) -> tuple[dict[str, Document], Pages] | None:
    """Return the same with entries that are parsed late; None where the file isn't laid out for that."""
    try:
        found = lines(owner.packaged(path, LIMIT).decode())
    except (OSError, ValueError):
        return None
    if found is None:
        return None
    environments = {digest(facts): facts for facts, _ in found}
    return environments, {(digest(facts), digest(key)): line for facts, of in found for key, line in of}


def merged(sources: Iterable[tuple[Mapping[str, Document], Pages]]) -> tuple[dict[str, Document], Pages]:
    """Return the union. Of two pages of one problem, the clear one counts, otherwise the later one."""
    environments: dict[str, Document] = {}
    pages: Pages = {}
    for facts, found in sources:
        environments.update(facts)
        for place, entry in found.items():  # parsed where two are compared
            if place not in pages or _date(pages[place][1]) < _date(entry[1]):
                pages[place] = entry
    return environments, pages


def imported(
    store: Store, environments: Mapping[str, Document], pages: Pages, *, foreign: bool = True
) -> int:
    """Write new or later pages into a store; return their number.

    They are marked as ``foreign``, so that their choices are confirmed in use.
    """
    _, present = gathered(store)
    mark = {FOREIGN: True} if foreign else {}
    count = 0
    for facts in environments.values():
        store.write("environments", {"environment": digest(facts)}, facts)
    for (name, of), (key, document) in pages.items():
        if (name, of) in present and _date(present[name, of][1]) >= _date(document):
            continue
        store.write(f"{name}/entries", key, document | mark)
        count += 1
    return count


def _date(document: Document) -> float:
    """Return when a page was measured; 0 for none."""
    found = page(document)
    return 0.0 if found is None else found.date


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as a file, with an entry a line."""
    path.write_text(_lines(dict(document), ENTRY) + "\n", encoding="utf-8")


def _lines(value: Any, depth: int) -> str:
    """Return JSON: a line for each value at ``depth``, and for each that isn't nested so deeply."""
    if not depth or not isinstance(value, dict | list) or not value:
        return encoded(value, sort_keys=True)
    if isinstance(value, list):
        return "[\n" + ",\n".join(_lines(v, depth - 1) for v in value) + "\n]"
    inner = (f"{encoded(name)}: {_lines(value[name], depth - 1)}" for name in sorted(value))
    return "{\n" + ",\n".join(inner) + "\n}"


def document_of(environments: Mapping[str, Document], pages: Pages) -> Document:
    """Return environments and pages as one document."""
    memory = Store()
    imported(memory, environments, pages, foreign=False)
    return exported(memory)


def read_json(path: Path, opening: Callable[[Path, int], bytes] = owner.given) -> Document:
    """Return the object that a file holds, or raise; ``opening`` judges whose file it is."""
    try:
        found = decoded(opening(path, LIMIT).decode())
    except OSError as error:
        raise InvalidInputError(f"{path} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} isn't JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInputError(f"{path} must hold an object, got {type(found).__name__}")
    return found
