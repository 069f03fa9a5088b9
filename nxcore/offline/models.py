"""Models: which kernel serves each module of a model, why, and what it saves."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from nxcore.context import Purpose, in_force
from nxcore.measure.timing import duration
from nxcore.nn import watching
from nxcore.nn.prepare import step
from nxcore.nn.swap import standing
from nxcore.offline.seen import Row, Seen, rows_of
from nxcore.session import default

NAME = 28
"""The widest column of names."""

REASONS = 6
"""The most reasons below the table, in full."""


@dataclass(frozen=True, slots=True)
class ModelExplanation:
    """The kernels that serve the modules of a model. ``str()`` gives a table as wide as the terminal.

    Attributes
    ----------
    rows : tuple of Row
        The replaced modules, in the model's order.
    left : dict of str to str
        The name of each other module that has no children, or is of a kind that nxcore has -> why it is so.
    steps : tuple of str
        The results of comparing with plain steps; empty where the model has no watch.
    """

    rows: tuple[Row, ...]
    left: dict[str, str]
    steps: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {"rows": [asdict(row) for row in self.rows], "left": self.left, "steps": list(self.steps)}

    def table(self, width: int) -> str:
        """Return a line a module, cut to ``width``."""
        head = ("module", "class", "served by", "saved", "watch", "why")
        lines = [head, *map(_cells, self.rows)]
        *widths, _ = (max(map(len, column)) for column in zip(*lines, strict=True))
        return "\n".join(
            _cut("  ".join((*(c.ljust(w) for c, w in zip(cells, widths, strict=False)), cells[-1])), width)
            for cells in lines
        )

    def _reasons(self, width: int) -> list[str]:
        """Return the reasons that the table has no room for, each once, the most frequent first."""
        texts = zip(self.table(1 << 30).splitlines()[1:], self.rows, strict=True)
        kinds = Counter(row.reason for text, row in texts if len(text) > width)
        lines = [f"{count} modules: {reason}" for reason, count in kinds.most_common(REASONS)]
        return lines + [f"{len(kinds) - REASONS} more reasons: to_dict() has all"] * (len(kinds) > REASONS)

    def __str__(self) -> str:
        width = max(80, shutil.get_terminal_size((80, 24)).columns)
        lines = [self.table(width), *self._reasons(width)] if self.rows else []
        lines.append(f"modules: {len(self.rows)} replaced, {len(self.left)} left")
        lines += [_cut(f"steps: {found}", width) for found in self.steps]
        if "not accelerated" in self.left.values():
            lines.append("next: nxcore.accelerate(model) lets nxcore's operators serve its modules")
        elif any(row.state == "operator" for row in self.rows):
            lines.append("next: nxcore.explain(model, input) shows the kernels and what they save")
        return "\n".join(lines)


def explain(model: nn.Module, *args: Any, **kwargs: Any) -> ModelExplanation:
    """Return what serves the modules of ``model``; see ``nxcore.explain``."""
    found, session = tuple(watching.report(model)), default()
    modules = standing(model)
    names = {id(module): name for name, module in model.named_modules() if name in modules.replaced}
    seen = Seen(names) if args or kwargs else None
    if seen is not None:
        with in_force(purpose=Purpose.SHOW), session.observed(seen):
            step(model, args, kwargs)
    rows = rows_of(session, model, modules.replaced, seen, watched=watching.comparing(model))
    return ModelExplanation(rows, modules.left, found)


def _cells(row: Row) -> tuple[str, ...]:
    name = row.name or "(the model)"
    if len(name) > NAME:
        name = f"...{name[3 - NAME :]}"
    saved = "" if row.saved_us is None else f"{'-' * (row.saved_us < 0)}{duration(abs(row.saved_us))}"
    return name, row.module, row.by, saved, "yes" if row.watched else "", row.reason


def _cut(text: str, width: int) -> str:
    text = text.rstrip()
    return text if len(text) <= width else f"{text[: width - 3].rstrip()}..."
