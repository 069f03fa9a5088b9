"""docs/tutorial.md to the letter: every block in order, every shown line looked for in what is printed.

A ``console`` block holds commands after ``$``, each with lines that it prints: they must come in this order.
A time or an error stands for any number, ``...`` for anything; what is counted must be as many. A ``python``
block goes to the end of the file in its title; a ``diff`` block is applied to it, and what it replaces must
stand there once. There are no others.

All is run by one shell, in a fresh folder and in the virtual environment that the page makes. The network
isn't asked for torch and pytest: they are links to this environment's packages, its plugins left out. Nor is
it for hatchling where that is installed; where it isn't, pip fetches it to build, as for ``test_wheels``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pages.shell import Shell, environment, missing
from tests.table import for_each
from tests.venvs import furnish

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
TEMPLATE = ROOT / "docs" / "template"

FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
MAKE_VENV = "python -m venv venv"


@dataclass(frozen=True)
class Block:
    kind: str
    file: str
    text: str

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command with the lines that are shown of its output."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield command, shown

    def edit(self, path: Path) -> None:
        """Do to a file what the page asks of its reader."""
        before = path.read_text(encoding="utf-8")
        if self.kind == "python":
            path.write_text(f"{before}\n\n{self.text}", encoding="utf-8")
            return
        old, new = ("".join(f"{x[1:]}\n" for x in self.text.splitlines() if x[0] in f" {s}") for s in "-+")
        assert before.count(old) == 1, f"{self.file} must hold once:\n{old}"
        path.write_text(before.replace(old, new), encoding="utf-8")


BLOCKS = [Block(kind, file, text) for kind, file, text in FENCE.findall(PAGE)]


def furnish_with_pytest(venv: Path) -> None:
    """Put into ``venv`` what pip would fetch, and the script ``pytest``."""
    furnish(venv)
    script = venv / "bin" / "pytest"
    script.write_text(f"#!{venv}/bin/python\nimport pytest\nraise SystemExit(pytest.main())\n")
    script.chmod(0o755)


def failures(lines: list[str]) -> list[str]:
    return [line.split()[1] for line in lines if line.startswith("FAILED ")]


@pytest.mark.slow
def test_the_tutorial(tmp_path):
    """Follow it; a command fails where the page shows it to, and nowhere else."""
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "nxcore").symlink_to(ROOT)  # "You have the repository in a folder `nxcore`."
    shell = Shell(folder, environment(tmp_path / "cache"))
    try:
        for block in BLOCKS:
            if block.file:
                block.edit(folder / "nxcore-numpy" / block.file)
                continue
            for command, shown in block.commands():
                output, status = shell.run(command)
                where = f"$ {command}\n{output}"
                assert failures(output.splitlines()) == failures(shown), where
                assert (status != 0) == bool(failures(shown)), where
                assert missing(shown, output) is None, f"{missing(shown, output)!r} didn't come:\n{where}"
                if command == MAKE_VENV:
                    furnish_with_pytest(folder / "venv")
    finally:
        shell.close()


def test_every_block_is_followed():
    assert len(re.findall(r"^\s*(?:```|~~~)", PAGE, re.MULTILINE)) == 2 * len(BLOCKS)
    assert {b.kind for b in BLOCKS} == {"console", "python", "diff"}
    assert all((b.kind == "console") != bool(b.file) for b in BLOCKS)
    commands = [command for b in BLOCKS if not b.file for command, _ in b.commands()]
    assert MAKE_VENV in commands
    assert sum(command.startswith("pytest") for command in commands) > 4
    assert all(b.text.startswith("$ ") for b in BLOCKS if b.kind == "console")


def test_a_reader_of_the_docs_alone_can_save_the_whole_template():
    """A page shows each file whole, and the site has no other copy; the tutorial links to the page."""
    files = {p.name for p in TEMPLATE.iterdir() if p.is_file()}
    shown = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert set(re.findall(r'^--8<-- "template/([\w.]+)"$', shown, re.MULTILINE)) == files
    assert "\n## A complete example\n" in shown
    assert "](plugins.md#a-complete-example)" in PAGE
    assert all(f"`{name}`" in PAGE for name in files)


@pytest.mark.parametrize(
    ("shown", "came"),
    [
        ("=== 1 failed, 76 passed in 2.80s ===", "====== 1 failed, 76 passed in 14.1s ======"),
        ("numpy  50.3 us  0.68 [0.66, 0.72]  8.5e-08", "numpy 1.21 ms   0.70 [0.6, 0.7]   9e-08"),
        ("FAILED a.py::b[float32-x] - ...", "FAILED a.py::b[float32-x] - Broken: ..."),
        ("numpy ready nxcore-numpy 0.1.0 1", " numpy   ready   nxcore-numpy 0.2.10   1 "),
    ],
)
def test_a_line_may_differ_in_numbers_and_in_what_is_left_out(shown, came):
    assert missing(["...", shown], f"before\n{came}\nafter") is None


@for_each(
    ("shown", "came"),
    [
        ("=== 77 passed, 9 skipped in 2.80s ===", "=== 1 failed, 76 passed, 9 skipped in 2.80s ==="),
        ("=== 77 passed, 9 skipped in 2.80s ===", "=== 77 passed, 10 skipped in 2.80s ==="),
        ("=== 77 passed, 9 skipped in 2.80s ===", "=== 78 passed, 9 skipped in 2.80s ==="),
        ("SKIPPED [2] ...: declined", "SKIPPED [3] a.py:9: declined"),
        ("ok backend numpy 2 operators, ...", "ok backend numpy 3 operators, nxcore-numpy"),
        ("needs float32 or float16", "needs float32 or float64"),
        ("FAILED a.py::b[float32-x] - ...", "FAILED a.py::b[float32-y] - Broken"),
        ("first", "second"),
    ],
)
def test_a_line_that_does_not_come_is_found(shown, came):
    assert missing([shown], came) == shown


def test_lines_must_come_in_order():
    assert missing(["first", "second"], "first\nother\nsecond") is None
    assert missing(["first", "second"], "second\nfirst") == "second"


def test_a_diff_that_does_not_fit_is_an_error(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("a = 1\nb = 2\n")
    Block("diff", path.name, " a = 1\n-b = 2\n+b = 3\n").edit(path)
    assert path.read_text() == "a = 1\nb = 3\n"
    with pytest.raises(AssertionError, match=r"module\.py must hold once:"):
        Block("diff", path.name, "-b = 2\n+b = 3\n").edit(path)
