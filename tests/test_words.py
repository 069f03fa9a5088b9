"""The words that users read: plain subjects, the glossary's terms, no persons and no riddles."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.table import for_each

ROOT = Path(__file__).parents[1]
PYTHON = sorted(
    p.relative_to(ROOT).as_posix()
    for folder in ("nxcore", "plugins")
    for p in (ROOT / folder).rglob("*.py")
    if "build" not in p.parts
)
PAGES = sorted(
    p.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "plugins/*/README.md")
    for p in ROOT.glob(pattern)
)
GLOSSARY = ROOT / "docs" / "glossary.md"

BANNED = {
    r"who|whom|whoever": "kernels are not persons: name the subject",
    r"nobody|somebody|everybody|anybody": "kernels are not persons: 'no kernel', 'another user'",
    r"tells?|told": "say 'shows', 'reports', 'says' or 'determines'",
    r"tell": "say 'show', 'report' or 'distinguish'",
    r"asks?|asked|asking": "say 'requested', 'required' or 'checked'",
    r"ever (?:new|other|the same)": "say 'a new one each time'",
    r"stands? around": "name the thing: 'wrapper', 'context'",
    r"comes? closest": "put the figures after their subject: 'closest: numba, 0.9x'",
    r"answers? otherwise": "say 'returns another result'",
    r"by construction": "give the reason",
    r"is no part of": "say 'does not count'",
    r"at hand": "say 'available' or 'in memory'",
    r"meanwhile": "say 'until then' or 'at the same time'",
    r"likewise": "repeat the word",
    r"of late|as ever|for good": "give the time",
}
OPENINGS = r"What|Who|Whoever|Whatever|That which|Nobody|Nothing but|Ever|Such"
"""A sentence does not open with one of these, unless it is a question."""

_BANNED = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): hint for words, hint in BANNED.items()}
_OPENING = re.compile(rf"(?:^|(?<=[.:;!?]\s)|(?<=\n\n))(?:{OPENINGS})\b[^.?!]*[.!]", re.MULTILINE)


def _problems(text: str) -> Iterator[str]:
    for pattern, hint in _BANNED.items():
        for found in pattern.finditer(text):
            yield f"{_around(text, found)!r}: {hint}"
    for found in _OPENING.finditer(text):
        yield f"{found.group()[:60]!r}: begin with the subject"


def _around(text: str, found: re.Match[str]) -> str:
    return " ".join(text[max(0, found.start() - 25) : found.end() + 25].split())


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string: private docstrings too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@for_each("path", PYTHON)
def test_strings_and_docstrings_use_plain_words(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = [f"{path}:{line}: {p}" for line, text in _strings(tree) for p in _problems(text)]
    assert not found, "\n".join(found)


@for_each("path", PAGES)
def test_pages_use_plain_words(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not [*_problems(_prose(text))], path


def _prose(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`|<[^>]*>|\]\([^)]*\)", " ", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Nobody can serve it.", "not persons"),
        ("numba comes closest at 0.01x", "figures after"),
        ("What stands around a call.", "wrapper"),
        ("Done. What is kept of it.", "begin with the subject"),
    ],
)
def test_riddles_are_found(text, hint):
    assert any(hint in problem for problem in _problems(text))


@pytest.mark.parametrize(
    "text", ["What does a call cost?", "The winner is kept.", "a tensor whose strides differ"]
)
def test_plain_sentences_pass(text):
    assert not [*_problems(text)]


def test_the_glossary_has_fourteen_words_first():
    rows = re.findall(
        r"^\| ([^|]+) \|", GLOSSARY.read_text(encoding="utf-8").partition("Torch's terms")[0], re.MULTILINE
    )
    words = (
        [word.strip() for word in rows[2:]]
        if rows[1].startswith("-")
        else [w.strip() for w in rows if w.strip() != "word"]
    )
    assert len(words) == 14
