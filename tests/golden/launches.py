"""The golden files of launches: how often each function runs in a replay, by network.

``GOLDEN=write python -m pytest tests/nn/test_launches.py tests/nas/test_launches.py`` writes them anew.
"""

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.nn.tape import Tape

TORCH = "2.13."
FOLDER = Path(__file__).parent / "launches"


def held(name: str, tape: Tape) -> None:
    """Compare what the captures of ``tape`` launch with the golden file of a network."""
    if not torch.__version__.startswith(TORCH):
        pytest.skip(f"the launches were counted with torch {TORCH}: got {torch.__version__}")
    assert tape.captured, "nothing was captured"
    parts = []
    for lines in tape.lines:
        counts = Counter(str(func) for func, *_ in lines if not _is_view(func))
        parts.append("".join(f"{count:6} {func}\n" for func, count in sorted(counts.items())))
    text, path = "\n".join(parts), FOLDER / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, (
        f"the launches of {name} moved; see tests/golden/README.md"
    )


def _is_view(func: torch._ops.OpOverload) -> bool:
    """Return whether a function launches nothing: its result is a view, or no tensor."""
    returns = func._schema.returns
    return all(r.alias_info is not None and not r.alias_info.is_write for r in returns) or not any(
        "Tensor" in str(r.type) for r in returns
    )
