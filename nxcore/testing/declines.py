"""A list of the kernels' refusals, with one part for the CPU and one for CUDA, as a text file.

    [cpu]
    add
      triton
        number: argument: needs a tensor for y, got a number (float)
        no_elements, writes_in_place[float16 bfloat16]: ...

Under each operator and kernel there is one line for each reason: the samples and rules that it was given for,
in all dtypes or in those named; its code; its text. A part that is missing is not reviewed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nxcore.errors import InvalidInputError

HEAD = """\
# The samples that kernels refuse. `pytest --nxcore-write-declines` writes them. A refusal that isn't here
# fails, and so does what is here and isn't refused.
"""
NAME = re.compile(r"(?P<name>\w+)(?:\[(?P<types>[\w ]+)\])?")
ADDRESS = re.compile(r"0x[0-9a-f]+")
EVERY = "*"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a refusal.

    Attributes
    ----------
    part : str
        ``cpu`` or ``cuda``.
    op, kernel : str
        The operator, and the kernel's label.
    name : str
        The sample, or the rule if it isn't about a sample.
    """

    part: str
    op: str
    kernel: str
    name: str


@dataclass
class Declines:
    """The list of refusals.

    Attributes
    ----------
    parts : set of str
        The parts in the list.
    reasons : dict
        Place -> dtype (or ``*``) -> reason.
    """

    parts: set[str] = field(default_factory=set)
    reasons: dict[Place, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Declines:
        """Read a file; a missing file is an empty list.

        Raises
        ------
        InvalidInputError
            If a line has another form.
        """
        found, part, op, kernel = cls(), "", "", ""
        if not path.exists():
            return found
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            text, indent = line.strip(), len(line) - len(line.lstrip())
            if not text or text.startswith("#"):
                continue
            if indent == 0 and text.startswith("["):
                part = text.strip("[]")
                found.parts.add(part)
            elif indent == 0:
                op = text
            elif indent == 2:
                kernel = text
            else:
                names, colon, reason = text.partition(": ")
                if not colon or not (part and op and kernel):
                    raise InvalidInputError(f"{path}, line {number}: needs `names: reason`, got {text!r}")
                for name, types in _names(names, path, number):
                    listed = found.reasons.setdefault(Place(part, op, kernel, name), {})
                    listed.update(dict.fromkeys(types, reason))
        return found

    def verdict(self, place: Place, dtype: str, reason: str | None) -> str:
        """Compare a refusal for ``reason``, or None, with the list; return the difference, else ""."""
        if place.part not in self.parts:
            return ""
        listed = self.reasons.get(place, {})
        expected = listed.get(dtype, listed.get(EVERY))
        came = None if reason is None else plain(reason)
        if came == expected:
            return ""
        if expected is None:
            return f"a refusal that isn't listed: {came}"
        return f"listed as refused ({expected}), but " + (f"refused for {came!r}" if came else "it was taken")

    def replace(self, ran: Iterable[tuple[Place, str, str | None]]) -> None:
        """Replace the places of a run, given as ``(place, dtype, reason or None)``; keep the others."""
        by_place: dict[Place, dict[str, str | None]] = defaultdict(dict)
        for place, dtype, reason in ran:
            by_place[place][dtype] = None if reason is None else plain(reason)
        for place, found in by_place.items():
            self.parts.add(place.part)
            self.reasons.pop(place, None)
            given = {dtype: reason for dtype, reason in found.items() if reason is not None}
            if given:
                same = len(given) == len(found) and len(set(given.values())) == 1
                self.reasons[place] = {EVERY: next(iter(given.values()))} if same else given

    def __str__(self) -> str:
        lines = [HEAD.rstrip()]
        for part in sorted(self.parts):
            lines += ["", f"[{part}]"]
            op = kernel = ""
            for (its_op, its_kernel), reasons in self._grouped(part).items():
                if its_op != op:
                    lines.append(its_op)
                    op, kernel = its_op, ""
                if its_kernel != kernel:
                    lines.append(f"  {its_kernel}")
                    kernel = its_kernel
                lines += [f"    {', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return "\n".join(lines) + "\n"

    def _grouped(self, part: str) -> dict[tuple[str, str], dict[str, list[str]]]:
        groups: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for place, types in sorted(
            self.reasons.items(), key=lambda item: (item[0].op, item[0].kernel, item[0].name)
        ):
            if place.part == part:
                for reason in sorted(set(types.values())):
                    given = sorted(t for t, r in types.items() if r == reason)
                    suffix = "" if given == [EVERY] else f"[{' '.join(given)}]"
                    groups[place.op, place.kernel][reason].append(place.name + suffix)
        return groups


def plain(reason: str) -> str:
    """Return a reason on one line, without addresses."""
    return " ".join(ADDRESS.sub("0x...", reason).split())


def _names(text: str, path: Path, number: int) -> Iterator[tuple[str, list[str]]]:
    for item in text.split(", "):
        found = NAME.fullmatch(item)
        if not found:
            raise InvalidInputError(f"{path}, line {number}: needs a name, or name[types], got {item!r}")
        yield found["name"], (found["types"] or EVERY).split()
