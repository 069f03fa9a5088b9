"""Tables of commands: operators, kernels, backends, checks, files, and measured problems."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.markup import escape

from nxcore.cli import render
from nxcore.cli.render import VERDICT, copied, unavailable
from nxcore.measure.timing import duration
from nxcore.spec.problem import plain
from nxcore.spec.spec import REQUIRED

FLAGS = {"needs_grad": "with a gradient", "aliased": "out is an input", "deterministic": "deterministic"}
"""Texts of a problem's flags, shown where the flag is set."""
STATUS = {"ready": "green", "failed": "red", "disabled": "dim"}
STATE = {"ok": "[green]ok[/green]", "broken": "[red]broken[/red]"}


def backends(rows: list[dict[str, Any]]) -> None:
    """Print the backends."""
    table = render.table("backend", "status", "from", "operators", "reason")
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
    render.show(table)
    if away:
        text = unavailable((row["name"], row["reason"]) for row in away)
        render.console().print(escape(f"unavailable here: {text}"))
    if any(len(row["reason"].splitlines()) > 1 for row in rows):
        copied("the whole traceback: nxcore backends --json")
    _changes((row["name"], row["hint"]) for row in rows)


def doctor(rows: list[dict[str, Any]]) -> None:
    """Print the checks, then the commands that change them."""
    table = render.table("", "check", "found")
    away = [row for row in rows if row["state"] == "unavailable"]
    for row in rows:
        if row not in away:
            table.add_row(STATE[row["state"]], escape(row["name"]), escape(row["detail"]))
    render.show(table)
    for row in rows:
        _to_compile(row.get("calls", ()))
    if away:
        text = unavailable((row["name"].removeprefix("backend "), row["reason"]) for row in away)
        render.console().print(escape(f"unavailable here (not an error): {text}"))
    _changes((row["name"], row["fix"]) for row in rows)


