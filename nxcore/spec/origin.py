"""Where this package comes from, and the command that installs its companions from there.

No index has them yet, and the name ``nxcore`` is another project's: they are installed from a clone.
"""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPOSITORY = "https://github.com/nxcore/nxcore"
CORE = "nxcore-kernels"
FOLDERS = {
    CORE: ".",
    "nxcore-native": "native",
    **{
        f"nxcore-{name}": f"plugins/{name}"
        for name in ("cce", "cuda", "cupy", "flaggems", "jax", "liger", "numba", "triton")
    },
}
"""Distribution -> its folder in a clone."""


def installing(*names: str) -> str:
    """Return the command that installs distributions of this project from here.

    Parameters
    ----------
    *names : str
        Names in `FOLDERS`.

    Returns
    -------
    str
        A command for the shell: with the path of the clone where this package is one or was installed from
        one, by a path in it if it is the current folder. Where there is none, what to do in one.

    Examples
    --------
    >>> installing("nxcore-numba").endswith("plugins/numba")
    True
    """
    clone = _clone()
    folders = [FOLDERS[name] for name in names]
    if clone is not None and clone != Path.cwd():
        return f"pip install {' '.join(shlex.quote(str(clone / folder)) for folder in folders)}"
    command = f"pip install {' '.join('.' if folder == '.' else f'./{folder}' for folder in folders)}"
    return command if clone else f"in a clone of {REPOSITORY}: {command}"


def _clone() -> Path | None:
    """Return the clone that is the current folder, has this file, or was what pip installed; else None."""
    candidates = (Path.cwd(), Path(__file__).parents[2], _installed_from())
    return next((path for path in candidates if path is not None and _is_clone(path)), None)


def _is_clone(path: Path) -> bool:
    return all((path / folder / "pyproject.toml").is_file() for folder in FOLDERS.values())


def _installed_from() -> Path | None:
    """Return the folder that pip installed the core from; see PEP 610."""
    try:
        url = json.loads(distribution(CORE).read_text("direct_url.json") or "{}").get("url", "")
    except (PackageNotFoundError, ValueError, AttributeError):
        return None
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
