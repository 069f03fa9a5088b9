"""Shipped wisdom: the entries whose kernels have changed since they were measured."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nxcore.session import Session
from nxcore.spec.kernel import Backend, Kernel
from nxcore.store import owner
from nxcore.store.encoding import encoded
from nxcore.store.files import Document
from nxcore.store.transfer import SHIPPED, read_json
from nxcore.store.wisdom import is_pair

Why = Callable[[str, str, str], str]
"""``why(op, kernel, identity)``: why an entry doesn't count for a kernel; empty where it does."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A kernel for which entries of a file don't count any more.

    Attributes
    ----------
    file, device : str
        The file's name, and the device's.
    op, kernel : str
        The operator, and the kernel's label.
    entries, of : int
        The number of these entries, and of all entries of the operator.
    why : str
        ``has changed`` or ``isn't installed``.
    """

    file: str
    device: str
    op: str
    kernel: str
    entries: int
    of: int
    why: str

    def __str__(self) -> str:
        return f"{self.kernel} {self.why}: {self.entries} of {self.of} problems of {self.op}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def files(folder: Path | None = None) -> list[Path]:
    """Return the files of the package."""
    return sorted((folder or SHIPPED).glob("*-*.json"))


def compared(session: Session) -> Why:
    """Return the comparison of recorded identities with those of a session's kernels."""
    registry = session.registry

    @functools.cache
    def owned(op: str) -> dict[str, tuple[Backend, Kernel]]:
        registry.known(op)  # that of an activation is added when it is asked for
        return {b.label(k): (b, k) for b in registry.backends.values() for k in b.kernels if k.op == op}

    def why(op: str, label: str, identity: str) -> str:
        if ": " in label:  # of a pair
            op, label = label.split(": ")
        if label not in owned(op):
            return "isn't installed"
        return "" if session.gate.identity(*owned(op)[label]).kernel == identity else "has changed"

    return why


def stale(why: Why, paths: Iterable[Path]) -> list[Stale]:
    """Return the kernels of shipped files that are stale, by file and operator."""
    found: list[Stale] = []
    for path in paths:
        for part in read_json(path, owner.packaged)["environments"]:
            entries = [(e["key"]["op"], e["page"]["makes"]) for e in part["entries"]]
            totals = Counter(op for op, _ in entries)
            counts = Counter(
                (op, label, reason)
                for op, makes in entries
                for label, identity in makes.items()
                if (reason := why(op, label, identity))
            )
            device = str(part["facts"].get("name"))
            found += [
                Stale(path.name, device, op, label, count, totals[op], reason)
                for (op, label, reason), count in sorted(counts.items())
            ]
    return found


def pruned(document: Document, why: Why) -> Document:
    """Return a document without the figures of stale kernels, and without entries that a stale one won."""
    environments = []
    for part in document["environments"]:
        entries = (_pruned(entry, why) for entry in part["entries"])
        environments.append(part | {"entries": [entry for entry in entries if entry]})
    return document | {"environments": environments}


def write(path: Path, document: Document) -> None:
    """Write a document with one entry a line, so that a difference of two versions names problems."""
    parts = []
    for part in document["environments"]:
        entries = ",\n".join(map(_line, part["entries"]))
        parts.append(f'{{"facts":{_line(part["facts"])},"entries":[\n{entries}\n]}}')
    facts = "".join(f'"{name}":{_line(value)},' for name, value in document.items() if name != "environments")
    together = ",\n".join(parts)
    path.write_text(f'{{{facts}"environments":[\n{together}\n]}}\n', encoding="utf-8")


def _line(value: Any) -> str:
    return encoded(value, sort_keys=True, separators=(",", ":"))


def _pruned(entry: Document, why: Why) -> Document | None:
    page, op = entry["page"], entry["key"]["op"]
    gone = {label for label, identity in page["makes"].items() if why(op, label, identity)}
    decision = page["decision"]
    winners = {decision["chosen"], (decision.get("captured") or decision)["chosen"]}
    if gone & {"torch", *winners} or (gone and is_pair(entry["key"])):
        return None
    kept = [c for c in decision["candidates"] if c["label"] not in gone or c["timing"] is None]
    makes = {label: identity for label, identity in page["makes"].items() if label not in gone}
    late = [label for label in page["late"] if label not in gone]
    changed = {"decision": decision | {"candidates": kept}, "makes": makes, "late": late}
    return entry | {"page": page | changed}
