"""Tests of many rows: one case goes through all of them, and a failure names the row."""

import contextlib
import functools
import inspect
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch

ONLY: list[re.Pattern[str]] = []
"""What the name of a row must hold where ``--op`` asks for one operator; else empty."""

Row = tuple[str, dict[str, Any]]


def for_each(names: str | Sequence[str], rows: Iterable[Any], *, ids: Any = None) -> Callable[..., Any]:
    """Give a test each row in turn, within one case: ``pytest.mark.parametrize`` makes a case of each.

    A row has random numbers, patches and a folder of its own, and a list in which a fixture notes is empty;
    all other fixtures are shared. Every row runs: one that fails is raised with its name, and several as a
    group. A case is skipped if each of its rows is.

    Parameters
    ----------
    names, rows, ids
        As for ``pytest.mark.parametrize``; a row has no marks.
    """
    words = tuple(word.strip() for word in names.split(",")) if isinstance(names, str) else tuple(names)
    table = [_row(words, row, number, ids) for number, row in enumerate(rows)]

    def marked(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def through(*within: Any, **fixtures: Any) -> None:
            wrong: list[Exception] = []
            skipped: list[str] = []
            chosen = [row for row in table if _named(row[0])] or table
            for name, values in chosen:
                draw_anew(f"{test.__qualname__}[{name}]")
                try:
                    with _apart(fixtures, name) as own:
                        test(*within, **own, **values)
                except pytest.skip.Exception as error:
                    skipped.append(str(error.msg))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  the other rows run too
                    error.add_note(f"in the row {name}")
                    wrong.append(error)
            if len(wrong) == 1:
                raise wrong[0]
            if wrong:
                raise BaseExceptionGroup(f"{len(wrong)} of {len(chosen)} rows", wrong)
            if len(skipped) == len(chosen):
                pytest.skip("; ".join(dict.fromkeys(skipped)) or "there are no rows")

        given = inspect.signature(test)
        kept = [parameter for name, parameter in given.parameters.items() if name not in words]
        through.__signature__ = given.replace(parameters=kept)  # type: ignore[attr-defined]
        through.rows = [name for name, _ in table] + getattr(test, "rows", [])  # type: ignore[attr-defined]
        return through

    return marked


def _row(words: tuple[str, ...], row: Any, number: int, ids: Any) -> Row:
    name = list(ids)[number] if ids and not callable(ids) else None
    if isinstance(row, type(pytest.param())):
        if row.marks:
            raise ValueError(f"a row has no marks, got {row.marks}; use pytest.mark.parametrize")
        name, given = row.id or name, row.values
    else:
        given = row if len(words) > 1 else (row,)
    shown = ids if callable(ids) else lambda value: None
    named = [str(shown(value) or getattr(value, "__name__", value))[:60] for value in given]
    return str(name or "-".join(named)), dict(zip(words, given, strict=True))


def _named(name: str) -> bool:
    return any(pattern.search(name) for pattern in ONLY)


def draw_anew(name: str) -> None:
    """Seed random numbers with a hash of a name.

    ``torch.manual_seed`` formats the stack for each kind of device that isn't there, and keeps it.
    """
    seed = zlib.crc32(name.encode())
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(seed)
    random.seed(seed)


@contextlib.contextmanager
def _apart(fixtures: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Enter patches and a folder of a row's own, where the test has any, and empty what was noted."""
    own = dict(fixtures)
    for noted in own.values():
        if type(noted) is list:
            noted.clear()
    with contextlib.ExitStack() as stack:
        if "monkeypatch" in own:
            own["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
        if "tmp_path" in own:
            own["tmp_path"] /= f"{zlib.crc32(name.encode()):08x}"
            own["tmp_path"].mkdir()
        yield own
