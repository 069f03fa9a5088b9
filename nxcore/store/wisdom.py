"""Wisdom: measurements kept for the next process, one document a problem, one folder an environment.

A document holds the times of every candidate, by kernel label, with each kernel's identity: after a change
in a plugin, only the kernels that it changes are measured again. Figures of another device are in another
folder.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from nxcore.spec.device import Device, describe
from nxcore.spec.problem import Problem
from nxcore.store.encoding import encoded
from nxcore.store.files import Document, Store
from nxcore.store.lines import Line
from nxcore.store.pages import FOREIGN, Page, page

_log = logging.getLogger(__name__)

SHELF = 1024
"""The most pages of an operator in an environment that a process keeps: the newest."""

RELATED = ("cuda",)
"""The types of devices that have related ones: processors of one capability differ in more than memory."""

Pages = dict[tuple[str, str], tuple[Document, Document] | Line]
"""(environment, problem) by digest -> key and page."""
Shipped = tuple[dict[str, Document], Pages]


Shelf = dict[str, tuple[Document, Page]]
"""The digest of a problem's key -> key and page."""


class Wisdom:
    """Pages by problem.

    Parameters
    ----------
    store : Store
        Holds the pages.
    shipped : callable
        Device type -> environments and pages in the package, as ``transfer.read`` returns them; called
        once per type. They count for the very same device, where the store has none.
    """

    def __init__(self, store: Store, shipped: Callable[[str], Shipped] = lambda _: ({}, {})) -> None:
        self.store, self._shipped = store, functools.cache(shipped)
        self._shelves: dict[str, dict[str, Shelf]] = {}
        self._complete: set[tuple[str, str]] = set()  # (environment, operator): with the package's pages
        self._contradicted: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def read(self, problem: Problem) -> Page | None:
        """Return the page of ``problem`` on its device, or None if there is no valid one."""
        return self._page(problem, key(problem))

    def _page(self, problem: Problem, of: Document) -> Page | None:
        document = self.store.read(_folder(problem.machine), of)
        foreign = document is None or FOREIGN in document
        if document is None and (shipped := self._shipped(problem.device.type)[1]):
            _, document = shipped.get((digest(problem.machine.to_dict()), digest(of)), (None, None))
        if foreign and self._contradicted and _place(problem, of) in self._contradicted:
            document = None
        _log.debug("record: %s: %s", problem, "read" if document is not None else "none")
        found = page(document) if document is not None else None
        return replace(found, foreign=True) if found and foreign else found

    def related(self, problem: Problem) -> Page | None:
        """Return the page of ``problem`` in the package for a related device; None without a promising one.

        Related devices have the same capability and as many units, such as an H100 and an H200.
        """
        if problem.device.type not in RELATED:
            return None
        environments, pages = self._shipped(problem.device.type)
        own, of = problem.machine, key(problem)
        if _place(problem, of) in self._contradicted:
            return None
        for name, facts in environments.items():
            same = (facts.get("capability"), facts.get("units")) == (own.capability, own.units)
            if not same or name == digest(own.to_dict()) or (name, digest(of)) not in pages:
                continue
            found = page(pages[name, digest(of)][1])
            if found is not None and found.promising:
                return replace(found, foreign=True, device=str(facts.get("name")))
        return None

    def known(self, problem: Problem) -> Page | None:
        """Return the page of ``problem``, on its device or on a related one; None if there is none."""
        return self.read(problem) or self.related(problem)

    def contradict(self, problem: Problem) -> None:
        """Take figures of ``problem`` that are from elsewhere for none, in this process."""
        self._contradicted.add(_place(problem, key(problem)))

    def holds(self, problem: Problem) -> bool:
        """Return whether ``problem`` has a page, or had one from elsewhere that was wrong here."""
        return _place(problem, key(problem)) in self._contradicted or self.read(problem) is not None

    def write(self, problem: Problem, found: Page) -> None:
        """Store the page of ``problem``."""
        self._write(problem, key(problem), found)

    def _write(self, problem: Problem, of: Document, found: Page) -> None:
        facts, op = problem.machine.to_dict(), str(of["op"])
        if self.store.read("environments", {"environment": digest(facts)}) != facts:  # reading is shorter
            self.store.write("environments", {"environment": digest(facts)}, facts)
        self.store.write(_folder(problem.machine), of, found.to_dict())
        self._contradicted.discard(_place(problem, of))  # the page is this machine's own
        with self._lock:
            if (shelves := self._shelves.get(digest(facts))) is not None:
                shelf, name = shelves.setdefault(op, {}), digest(of)
                shelf.pop(name, None)  # a page that is written again is the newest
                shelf[name] = of, found
                if len(shelf) > SHELF:
                    del shelf[next(iter(shelf))]

    def read_pair(
        self, problem: Problem, mask: tuple[bool, ...], backward: Problem, path: str | None
    ) -> Page | None:
        """Return the page of a differentiable call: forward and backward together; None if there is none."""
        return self._page(problem, pair_key(problem, mask, backward, path))

    def write_pair(
        self, problem: Problem, mask: tuple[bool, ...], backward: Problem, path: str | None, found: Page
    ) -> None:
        """Store the page of a differentiable call."""
        self._write(problem, pair_key(problem, mask, backward, path), found)

    def shelf(self, facts: Mapping[str, Any], op: str) -> Shelf:
        """Return the pages of an operator in an environment.

        They are read from disk once a process, those of the package once an operator; pages that this process
        writes are added, and beyond ``SHELF`` the oldest are dropped.
        """
        environment = digest(facts)
        with self._lock:
            if environment not in self._shelves:
                self._shelves[environment] = self._read(environment)
            shelves = self._shelves[environment]
            if (environment, op) not in self._complete:
                self._complete.add((environment, op))
                own = self._of_package(environment, str(facts.get("type")), op)
                shelves[op] = _newest(own | shelves.get(op, {}))
            found = shelves[op]
            wrong = {name for folder, name in self._contradicted if folder == f"{environment}/entries"}
            return {name: entry for name, entry in found.items() if name not in wrong}

    def shelved(self, facts: Mapping[str, Any]) -> bool:
        """Return whether the pages of an environment were read already."""
        return digest(facts) in self._shelves

    def _of_package(self, environment: str, kind: str, op: str) -> Shelf:
        """Return the package's pages of an operator in an environment."""
        everything = self._shipped(kind)[1].items()
        held = ((name, entry) for (of, name), entry in everything if of == environment)
        entries = ((name, e) for name, e in held if not isinstance(e, Line) or e.names(op))
        pages = ((n, key, page(document)) for n, (key, document) in entries if key.get("op") == op)
        return {name: (of, known) for name, of, known in pages if known is not None}

    def _read(self, environment: str) -> dict[str, Shelf]:
        """Return the stored pages of an environment by operator."""
        found: dict[str, Shelf] = {}
        for of, document in self.store.items(f"{environment}/entries"):
            if (known := page(document)) is not None:
                op = str(of.get("op"))
                found.setdefault(op, {})[digest(of)] = of, known
                if len(found[op]) > 2 * SHELF:
                    found[op] = _newest(found[op])
        return {op: _newest(shelf) for op, shelf in found.items()}

    def environments(self, kind: str) -> list[Document]:
        """Return the facts of every environment of a device type that may have pages."""
        stored = {digest(facts): facts for _, facts in self.store.items("environments")}
        everything = self._shipped(kind)[0] | stored
        return [facts for facts in everything.values() if facts.get("type") == kind]

    def has(self, device: torch.device) -> bool:
        """Return whether there may be pages of a device, or of a related one."""
        own = describe(device)
        known = [(facts.get("capability"), facts.get("units")) for facts in self.environments(device.type)]
        return (own.capability, own.units) in known

    def keys(self, kind: str) -> Iterator[Document]:
        """Yield the key of every page on a device type, in any environment."""
        yield from (entry[0] for entry in self._shipped(kind)[1].values())
        for facts in self.environments(kind):
            yield from self.store.keys(f"{digest(facts)}/entries")

    def pages(self, device: torch.device) -> Iterator[tuple[Document, Page]]:
        """Yield key and page of every problem in an environment."""
        for of, document in self.store.items(_folder(describe(device))):
            if (found := page(document)) is not None:
                yield of, found


