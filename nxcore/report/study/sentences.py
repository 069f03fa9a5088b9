"""Sentences about a study's record. Each is computed: none says what the record doesn't."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from nxcore.report.study import facts
from nxcore.report.study.facts import OURS, Place, Record

FEW = 4  # shapes that are named one by one


def sentences(record: Record) -> list[str]:
    """Return the summary of a record.

    Parameters
    ----------
    record : mapping
        What ``nxcore.bench.study.study.run`` returned.
    """
    if not facts.labels(record):
        return ["Nothing was measured.", *_absent(record)]
    return [
        *_first(record),
        *_ours(record),
        *_means(record),
        *_device(record),
        *_compiling(record),
        *_exactness(record),
        *_memory(record),
        _noise(record),
        *_absent(record),
    ]


def _first(record: Record) -> Iterator[str]:
    total = len(facts.clear(record))
    for label, cells in facts.firsts(record).items():
        where = f": {facts.names(cells)}" if len(cells) <= FEW and len(cells) < total else ""
        yield f"{label} is the fastest strict entrant in {len(cells)} of {_shapes(total)}{where}."


def _ours(record: Record) -> Iterator[str]:
    for same in (True, False):
        found = [p for p in facts.places(record, OURS) if p.cell["same"] is same]
        if found:
            padding = "the padding that keeps the size" if same else "padding 1 and a smaller result"
            yield _standing(found, f"with {padding}")
    yield from _lead(record, "total_us", "The")


def _lead(record: Record, what: str, beginning: str) -> Iterator[str]:
    found = [ratio for _, _, ratio in facts.leads(record, OURS, what)]
    if found:
        mean = math.exp(statistics.fmean(map(math.log, found)))
        span = f"{min(found):.2f} to {max(found):.2f} times {OURS}'s, {mean:.2f} in the geometric mean"
        yield f"{beginning} fastest other strict entrant takes {span}."


def _standing(found: Sequence[Place], where: str) -> str:
    tied = [p for p in found if p.tied]
    text = f"{OURS}'s conv2d is first or tied in {len(tied)} of {_shapes(len(found))} {where}"
    others = sorted((p for p in found if not p.tied), key=lambda p: -p.behind)
    if not others:
        return text + "."
    worst = others[0]
    ran = f" (it ran {worst.row['kernel']})" if worst.row.get("kernel") else ""
    longer = f"{worst.behind:.2f} times as long as {worst.best['label']}"
    return f"{text}; at worst it takes {longer}, at {worst.cell['name']}{ran}."


def _means(record: Record) -> Iterator[str]:
    base = record["baseline"]
    means = {label: facts.mean_ratio(record, label) for label in facts.labels(record) if label != base}
    known = sorted(((v, k) for k, v in means.items() if v), reverse=True)
    if known:
        text = ", ".join(f"{label} {mean:.2f}" for mean, label in known)
        yield f"Times as fast as {base} in eager torch, geometric mean over the shapes: {text}."


def _device(record: Record) -> Iterator[str]:
    if record["head"]["device"]["type"] != "cuda":
        return
    firsts = facts.firsts(record, "device_us")
    if not firsts:
        yield "The device's time is not known: the profiler saw no kernel."
        return
    text = ", ".join(f"{label} in {len(cells)}" for label, cells in firsts.items())
    yield f"By the time of the kernels alone the fastest strict entrant is {text}."
    ours = facts.places(record, OURS, "device_us")
    if ours:
        tied = sum(p.tied for p in ours)
        worst = max(ours, key=lambda p: p.behind)
        text = f"By that time {OURS}'s conv2d is first or tied in {tied} of {_shapes(len(ours))}"
        if not worst.first:
            longer = f"{worst.behind:.2f} times as long as {worst.best['label']}, at {worst.cell['name']}"
            text = f"{text}, and at worst takes {longer}"
        yield f"{text}."
        yield from _lead(record, "device_us", "By that time the")


def _compiling(record: Record) -> Iterator[str]:
    parts = []
    for label in facts.labels(record):
        cold, warm = (facts.median_of(record, label, f"{state}_s") for state in ("cold", "warm"))
        if label != record["baseline"] and cold is not None:
            then = "unknown" if warm is None else seconds(warm)
            parts.append(f"{label} {seconds(cold)} and {then}")
    if parts:
        yield (
            "The first call on a shape takes, in the median, with empty caches and with those of an earlier "
            f"process: {', '.join(parts)}."
        )
    starts = {k.removesuffix(" cold"): v for k, v in record["starts"].items() if k.endswith(" cold")}
    if starts:
        text = ", ".join(f"{toolkit} {seconds(v)}" for toolkit, v in starts.items())
        yield f"Before that a process starts its toolkit once, with empty caches: {text}."


def _exactness(record: Record) -> Iterator[str]:
    worst = {label: facts.most_of(record, label, "error") for label in facts.labels(record)}
    classes: dict[str, list[tuple[float, str]]] = {}
    for cell in record["cells"]:
        for row in cell["rows"]:
            error = worst.get(row["label"])
            if "total_us" in row and error is not None and error == row["error"]:
                classes.setdefault(row["precision"], []).append((error, row["label"]))
    for name, found in sorted(classes.items()):
        error, label = max(found)
        which = ", ".join(dict.fromkeys(one for _, one in sorted(found)))
        largest = f"the largest relative error is {error:.1e}, of {label}"
        yield f"Of class {name} against float64: {which}; {largest}."
    for cell, row in facts.fails(record):
        yield f"{row['label']} has no time at {cell['name']}: {row['reason']}."


def _memory(record: Record) -> Iterator[str]:
    most = {label: facts.most_of(record, label, "memory_bytes") for label in facts.labels(record)}
    known = sorted(((v, k) for k, v in most.items() if v), reverse=True)
    if known:
        text = ", ".join(f"{label} {size(value)}" for value, label in known)
        yield f"The most memory that a call needs besides its arguments: {text}."


def _noise(record: Record) -> str:
    noises = [cell["noise"] for cell in record["cells"]]
    text = f"The baseline differs from itself by up to {max(noises):.1%}"
    margins = [cell["margin"] for cell in facts.clear(record)]
    if margins:
        span = _span(min(margins), max(margins))
        text = f"{text}; entrants count as tied within {span}, by shape"
    unclear = len(noises) - len(margins)
    verb = "counts" if unclear == 1 else "count"
    if unclear:
        text = f"{text}; {_shapes(unclear)} with more than {facts.NOISY:.0%} {verb} for no place"
    return f"{text}."


def _absent(record: Record) -> Iterator[str]:
    for label, reason in facts.absent(record).items():
        yield f"{label} is absent: {reason}."
    yield from (f"{note[:1].upper()}{note[1:]}." for note in record["notes"])


def _shapes(count: int) -> str:
    return f"{count} shape{'s' * (count != 1)}"


def _span(low: float, high: float) -> str:
    return f"{low:.1%}" if f"{low:.1%}" == f"{high:.1%}" else f"{low:.1%} to {high:.1%}"


def seconds(value: float) -> str:
    """Return seconds as text.

    >>> seconds(0.0123), seconds(1.234), seconds(0.00004)
    ('12 ms', '1.2 s', '0.04 ms')
    """
    if value >= 1:
        return f"{value:.1f} s"
    return f"{value * 1e3:.0f} ms" if value >= 1e-3 else f"{value * 1e3:.2g} ms"


def size(value: float) -> str:
    """Return bytes as text.

    >>> size(262144), size(51380224)
    ('0.26 MB', '51 MB')
    """
    return f"{value / 1e6:.2g} MB" if value < 1e7 else f"{value / 1e6:.0f} MB"
