"""Output of commands: tables for a terminal, plain text in a pipe, JSON for machines."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.markup import escape

from nxcore.cli import interruption, terminal
from nxcore.measure.timing import duration
from nxcore.store.encoding import encoded

VERDICT = {
    "verified": "green",
    "not run": "yellow",
    "declined": "yellow",
    "wrong": "red",
    "crashed": "red",
    "hung": "red",
}


def unavailable(rows: Iterable[tuple[str, str]]) -> str:
    """Return one line of (name, reason) pairs, grouped by reason."""
    names: dict[str, list[str]] = {}
    for name, reason in rows:
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(known)}: {reason}" for reason, known in names.items())


def copied(text: str) -> None:
    """Print a line for copying: only the terminal wraps it, so that a copy has no line break."""
    terminal.console().print(text, markup=False, soft_wrap=True)


def line(text: str) -> None:
    """Print one line as it is."""
    terminal.console().print(text, markup=False)


def error(text: str) -> None:
    """Print an error to standard error."""
    terminal.console(stderr=True).print(f"[red]error:[/red] {escape(text)}", soft_wrap=True)


def warning(text: str) -> None:
    """Print a warning to standard error."""
    terminal.console(stderr=True).print(f"[yellow]warning:[/yellow] {escape(text)}", soft_wrap=True)


def dumps(data: Any) -> str:
    """Return ``data`` as JSON; values that JSON lacks become text."""
    return encoded(data, indent=2, default=str) + "\n"


def json(data: Any) -> None:
    """Print ``data`` as JSON."""
    text(dumps(data))


def text(content: str) -> None:
    """Print a file's content, neither wrapped nor coloured."""
    sys.stdout.write(content)


