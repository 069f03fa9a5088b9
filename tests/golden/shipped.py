"""The golden file of the shipped problems: which kernel serves each, and how ``explain`` says so.

``python -m tests.golden.shipped`` writes the files anew. A commit that moves a line says why.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nxcore import session
from nxcore.choose.explanation import Explanation, Origin
from nxcore.measure.decision import decide
from nxcore.offline import shipped
from nxcore.store import transfer
from nxcore.store.pages import Page
from nxcore.store.pages import page as page_of
from nxcore.store.problems import described
from nxcore.store.wisdom import is_pair

FOLDER = Path(__file__).parent


def written(path: Path) -> str:
    """Return the text of one shipped file: its problems in order, a paragraph each."""
    registry = session.default().registry
    _, pages = transfer.read(path, checked=False)
    found: list[str] = []
    for key, document in pages.values():
        if is_pair(key):
            continue
        page, spec = page_of(document), registry.known(key["op"])
        assert page is not None, key
        assert spec is not None, key
        origin = Origin(page.policy, page.date, page.versions)
        text = str(Explanation(described(spec, key), page.decision, origin)).splitlines()
        # Its age changes, and the command to measure it again is the same for all.
        kept = [line for line in text if not line.startswith(("  measured ", "  to measure it again"))]
        found.append("\n".join([*kept, *anew(page)]) + "\n")
    return "\n".join(sorted(found))


def anew(page: Page) -> Iterator[str]:
    """Yield what the code decides today from the recorded times, as the process that read them would."""
    raced = [replace(c, ratio=None, p_value=None) for c in page.decision.candidates]
    for regime in ("eager", "captured") if page.decision.captured else ("eager",):
        if raced[0].timing and raced[0].native:
            yield f"  decided anew, {regime}: {decide(raced, page.again, regime).chosen}"


def golden(path: Path) -> Path:
    """Return the golden file of a shipped file."""
    return FOLDER / f"{path.stem}.txt"


def main() -> None:
    """Write the golden files."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for path in shipped.files():
        golden(path).write_text(text := written(path), encoding="utf-8")
        print(f"{golden(path).name}: {text.count(' runs it (')} problems")


if __name__ == "__main__":
    main()
