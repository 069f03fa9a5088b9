"""The folder in which Numba keeps the machine code of this checkout's kernels, for tests and benchmarks.

Numba looks at the file of a function, and not at files whose functions it calls. So each state of the plugin
has a folder of its own.
"""

import hashlib
import shutil
import time
from pathlib import Path

KEPT_S = 24 * 3600.0
"""How long a folder of another state is kept after its last use."""


def digest(tree: Path) -> str:
    """Return a digest of the sources of the plugin ``numba`` in a tree."""
    found = hashlib.sha256()
    sources = tree / "plugins" / "numba" / "src"
    for path in sorted(sources.rglob("*.py")):
        found.update(f"{path.relative_to(sources)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def folder(tree: Path) -> Path:
    """Return the folder for the sources as they are, and remove those that nothing has used for a day."""
    found = tree / ".numba_cache" / digest(tree)
    found.mkdir(parents=True, exist_ok=True)
    (found / "used").touch()
    for other in found.parent.iterdir():
        used = other / "used"
        if not used.exists() or time.time() - used.stat().st_mtime > KEPT_S:
            shutil.rmtree(other, ignore_errors=True)
    return found