def _to_compile(calls: Iterable[dict[str, Any]]) -> None:
    """Print the kernels that must be compiled, those of an operator in one line."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for call in calls:
        if call["state"] != "on disk":
            found.setdefault((call["kernel"], call["op"], call["state"]), []).append(call)
    if not found:
        return
    table = render.table("kernel", "operator", "calls", "what is compiled first", right=("calls",))
    for (kernel, op, state), these in sorted(found.items()):
        what = these[0]["what"]
        first = what.partition("(")[0] if state == "compiles" else f"{state}: {what}"
        table.add_row(escape(kernel), op, str(len(these)), escape(first))
    render.show(table)


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


def ops(rows: list[dict[str, Any]]) -> None:
    """Print the operators."""
    everywhere = [name for name in rows[0]["kernels"] if all(name in row["kernels"] for row in rows)]
    origins = {row["source"]["distribution"] for row in rows}
    table = render.table("operator", *["from"] * (len(origins) > 1), "kernels", "what it does")
    table.columns[-2].min_width = max((len(name) for row in rows for name in row["kernels"]), default=0)
    for row in rows:
        gradient = row["gradient"]
        usual = gradient in (None, f"{row['name']}_backward")  # the next row
        summary = escape(row["summary"].replace("``", "")) + ("" if usual else f"\ngradient: {gradient}")
        source = [escape(row["source"]["distribution"])] * (len(origins) > 1)
        more = ", ".join(name for name in row["kernels"] if name not in everywhere)
        table.add_row(f"[bold]{row['name']}[/bold]", *source, more, summary)
    render.show(table)
    if everywhere:
        render.console().print(f"every operator also has: {', '.join(everywhere)}")


def operator(found: dict[str, Any]) -> None:
    """Print one operator."""
    console = render.console()
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
    table = render.table("kernel", "status", "dtypes", "why")
    for kernel in found["kernels"]:
        state = "ready" if kernel["ready"] else "unavailable"
        table.add_row(escape(kernel["label"]), state, ", ".join(kernel["dtypes"]), escape(kernel["reason"]))
    render.show(table)


def explain(found: dict[str, Any]) -> None:
    """Print an explanation."""
    decision = found["decision"]
    console = render.console()
    console.print(escape(f"sample {found['sample']}: {found['text']}"))
    console.print(
        f"[bold]{decision['chosen']}[/bold] runs it ({decision['rule']}): {escape(decision['reason'])}"
    )
    if captured := decision["captured"]:
        console.print(f"captured: {captured['chosen']} ({captured['rule']}): {escape(captured['reason'])}")
    if pair := found["pair"]:
        console.print(f"forward and backward together: {escape(pair['chosen'])}: {escape(pair['reason'])}")
    columns = ("kernel", "median", "times as fast as torch", "error", "why not chosen")
    table = render.table(*columns, right=("median", "error"))
    aside = {*found["unavailable"], *found["on_request"]}
    for c in decision["candidates"]:
        if c["label"] in aside:
            continue
        timing, ratio, change = c["timing"], c["ratio"], found["changes"].get(c["label"], "")
        why = [c["refusal"], "" if change in (c["refusal"] or "") else change]
        table.add_row(
            escape(c["label"]),
            duration(timing["median_us"]) if timing else "",
            render.ratio_text(ratio) if ratio else "",
            render.error_text(c["error"]),
            escape("; ".join(filter(None, why))),
        )
    if table.row_count:
        render.show(table)
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
    console = render.console()
    if not rows:
        console.print("nothing is on disk")
        return
    table = render.table("part", "holds", "files", "MB", right=("files", "MB"))
    for row in rows:
        table.add_row(row["part"], row["holds"], str(row["files"]), f"{row['bytes'] / 1e6:.1f}")
    render.show(table)
    for row in rows:
        console.print(escape(row["folder"]))
    console.print("To remove it: nxcore cache clear, or nxcore cache clear PART")


def quarantine(rows: list[dict[str, Any]]) -> None:
    """Print the kernels in quarantine, one table for each kind."""
    titles = {"wrong": "Wrong results", "crashed": "Crashed or hung", "raised": "Raised repeatedly"}
    console = render.console()
    for kind, title in titles.items():
        table = render.table("operator", "kernel", "type", "device", "until", "reason", title=title)
        for row in (r for r in rows if r["kind"] == kind):
            until = time.strftime("%Y-%m-%d", time.gmtime(row["until"]))
            cells = (row["op"], row["kernel"], row["dtype"], row["device"], until, row["reason"])
            table.add_row(*map(escape, cells))
        if table.row_count:
            render.show(table)
    if rows:
        console.print("To remove one: nxcore quarantine clear OPERATOR --kernel KERNEL")
    else:
        console.print("no kernel is in quarantine")


def verify(rows: list[dict[str, Any]]) -> None:
    """Print the outcome of each kernel, and below the kernels that can't run here."""
    columns = ("operator", "kernel", "type", "outcome", "samples", "worst error", "reason")
    table = render.table(*columns, right=("samples", "worst error"))
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
            render.error_text(row["error"]),
            escape(row["reason"]),
        )
    console = render.console()
    if table.row_count:
        render.show(table)
    for (kernel, reason), count in absent.items():
        rows_of = f"{count} row{'s' * (count > 1)}"
        console.print(f"[yellow]not run:[/yellow] {escape(kernel)} ({rows_of}): {escape(reason)}")
    said = [f"{counts[what]} {what}" for what in VERDICT if counts[what]]
    console.print(", ".join(said) or "no kernel to verify")


def tune(found: dict[str, Any]) -> None:
    """Print the measured problems, then one line that counts all."""
    table = render.table("problem", "tensors", "chosen", "times as fast as torch", "was")
    rows = found["rows"]
    for row in rows:
        if row["status"] == "known":
            continue
        served = row["status"] != "left out"
        table.add_row(
            escape(f"{row['op']} {row['name']}"),
            escape(described(row["problem"])),
            escape(row["chosen"]),
            render.ratio_text(row["ratio"]) if served and row["ratio"] else escape(row["reason"]),
            escape(row["was"]),
        )
    console = render.console()
    if table.row_count:
        render.show(table)
    for row in (r for r in rows if r["status"] == "inconclusive"):
        told = f"[yellow]{row['status']}[/yellow] {escape(row['op'])} {escape(row['name'])}"
        console.print(f"{told}: {escape(row['reason'])}")
    counts = {
        status: sum(r["status"] == status for r in rows)
        for status in dict.fromkeys(r["status"] for r in rows)
    }
    texts = [f"{n} {status}" for status, n in counts.items()]
    if found["stopped"]:
        why = "interrupted" if found["stopped"] == "interrupted" else "the budget is spent"
        texts.append(f"{found['left']} left ({why}); run the same command again to continue")
    console.print(", ".join(texts) or "nothing to measure")


