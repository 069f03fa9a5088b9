"""``nxcore tune OP --tiles``: a kernel's tiles on real workloads, timed against its own choice."""

from __future__ import annotations

from typing import Any


def collect(
    op: str, kernel: str, samples: list[str], dtypes: list[str], device: str | None, most: int
) -> list[dict[str, Any]]:
    """Return one entry for each sample and dtype: name, and one row for each tile or the reason for none."""
    from nxcore import session
    from nxcore.cli import render
    from nxcore.errors import InvalidInputError, UnsupportedProblemError, nearest
    from nxcore.offline.ahead import of_samples
    from nxcore.offline.tiles import swept
    from nxcore.spec.device import available

    registry = session.default().registry
    spec = registry.spec(op)
    owned = {b.label(k): (b, k) for b, k in registry.kernels(op)}
    if kernel not in owned:
        raise InvalidInputError(f"{op} has no kernel {kernel!r}{nearest(kernel, owned)}", argument="tiles")
    machine = registry.probe(*owned[kernel])
    if not machine or machine.simulated:  # an interpreter's times mean nothing
        raise InvalidInputError(f"{kernel} can't be timed here: {machine.reason}", argument="tiles")
    one = dtypes or ["float32"]  # a table of tiles is made for one dtype at a time
    cells = of_samples(registry, available(device), [op], samples=samples, dtypes=one)
    found: list[dict[str, Any]] = []
    with render.progress(f"tune {op} {kernel}") as advance:
        for cell in cells:
            try:
                rows = swept(spec, *owned[kernel], cell.build(), most=most, advance=advance)
            except UnsupportedProblemError as error:
                found.append({"sample": cell.name, "reason": str(error), "rows": []})
                continue
            found.append({"sample": cell.name, "reason": "", "rows": [r.to_dict() for r in rows]})
    return found
