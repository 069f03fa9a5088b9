"""Draws the ladder of ``choosing.md``: run it where a rung has changed."""

from __future__ import annotations

from pathlib import Path

from nxcore.choose.ladder import ANY, LADDER

PAGE = Path(__file__).with_name("choosing.md")
BEGIN, END = "<!-- drawn by docs/rungs.py -->\n", "<!-- until here -->\n"


def drawn() -> str:
    """Return the table."""
    rows = ["| | rung | policies | when | what serves | what measures |", "|---|---|---|---|---|---|"]
    for number, rung in enumerate(LADDER, 1):
        named = ", ".join(f"`{policy}`" for policy in rung.policies if policy != "known")
        policies = "any" if rung.policies == ANY else named
        rows.append(
            f"| {number} | {rung.name} | {policies} | {rung.when} | {rung.source} | {rung.measures} |"
        )
    return "\n".join(rows) + "\n"


def redrawn(page: str) -> str:
    """Return the page with its drawn part as it should be."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{drawn()}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