def shipped(rows: list[dict[str, Any]], files: list[str]) -> None:
    """Print the kernels for which shipped entries don't count."""
    console = render.console()
    if not rows:
        console.print(f"every kernel in {', '.join(files) or 'no file'} is as it was measured")
        return
    table = render.table("from", "device", "operator", "kernel", "problems", "why", right=("problems",))
    for row in rows:
        count = f"{row['entries']} of {row['of']}"
        table.add_row(*map(escape, (row["file"], row["device"], row["op"], row["kernel"], count, row["why"])))
    render.show(table)


def tiles(found: list[dict[str, Any]]) -> None:
    """Print the tiles of each sample, the kernel's own choice first."""
    console = render.console()
    for entry in found:
        if entry["reason"]:
            console.print(f"{escape(entry['sample'])}: {escape(entry['reason'])}")
            continue
        columns = ("tile", "median", "of floor", "times as fast as chosen")
        table = render.table(*columns, title=entry["sample"], right=("median", "of floor"))
        for row in entry["rows"]:
            timed = row["device_us"] is not None
            table.add_row(
                escape(row["tile"]),
                duration(row["device_us"]) if timed else "",
                f"{row['share']:.0%}" if timed else "",
                render.ratio_text(row["ratio"]) if timed else escape(row["reason"]),
            )
        render.show(table)


def wisdom(rows: list[dict[str, Any]]) -> None:
    """Print the measured problems, one table for each device."""
    console = render.console()
    for device in dict.fromkeys(row["device"] for row in rows):
        table = render.table(
            "operator", "problem", "chosen", "why", "policy", "days", title=device, right=("days",)
        )
        for row in (r for r in rows if r["device"] == device):
            days = f"{(time.time() - row['date']) / 86_400:.0f}"
            cells = (
                row["problem"]["op"],
                described(row["problem"]),
                row["chosen"],
                row["reason"],
                row["policy"],
                days,
            )
            table.add_row(*map(escape, cells))
        render.show(table)
    if not rows:
        console.print("nothing is measured yet")


def described(problem: dict[str, Any]) -> str:
    """Return a problem as text, without its operator. Different problems have different texts.

    The text has the dtype and shape of each tensor, strides that aren't row-major, parameters that
    differ from their defaults, and the flags of the problem.
    """
    from nxcore import session

    spec = session.default().registry.ops.get(problem.get("op", ""))  # nothing is known of what is left out
    defaults = {p.name: p.default for p in spec.params} if spec else {}
    found = []
    for name, value in problem.items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(v, dict) for v in values):
            runs = ((text, len(list(run))) for text, run in itertools.groupby(map(_tensor, values)))
            text = ", ".join(f"{n} x {text}" if n > 1 else text for text, n in runs)
            optional = spec is not None and defaults.get(name, REQUIRED) is not REQUIRED
            found.append(f"{name}={text}" if optional else text)
        elif name in FLAGS:
            found += [FLAGS[name]] if value else []
        elif name not in ("op", "device", "devices"):
            usual = defaults.get(name, REQUIRED)
            found += [] if value in (plain(usual), type(usual).__name__) else [f"{name}={value}"]
    return ", ".join(found)


def _tensor(meta: dict[str, Any]) -> str:
    """Return dtype and shape, and the strides if they aren't row-major."""
    shape, strides = meta["shape"], meta["strides"]
    sizes = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    expected = [math.prod(n for n, _ in sizes[i + 1 :]) for i in range(len(sizes))]
    plain = not math.prod(shape) or [s for _, s in sizes] == expected
    return f"{meta['dtype']}{shape}" + ("" if plain else f" strides {strides}")
