"""``nxcore cache``: show and remove the files that nxcore keeps on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Show or remove the files that nxcore keeps on disk.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

PARTS = {
    "v1": "verdicts, measurements, quarantine and journal",
    "numba": "kernels that Numba compiled",
    "cuda": "kernels that nvcc or NVRTC compiled",
}
"""nxcore's folders in the cache, and their content."""


def collect() -> list[dict[str, Any]]:
    """Return one row for each part on disk: name, content, folder, number of files, bytes."""
    from nxcore.settings import cache_folder

    root = cache_folder()
    return [_row(root, name) for name in PARTS if root is not None and (root / name).is_dir()]


def remove(part: str = "") -> list[dict[str, Any]]:
    """Remove one part or all; return the rows of the removed parts.

    Raises
    ------
    InvalidInputError
        If ``part`` is not a key of ``PARTS``.
    """
    import shutil

    from nxcore.errors import InvalidInputError, one_of

    if part and part not in PARTS:
        raise InvalidInputError(one_of("part", part, PARTS), argument="part")
    rows = [row for row in collect() if part in ("", row["part"])]
    for row in rows:
        folder = Path(row["folder"])
        folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
    return rows


def _row(root: Path, name: str) -> dict[str, Any]:
    sizes = [path.stat().st_size for path in (root / name).rglob("*") if path.is_file()]
    return {
        "part": name,
        "holds": PARTS[name],
        "folder": str(root / name),
        "files": len(sizes),
        "bytes": sum(sizes),
    }


@app.command()
def show(json: Json = False) -> None:
    """List the files on disk: part, folder, number of files, size."""
    from nxcore.cli import render

    rows = collect()
    render.json(rows) if json else render.cache(rows)


@app.command()
def clear(
    part: Annotated[str, typer.Argument(help="Only this part, such as numba.", show_default="all")] = "",
    json: Json = False,
) -> None:
    """Remove the files. Kernels are compiled, verified and measured again at their next use."""
    from nxcore.cli import render

    rows = remove(part)
    files, size = sum(row["files"] for row in rows), sum(row["bytes"] for row in rows)
    render.json(rows) if json else render.line(f"removed {files} files, {size / 1e6:.1f} MB")
