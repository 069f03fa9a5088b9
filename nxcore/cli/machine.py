"""Output of ``nxcore backends`` and ``nxcore doctor``: a table, and below it one line of the unavailable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.markup import escape

from nxcore.cli import terminal
from nxcore.cli.render import copied, unavailable

STATUS = {"ready": "green", "failed": "red", "disabled": "dim"}
STATE = {"ok": "[green]ok[/green]", "broken": "[red]broken[/red]"}


def backends(rows: list[dict[str, Any]]) -> None:
    """Print the backends."""
    table = terminal.table("backend", "status", "from", "operators", "reason")
    away = [row for row in rows if row["status"] == "unavailable"]
    for row in rows:
        if row in away:
            continue
        colour = STATUS[row["status"]]
        table.add_row(
            f"[bold]{escape(row['name'])}[/bold]",
            f"[{colour}]{row['status']}[/{colour}]",
            escape(row["source"]["distribution"]),
            str(len(row["operators"])),
            escape(row["reason"].strip().rpartition("\n")[2]),  # of a traceback, the error
        )
    terminal.show(table)
    if away:
        text = unavailable((row["name"], row["reason"]) for row in away)
        terminal.console().print(escape(f"unavailable here: {text}"))
    if any(len(row["reason"].splitlines()) > 1 for row in rows):
        copied("the whole traceback: nxcore backends --json")
    _changes((row["name"], row["hint"]) for row in rows)


def doctor(rows: list[dict[str, Any]]) -> None:
    """Print the checks, then the commands that change them."""
    table = terminal.table("", "check", "found")
    away = [row for row in rows if row["state"] == "unavailable"]
    for row in rows:
        if row not in away:
            table.add_row(STATE[row["state"]], escape(row["name"]), escape(row["detail"]))
    terminal.show(table)
    for row in rows:
        _to_compile(row.get("calls", ()))
    if away:
        text = unavailable((row["name"].removeprefix("backend "), row["reason"]) for row in away)
        terminal.console().print(escape(f"unavailable here (not an error): {text}"))
    _changes((row["name"], row["fix"]) for row in rows)


def _to_compile(calls: Iterable[dict[str, Any]]) -> None:
    """Print the kernels that must be compiled, those of an operator in one line."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for call in calls:
        if call["state"] != "on disk":
            found.setdefault((call["kernel"], call["op"], call["state"]), []).append(call)
    if not found:
        return
    table = terminal.table("kernel", "operator", "calls", "what is compiled first", right=("calls",))
    for (kernel, op, state), these in sorted(found.items()):
        what = these[0]["what"]
        first = what.partition("(")[0] if state == "compiles" else f"{state}: {what}"
        table.add_row(escape(kernel), op, str(len(these)), escape(first))
    terminal.show(table)


def _changes(rows: Iterable[tuple[str, str]]) -> None:
    """Print each fix once, with all the names that it is for."""
    names: dict[str, list[str]] = {}
    for name, fix in rows:
        if fix:
            names.setdefault(fix, []).append(name)
    if names:
        copied("to change it:")
    for fix, known in names.items():
        copied(f"  {', '.join(known)}: {fix}")
