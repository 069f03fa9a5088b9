"""The pages: self-contained, within their size, safe against what a record says; and the command."""

import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nxcore.errors import InvalidInputError, NxcoreError
from nxcore.report import page
from nxcore.report.figures import joined
from nxcore.report.markdown import markdown
from nxcore.report.records import read
from tests.null.cli.commands import command
from tests.report.lines import HEAD, record, row, write
from tests.stand_ins import stand_in
from tests.strict import strict

page_has = stand_in(page)

ROOT = Path(__file__).parents[2]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


class Elements(HTMLParser):
    """Collects every element with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def small(tmp_path):
    return joined(read([write(tmp_path / "a.jsonl", *record())]))


@pytest.fixture
def without_plotly(page_has):
    page_has(plotly=lambda: "")


@pytest.mark.usefixtures("without_plotly")
def test_the_page_loads_nothing(small):
    elements = Elements(page.html(small)).found
    addresses = [
        v for _, attributes in elements for k, v in attributes.items() if k in ("src", "href", "action")
    ]
    assert addresses
    assert all(address.startswith(("#", "data:")) for address in addresses)
    (policy,) = [a["content"] for t, a in elements if t == "meta" and a.get("http-equiv")]
    assert "default-src 'none'" in policy  # so the browser itself keeps whatever plotly could ask for from it
    assert not re.search(r"@import|url\((?!data:)", page.html(small))


@pytest.mark.usefixtures("without_plotly")
def test_what_a_record_says_cannot_become_markup(small, tmp_path):
    evil = "</script><script>alert(1)</script>"
    head = HEAD | {"device": {"name": evil}}
    text = page.html(joined(read([write(tmp_path / "b.jsonl", head, row(op=evil, label=evil))])))
    assert "alert(1)" in text
    assert [t for t, _ in Elements(text).found].count("script") == [
        t for t, _ in Elements(page.html(small)).found
    ].count("script")
    assert "<script>alert" not in text


@pytest.mark.usefixtures("without_plotly")
def test_the_page_holds_the_joined_data(small):
    (text,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', page.html(small), re.DOTALL
    )
    assert json.loads(text) == json.loads(json.dumps(small))


@pytest.mark.usefixtures("without_plotly")
def test_every_control_and_figure_has_a_name(small):
    elements = Elements(page.html(small)).found
    ids = {a["id"] for _, a in elements if "id" in a}
    for tag, attributes in elements:
        if tag == "section":
            assert attributes["aria-labelledby"] in ids
        if tag == "a":
            assert attributes["href"][1:] in ids
    assert ("html", {"lang": "en"}) in elements


def test_the_page_of_all_committed_records_stays_below_its_limit():
    pytest.importorskip("plotly", reason="the extra `report` isn't installed")
    text = page.html(joined(read([RESULTS])))
    assert 1_000_000 < len(text.encode()) < page.LIMIT


def test_a_page_beyond_its_limit_is_an_error(small, page_has):
    page_has(plotly=lambda: " " * page.LIMIT)
    with pytest.raises(
        NxcoreError, match=r"the page would have 8\.\d MB, more than 8 MB: give fewer records"
    ):
        page.html(small)


def test_without_plotly_the_error_says_how_to_get_it(small, page_has):
    page_has(files=_no_plotly(page.files))
    with pytest.raises(NxcoreError, match=re.escape("pip install plotly")):
        page.html(small)


def _no_plotly(files):
    def found(name):
        if name == "plotly":
            raise ModuleNotFoundError(name)
        return files(name)

    return found


def test_markdown_says_the_same(small):
    lines = markdown(small).splitlines()
    assert lines[0] == "# Kernels against torch on Invented 9000"
    assert "| **nxcore's choice** | 12 | 2.88 | 1.00 | 1.00 | 0 |" in lines
    assert "| always triton | 12 | 2.45 | 0.50 | 0.50 | 4 |" in lines
    assert "| add | 6 | 2.52 | 1.00 | 1.00 |" in lines
    large = "| sum | large | float32 | 800,000,000 | 100.0 | triton | 8.3 | 12.00 [11.76, 12.24] |"
    assert any(line.startswith(large) for line in lines)
    assert "| add | jax | 4 |  | 2 | WRONG (2) |" in lines
    assert "- numba: needs CPU tensors, got cuda &lt;b>here&lt;/b> (12)" in lines
    assert "- jax WRONG, add, large, bfloat16: " in lines
    assert all(
        line.count("|") == lines[i - 1].count("|") for i, line in enumerate(lines) if line.startswith("|---")
    )


def test_markdown_keeps_a_border_in_a_reason_out_of_the_table(tmp_path):
    found = joined(
        read(
            [
                write(
                    tmp_path / "a.jsonl", HEAD, row(), row("a", 2.0), row("a", None, sample="b", reason="x|y")
                )
            ]
        )
    )
    assert "| add | a | 1 | 1 |  | x\\|y (1) |" in markdown(found)


def run(*words, status=0):
    return command("report", *words, status=status)


@pytest.mark.usefixtures("without_plotly")
def test_the_command_writes_a_page_and_goes_on_after_a_bad_line(tmp_path):
    path = write(tmp_path / "a.jsonl", *record(), "{")
    html, text = tmp_path / "deep" / "r.html", tmp_path / "r.md"
    done = run(path, "--output", html)
    assert f"12 cells of 1 runs written to {html}" in done.stdout.replace("\n", " ").replace("  ", " ")
    assert "left out: " in done.stderr
    assert "a.jsonl:74: not JSON" in done.stderr
    assert html.read_text("utf-8").startswith("<!doctype html>")
    run(path, "--output", text)
    assert text.read_text("utf-8").startswith("# Kernels against torch")
    assert "a.jsonl:74: not JSON" in text.read_text("utf-8")


@pytest.mark.usefixtures("without_plotly")
def test_a_record_with_numbers_that_json_lacks_is_read(tmp_path):
    """Records of before held ``Infinity``; a page, Markdown and JSON of them hold none."""
    head, *rows = record()
    path = write(tmp_path / "a.jsonl", head | {"effort": {"spin_s": math.inf}}, row(error=math.nan), *rows)
    assert "Infinity" in path.read_text("utf-8")
    assert "NaN" in path.read_text("utf-8")
    html = tmp_path / "r.html"
    run(path, "--output", html)
    (data,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', html.read_text("utf-8"), re.DOTALL
    )
    assert strict(data)["runs"][0]["effort"] == {"spin_s": None}
    assert strict(run(path, "--json").stdout) == strict(data)


@pytest.mark.usefixtures("without_plotly")
def test_the_command_says_in_one_line_which_files_are_of_another_kind(tmp_path):
    write(tmp_path / "a.jsonl", *record())
    other = write(tmp_path / "search.jsonl", {"phase": "search", "epoch": 1}, {"phase": "search", "epoch": 2})
    done = run(tmp_path, "--output", tmp_path / "r.html")
    assert done.stderr == ""
    said = " ".join(done.stdout.split())
    assert said.count("left out") == 1
    assert f"1 file without rows of `nxcore bench --record` left out: {other}" in said


def test_the_command_reads_what_this_repository_measured_without_an_error(tmp_path):
    done = run(ROOT / "benchmarks" / "results", "--output", tmp_path / "r.md")
    assert done.stderr == ""


def test_the_command_prints_json_and_writes_nothing(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", *record())
    monkeypatch.chdir(tmp_path)
    found = json.loads(run(path, "--json").stdout)
    assert len(found["cells"]) == 12
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_the_command_refuses_another_format(tmp_path):
    path = write(tmp_path / "a.jsonl", *record())
    with pytest.raises(InvalidInputError, match=r"output must end in \.html or \.md, got report\.pdf"):
        run(path, "--output", "report.pdf")


def test_reading_a_record_needs_no_torch():
    code = "import sys, nxcore.report.figures, nxcore.report.markdown; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
