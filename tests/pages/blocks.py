"""What a page tells its reader to do: its fenced blocks in order, with the marks above them.

A mark is an HTML comment directly above a block, which a reader of the page doesn't see:

- ``<!-- not run: REASON -->`` leaves the block out, ``<!-- not run, COMMAND: REASON -->`` the commands of the
  block that begin so. Where the reason is that it needs a GPU, it runs where there is one.
- ``<!-- setup: CODE -->`` runs before the block, in its language: names that the page doesn't define.
- ``<!-- printed -->``, above a block of ``text``: what the block before it prints.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GPU = "needs a GPU"
FOLLOWED = {"docs/tutorial.md": "tests/test_tutorial.py"}
"""Pages that have a test of their own, which follows them."""

COMMENT = r"(?:^[ ]*<!--(?:(?!-->).)*-->\n)*"
FENCE = re.compile(
    rf"(?P<marks>{COMMENT})^(?P<indent>[ ]*)```[ ]?(?P<head>\S[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"<!--\s*(not run|setup|printed)(?:, ([^:]+))?(?::\s*(.*?))?\s*-->", re.DOTALL)


@dataclass(frozen=True)
class Mark:
    """One mark; ``command`` is how the commands begin that it is about, empty for the whole block."""

    kind: str
    command: str
    text: str


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, line, language, the file in its title, what it holds, and its marks."""

    page: str
    line: int
    language: str
    title: str
    text: str
    marks: tuple[Mark, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def given(self, kind: str) -> list[Mark]:
        """Return the marks of one kind."""
        return [mark for mark in self.marks if mark.kind == kind]

    @property
    def setup(self) -> str:
        """The code that runs before the block."""
        return "\n".join(textwrap.dedent(mark.text) for mark in self.given("setup"))

    def left_out(self, command: str, *, gpu: bool) -> str:
        """Return why the block, or a command of it, isn't run; empty if it is."""
        for mark in self.given("not run"):
            if command.startswith(mark.command) and not (gpu and mark.text.startswith(GPU)):
                return mark.text
        return ""

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command with the lines that are shown of its output; a backslash continues a line."""
        whole = self.text.replace("\\\n", " ")
        for part in re.split(r"^\$ ", whole, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield command, shown


def pages() -> list[str]:
    """Return the pages with blocks, the README first."""
    found = [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "native/README.md")),
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("plugins/*/README.md")),
    ]
    return [str(path.relative_to(ROOT)) for path in found if "```" in path.read_text(encoding="utf-8")]


def blocks(page: str, text: str | None = None) -> list[Block]:
    """Return the blocks of a page, whose text is read if it isn't given."""
    if text is None:
        text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        head = re.fullmatch(r'\{? ?\.?(\w+) ?\}?(?: title="([^"]+)")?', match["head"].strip())
        assert head, f"{page} must have a language and at most a title behind ```, got {match['head']}"
        marks = tuple(
            Mark(m[1], (m[2] or "").strip(), (m[3] or "").strip()) for m in MARK.finditer(match["marks"])
        )
        line = text.count("\n", 0, match.start("indent")) + 1
        body = textwrap.dedent(match["text"])
        found.append(Block(page, line, head[1], head[2] or "", body, marks))
    return found
