"""Every record has the commit at which it was made and its command, in the table of docs/records.md."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
ROWS = [tuple(line.strip("| ").split(" | ")) for line in PAGE.splitlines() if line.startswith("| `")]
NAMED = re.compile(r"(?:\b([a-z0-9]+(?:-[a-z0-9]+)+)/)?\b(2026-\d\d-\d\d[\w-]*\.(?:jsonl|json|txt|csv))")
"""A record's name in a text, with its folder where that is given."""


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """Ask git about this repository."""
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


def test_the_table_has_each_record_once():
    files = [path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*") if path.is_file()]
    assert sorted(name.strip("`") for name, _, _ in ROWS) == sorted(files)


@pytest.mark.parametrize(("name", "commit", "command"), ROWS, ids=[name.strip("`") for name, _, _ in ROWS])
def test_a_record_names_its_commit_and_its_command(name, commit, command):
    assert re.fullmatch(r"[0-9a-f]{8}", commit)
    assert re.search(r"`[^`]+`", command), "the command stands in backticks"


@pytest.mark.skipif(git("rev-parse", "--git-dir").returncode != 0, reason="needs the history of a clone")
@pytest.mark.skipif(git("rev-parse", "--is-shallow-repository").stdout != "false\n", reason="a shallow clone")
def test_the_commits_have_the_records_and_their_scripts():
    wanted = [f"{commit}:benchmarks/results/{name.strip('`')}" for name, commit, _ in ROWS]
    wanted += [
        f"{c}:{script}" for _, c, command in ROWS for script in re.findall(r"benchmarks/\w+\.py", command)
    ]
    found = subprocess.run(
        ["git", "-C", str(ROOT), "cat-file", "--batch-check"],
        input="\n".join(wanted),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line for line in found.stdout.splitlines() if line.endswith("missing")] == []


def test_a_page_names_records_that_are_there():
    """Decisions may name older ones, which the history has."""
    lacking = []
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/performance/*.md")):
        for folder, name in NAMED.findall(page.read_text(encoding="utf-8")):
            places = [RESULTS / folder] if folder else RESULTS.iterdir()
            lacking += [] if any((place / name).exists() for place in places) else [f"{page.name}: {name}"]
    assert lacking == []