@contextlib.contextmanager
def progress(
    title: str, *, quiet: bool = False, every: float = 0.0
) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress: a live bar in a terminal, a line for each step in a pipe, nothing if ``quiet``.

    In a pipe at most a line in ``every`` so many seconds, and one for the first and the last step.
    A step raises an interruption that was lost; so does the beginning of the block.
    """
    interruption.raise_lost()
    with _shown(title, quiet, every) as advance:
        yield interruption.checked(advance)


@contextlib.contextmanager
def _shown(title: str, quiet: bool, every: float) -> Iterator[Callable[[str, int, int], None]]:
    console = terminal.console(stderr=True)
    if quiet:
        yield lambda *_: None
        return
    if not sys.stderr.isatty():
        latest = -math.inf

        def say(what: str, done: int, total: int) -> None:
            nonlocal latest
            if done == total or time.monotonic() - latest >= every:
                latest = time.monotonic()
                console.print(f"{title} {done}/{total}: {what}", markup=False, soft_wrap=bool(every))

        yield say
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def ops(rows: list[dict[str, Any]]) -> None:
    """Print the operators."""
    everywhere = [name for name in rows[0]["kernels"] if all(name in row["kernels"] for row in rows)]
    origins = {row["source"]["distribution"] for row in rows}
    table = terminal.table("operator", *["from"] * (len(origins) > 1), "kernels", "what it does")
    table.columns[-2].min_width = max((len(name) for row in rows for name in row["kernels"]), default=0)
    for row in rows:
        gradient = row["gradient"]
        usual = gradient in (None, f"{row['name']}_backward")  # the next row
        summary = escape(row["summary"].replace("``", "")) + ("" if usual else f"\ngradient: {gradient}")
        source = [escape(row["source"]["distribution"])] * (len(origins) > 1)
        more = ", ".join(name for name in row["kernels"] if name not in everywhere)
        table.add_row(f"[bold]{row['name']}[/bold]", *source, more, summary)
    terminal.show(table)
    if everywhere:
        terminal.console().print(f"every operator also has: {', '.join(everywhere)}")


def operator(found: dict[str, Any]) -> None:
    """Print one operator."""
    console = terminal.console()
    console.print(f"[bold]{found['name']}[/bold]{escape(found['signature'])}")
    console.print(escape(f"\n{found['description'].replace('``', '')}\n"))
    source = found["source"]
    for what, said in (
        ("gradient", found["gradient"] or "none"),
        ("dtypes", ", ".join(found["dtypes"])),
        ("samples", ", ".join(found["samples"])),
        ("from", source["distribution"]),
        ("page", found["page"]),
    ):
        if said:
            console.print(escape(f"{what}: {said}"))
    table = terminal.table("kernel", "status", "dtypes", "why")
    for kernel in found["kernels"]:
        state = "ready" if kernel["ready"] else "unavailable"
        table.add_row(escape(kernel["label"]), state, ", ".join(kernel["dtypes"]), escape(kernel["reason"]))
    terminal.show(table)


def explain(found: dict[str, Any]) -> None:
    """Print an explanation."""
    decision = found["decision"]
    console = terminal.console()
    console.print(escape(f"sample {found['sample']}: {found['text']}"))
    console.print(
        f"[bold]{decision['chosen']}[/bold] runs it ({decision['rule']}): {escape(decision['reason'])}"
    )
    if captured := decision["captured"]:
        console.print(f"captured: {captured['chosen']} ({captured['rule']}): {escape(captured['reason'])}")
    if pair := found["pair"]:
        console.print(f"forward and backward together: {escape(pair['chosen'])}: {escape(pair['reason'])}")
    columns = ("kernel", "median", "times as fast as torch", "error", "why not chosen")
    table = terminal.table(*columns, right=("median", "error"))
    aside = {*found["unavailable"], *found["on_request"]}
    for c in decision["candidates"]:
        if c["label"] in aside:
            continue
        timing, ratio, change = c["timing"], c["ratio"], found["changes"].get(c["label"], "")
        why = [c["refusal"], "" if change in (c["refusal"] or "") else change]
        table.add_row(
            escape(c["label"]),
            duration(timing["median_us"]) if timing else "",
            terminal.ratio_text(ratio) if ratio else "",
            terminal.error_text(c["error"]),
            escape("; ".join(filter(None, why))),
        )
    if table.row_count:
        terminal.show(table)
    if away := found["unavailable"]:
        console.print(escape(f"can't run here: {unavailable(away.items())} (fixes: nxcore doctor)"))
    if labels := found["on_request"]:
        console.print(escape(f"only on request, by backend=: {', '.join(labels)}"))
    if found["origin"]:
        console.print(escape(found["origin"]["text"]))
    if found["change"]:
        console.print(escape(f"to change it: {found['change']}"))
    if found["again"]:
        console.print(escape(f"to measure it again: {found['again']}"))


def cache(rows: list[dict[str, Any]]) -> None:
    """Print the files on disk."""
    console = terminal.console()
    if not rows:
        console.print("nothing is on disk")
        return
    table = terminal.table("part", "holds", "files", "MB", right=("files", "MB"))
    for row in rows:
        table.add_row(row["part"], row["holds"], str(row["files"]), f"{row['bytes'] / 1e6:.1f}")
    terminal.show(table)
    for row in rows:
        console.print(escape(row["folder"]))
    console.print("To remove it: nxcore cache clear, or nxcore cache clear PART")


def quarantine(rows: list[dict[str, Any]]) -> None:
    """Print the kernels in quarantine, one table for each kind."""
    titles = {"wrong": "Wrong results", "crashed": "Crashed or hung", "raised": "Raised repeatedly"}
    console = terminal.console()
    for kind, title in titles.items():
        table = terminal.table("operator", "kernel", "type", "device", "until", "reason", title=title)
        for row in (r for r in rows if r["kind"] == kind):
            until = time.strftime("%Y-%m-%d", time.gmtime(row["until"]))
            cells = (row["op"], row["kernel"], row["dtype"], row["device"], until, row["reason"])
            table.add_row(*map(escape, cells))
        if table.row_count:
            terminal.show(table)
    if rows:
        console.print("To remove one: nxcore quarantine clear OPERATOR --kernel KERNEL")
    else:
        console.print("no kernel is in quarantine")


def verify(rows: list[dict[str, Any]]) -> None:
    """Print the outcome of each kernel, and below the kernels that can't run here."""
    columns = ("operator", "kernel", "type", "outcome", "samples", "worst error", "reason")
    table = terminal.table(*columns, right=("samples", "worst error"))
    absent: dict[tuple[str, str], int] = {}
    counts = Counter[str]()
    for row in rows:
        # The machine lacks something; no ``accepts`` refused.
        lacking = row["outcome"] == "declined" and not row["declined"]
        counts["not run" if lacking else row["outcome"]] += 1
        if lacking:
            at = (row["kernel"], row["reason"])
            absent[at] = absent.get(at, 0) + 1
            continue
        colour = VERDICT[row["outcome"]]
        table.add_row(
            row["op"],
            escape(row["kernel"]),
            row["dtype"],
            f"[{colour}]{row['outcome']}[/{colour}]",
            str(row["samples"] or ""),
            terminal.error_text(row["error"]),
            escape(row["reason"]),
        )
    console = terminal.console()
    if table.row_count:
        terminal.show(table)
    for (kernel, reason), count in absent.items():
        rows_of = f"{count} row{'s' * (count > 1)}"
        console.print(f"[yellow]not run:[/yellow] {escape(kernel)} ({rows_of}): {escape(reason)}")
    said = [f"{counts[what]} {what}" for what in VERDICT if counts[what]]
    console.print(", ".join(said) or "no kernel to verify")


def audit(found: dict[str, Any]) -> None:
    """Print an audit of stored winners: the rate of those slower than torch, and each of them."""
    console = terminal.console()
    wrong, (low, high) = [row for row in found["rows"] if row["slower"]], found["interval"]
    if wrong:
        table = terminal.table("operator", "chosen", "times as fast as torch", "problem")
        for row in wrong:
            table.add_row(
                row["op"], escape(row["chosen"]), terminal.ratio_text(row["ratio"]), escape(row["problem"])
            )
        terminal.show(table)
    for reason, count in found["skipped"].items():
        console.print(f"{count} not measured: {escape(reason)}")
    if found["audited"]:
        said = f"{found['violations']} of {found['audited']} stored winners on {escape(found['device'])}"
        rate = f"{found['rate']:.1%} \\[{low:.1%}, {high:.1%}]"
        console.print(f"{said} are slower than torch: {rate}")
    else:
        console.print("no stored winner was measured again")