def _place(problem: Problem, of: Document) -> tuple[str, str]:
    return _folder(problem.machine), digest(of)


def _newest(shelf: Shelf) -> Shelf:
    return dict(sorted(shelf.items(), key=lambda item: item[1][1].date)[-SHELF:])


def environment(device: torch.device) -> dict[str, Any]:
    """Return the facts that figures depend on: those of another device are separate."""
    return describe(device).to_dict()


def digest(facts: Any) -> str:
    """Return a digest of plain data."""
    return hashlib.sha256(encoded(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=64)
def _folder(device: Device) -> str:
    return f"{digest(device.to_dict())}/entries"


PAIR = " with gradient"
"""The end of the ``op`` of a pair's key: forward and backward together."""


PATH = "path"
"""The name, in a pair's key and among its versions, of what joins both ways; left out where Python does."""


def pair_key(
    problem: Problem, mask: tuple[bool, ...], backward: Problem, path: str | None = None
) -> dict[str, Any]:
    """Return the key of a differentiable call's page: forward and backward together."""
    ways = {"forward": key(problem), "backward": key(backward)} | ({PATH: path} if path else {})
    return {"op": f"{problem.op}{PAIR}", "mask": list(mask)} | ways


def is_pair(of: Mapping[str, Any]) -> bool:
    """Return whether a key is that of a pair."""
    return str(of.get("op")).endswith(PAIR)


def key(problem: Problem) -> dict[str, Any]:
    """Return the key of a page: the problem without its device, which the folder determines."""
    facts = problem.to_dict()
    del facts["device"]
    return facts | {
        "devices": [t.device.type for t in problem.tensors],
        "aliased": problem.aliased,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
