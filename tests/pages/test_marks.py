"""What the pages leave out has a reason, and what they name within their text exists."""

import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer

from nxcore.cli import app
from tests.pages.blocks import FOLLOWED, ROOT, Block, blocks, pages
from tests.pages.runner import Fault, Reader
from tests.table import for_each

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN = {"console", "python"}
OTHERS = {"text", "toml", "diff"}
SAID = re.compile(r"`((?:nxcore|make|python|pytest) [^`]+)`")
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_every_block_has_a_language_of_which_it_is_known_whether_it_runs():
    assert {block.language for block in BLOCKS} <= RUN | OTHERS
    fences = sum(len(re.findall(r"^ *```", (ROOT / page).read_text("utf-8"), re.MULTILINE)) for page in PAGES)
    assert fences == 2 * len(BLOCKS) > 100
    assert {page for page in FOLLOWED if not (ROOT / FOLLOWED[page]).exists()} == set()
    bare = [str(b) for b in BLOCKS if b.language == "console" and not b.text.startswith("$ ")]
    assert bare == []


def test_what_is_left_out_has_a_reason_and_is_there():
    lacking = []
    for block in BLOCKS:
        given = [command for command, _ in block.commands()]
        for mark in block.given("not run"):
            known = not mark.command or any(command.startswith(mark.command) for command in given)
            named = re.findall(r"(?:tests|benchmarks)/[\w/]+\.py", mark.text)
            if len(mark.text.split()) < 3 or not known or not all((ROOT / name).exists() for name in named):
                lacking.append(f"{block}: {mark}")
    assert lacking == []


def test_most_of_what_pages_show_is_run():
    asked = [(b, c) for b in BLOCKS if b.page not in FOLLOWED for c, _ in b.commands()]
    left = [c for b, c in asked if b.left_out(c, gpu=False)]
    snippets = [b for b in BLOCKS if b.language == "python" and b.page not in FOLLOWED]
    assert len(asked) > 45
    assert len(left) < len(asked) / 2
    assert len([b for b in snippets if b.left_out("", gpu=False)]) <= 1
    assert len(snippets) > 25


def test_the_list_of_what_is_left_out_is_printed():
    done = subprocess.run(
        [sys.executable, "-m", "tests.pages"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == sum(len(block.given("not run")) for block in BLOCKS) > 10
    assert any(re.match(r"README\.md:\d+: make test: it is the suite", line) for line in lines)


def said() -> list[tuple[str, str]]:
    """Return (page, command) of each command within the text of a page."""
    found = []
    for page in PAGES:
        text = re.sub(
            r"^ *```.*?^ *```$", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        found += [(page, command) for command in SAID.findall(text)]
    return found


def wrong(command: str) -> str:
    """Return what a command names that doesn't exist; empty if all of it does."""
    try:
        program, *words = shlex.split(command.replace("\\|", "|"), comments=True)
    except ValueError as error:
        return str(error)
    if program == "make":
        return ", ".join(w for w in words if "=" not in w and w not in TARGETS)
    if program == "python" and words[0].endswith(".py"):
        path = ROOT / words[0]
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        options = [w for w in words[1:] if re.fullmatch(r"--[a-z-]+", w)]
        # An option is named, or is a field of what is parsed.
        return "" if text and all(o in text for o in options) else f"{words[0]} {' '.join(options)}"
    if program == "nxcore":
        return unknown(typer.main.get_command(app), words)
    return ""


def unknown(group: Any, words: list[str]) -> str:
    """Return the first word that is no command or option of nxcore."""
    found = group
    for word in words:
        if (inner := getattr(found, "commands", {})) and re.fullmatch(r"[a-z][a-z-]*", word):
            if word not in inner:
                return word
            found = inner[word]
        elif word.startswith("--"):
            known = {name for p in found.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
            if word.partition("=")[0] not in known:
                return word
    return ""


def test_commands_within_the_text_name_what_exists():
    assert len(said()) > 100
    assert [f"{page}: {command}: {what}" for page, command in said() if (what := wrong(command))] == []


@pytest.mark.parametrize(
    "command", ["nxcore benhc", "nxcore bench --fats", "make tset", "python benchmarks/no.py"]
)
def test_what_does_not_exist_is_found(command):
    assert wrong(command)


def page_of(text: str) -> list[Block]:
    return blocks("page.md", text)


def test_marks_belong_to_the_block_below_them(tmp_path):
    first, second = page_of(
        "<!-- setup: a = 1 -->\n<!-- not run: no reason at all -->\n```python\nb = a\n```\n\n"
        "<!-- setup: of nothing -->\n\ntext\n\n```console\n$ one \\\n    two\nshown\n$ three  # why\n```\n"
    )
    assert (first.line, first.setup, first.left_out("", gpu=False)) == (3, "a = 1", "no reason at all")
    assert second.marks == ()
    assert list(second.commands()) == [("one      two", ["shown"]), ("three  # why", [])]


def test_a_mark_for_a_gpu_ends_where_there_is_one():
    (block,) = page_of("<!-- not run, a b: needs a GPU, and much -->\n```console\n$ a b c\n$ a\n```\n")
    assert block.left_out("a b c", gpu=False)
    assert not block.left_out("a b c", gpu=True)
    assert not block.left_out("a", gpu=False)


@for_each(
    ("text", "fault"),
    [
        ("```python\nmissing\n```\n", r"page\.md:1 raised\n(.*\n)*.*name 'missing' is not defined"),
        (
            "```python\ndef f():\n    return missing\n```\n",
            "a function reads missing, which the",
        ),
        (
            "```python\nprint(1)\n```\n\n<!-- printed -->\n```text\na 2 b\n```\n",
            "shows 'a 2 b', which",
        ),
        ("```console\n$ true\n$ false\n```\n", "'false' ended with 1"),
        ("```console\n$ echo one\ntwo\n```\n", "'echo one' must print 'two'"),
        ("<!-- setup: exit 3 -->\n```console\n$ true\n```\n", "the shell ended"),
        ('```python title="conftest.py"\na = 1\n```\n', r"must be conftest\.py as it is"),
        ('```python\n--8<-- "no/file.py"\n```\n', "includes docs/no/file.py, which"),
        ("```console\n$ sleep 9\n```\n", "took more than 0.2 s"),
    ],
)
def test_what_is_at_fault_is_found(text, fault, tmp_path):
    reader = Reader(tmp_path, gpu=False, most_s=0.2 if "sleep" in text else 60)
    with pytest.raises((Fault, AssertionError), match=fault):
        reader.read(page_of(text))


def test_a_page_without_fault_passes(tmp_path):
    reader = Reader(tmp_path, gpu=False)
    text = (
        "<!-- setup: import math -->\n```python\nx = math.pi\n```\n\n```python\nprint(f'{x:.1f} us')\n```\n\n"
        "<!-- printed -->\n```text\n7.7 us\n```\n\n"
        "<!-- setup: cd /; a=4 -->\n<!-- not run, false: it fails -->\n"
        "```console\n$ false\n$ echo $a $PWD\n4 /\n```\n"
    )
    reader.read(page_of(text))
    assert reader.printed.strip() == "4 /"
