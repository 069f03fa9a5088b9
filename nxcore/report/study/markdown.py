"""A study's record -> Markdown: the sentences, then the figures as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nxcore.report.study import facts
from nxcore.report.study.facts import Record
from nxcore.report.study.sentences import seconds, sentences, size


def title(record: Record) -> str:
    """Return the title of a study's pages."""
    return f"One small convolution by several toolkits on {record['head']['device']['name']}"


def setting(record: Record) -> str:
    """Return what was measured, how, when and with what."""
    head, of = record["head"], record["head"]["convolution"]
    versions = ", ".join(f"{k} {v}" for k, v in head["versions"].items())
    return (
        f"Batch {of['batch']}, {of['channels']} channels to {of['filters']}, {of['dtype']}. {head['method']} "
        f"Measured {head['date']} in {head['seconds']:.0f} s, with {versions}."
    )


def markdown(record: Record) -> str:
    """Return the page."""
    lines = [
        f"# {_text(title(record))}",
        "",
        *(f"- {_text(s)}" for s in sentences(record)),
        "",
        _text(setting(record)),
        "",
    ]
    known = facts.labels(record)
    lines += [f"## Times as fast as {record['baseline']}", "", *ratios(record)]
    lines += ["## Time of a call, us: total, host, device", ""]
    lines += _table(("shape", *known), ([c["name"], *(_times(c, k) for k in known)] for c in record["cells"]))
    lines += ["## First calls, error and memory", ""]
    lines += _table(
        ("entrant", "what it is", "first call, cold", "warm disk cache", "largest error", "most memory"),
        (_entrant(record, entrant) for entrant in record["entrants"] if entrant["label"] in known),
    )
    return "\n".join(lines)


def ratios(record: Record) -> list[str]:
    """Return the lines of a table: times as fast as the baseline, by shape and entrant."""
    known = facts.labels(record)
    return _table(("shape", *known), ([c["name"], *(_ratio(c, k) for k in known)] for c in record["cells"]))


def _entrant(record: Record, entrant: facts.Row) -> list[str]:
    label = entrant["label"]
    cold, warm = (facts.median_of(record, label, f"{state}_s") for state in ("cold", "warm"))
    error, memory = (facts.most_of(record, label, what) for what in ("error", "memory_bytes"))
    return [
        label,
        entrant["what"],
        "" if cold is None else seconds(cold),
        "" if warm is None else seconds(warm),
        "" if error is None else f"{error:.1e}",
        "" if memory is None else size(memory),
    ]


def _ratio(cell: facts.Cell, label: str) -> str:
    row = facts.row_of(cell, label)
    return f"{row['ratio'][0]:.2f} [{row['ratio'][1]:.2f}, {row['ratio'][2]:.2f}]" if row else ""


def _times(cell: facts.Cell, label: str) -> str:
    row = facts.row_of(cell, label)
    times = (row.get(what) for what in ("total_us", "host_us", "device_us")) if row else ()
    return ", ".join("?" if t is None else f"{t:.1f}" for t in times)


def _text(value: str) -> str:
    return str(value).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(map(_text, row))} |" for row in rows]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body, ""]
