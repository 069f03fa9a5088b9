"""The documentation's site: what stands where in its navigation, its reference, and what its buttons copy."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nxcore
from nxcore import nn, plugin
from nxcore.ops import nxcore_ops

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAV = SETTINGS.partition("\nnav:\n")[2].splitlines()
BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
REPOSITORY = "https://github.com/nxcore/nxcore"
PUBLIC = {
    "nxcore": set(nxcore.__all__),
    "nxcore.nn": set(nn.__all__),
    "nxcore.plugin": set(plugin.__all__),
    "nxcore.distributed": {"agree"},
    "nxcore.interop.library": {"define_all"},
    "nxcore.offline.seen": {"Row"},
    "nxcore.offline.status": {"Status"},
    "nxcore.offline.survey": {"Served"},
    "nxcore.observe.profiling": {"Profile", "Spent", "profile_op"},
    "nxcore.spec.checks": {
        n for n in vars(importlib.import_module("nxcore.spec.checks")) if n.startswith("require_")
    },
}


def test_install_comes_first_and_the_repository_is_linked():
    assert NAV[0] == "  - Install and first steps: install.md"
    assert f"\nrepo_url: {REPOSITORY}\n" in SETTINGS


def test_decisions_and_performance_are_collapsed():
    """``navigation.sections`` opens the top level of the navigation; what is below it opens by a click."""
    assert "navigation.sections" in SETTINGS
    assert "navigation.expand" not in SETTINGS
    pages = [line for line in NAV if "adr/" in line or "performance/" in line]
    assert len(pages) > 30
    assert {len(line) - len(line.lstrip()) for line in pages} == {10}
    assert {"      - Performance:", "      - Decisions:"} <= set(NAV)


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"([\w/-]+\.md)$", "\n".join(NAV), re.MULTILINE))
    assert listed == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


def test_the_index_of_decisions_has_their_titles_and_each_begins_with_its_status():
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    pages = {path: path.read_text(encoding="utf-8").splitlines() for path in DOCS.glob("adr/0*.md")}
    rows = [f"| [{path.name[:4]}]({path.name}) | {lines[0][7:]} |" for path, lines in pages.items()]
    assert sorted(rows) == sorted(line for line in index.splitlines() if line.startswith("| ["))
    assert [path.name for path, lines in pages.items() if lines[2] != "## Status"] == []


def prose(page: Path) -> list[str]:
    """Return a page's lines without code, tables, images, options and addresses, which can't be wrapped.

    What a script draws is left out too.
    """
    text = page.read_text(encoding="utf-8")
    for taken in (r"^<!-- drawn .*?^<!-- until here -->$", r"^ *```.*?^ *```$", r"^ *<!--.*?-->$"):
        text = re.sub(taken, "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not re.match(r" *(\||!\[)| +members: ", line)]
    return [re.sub(r"\]\([^)]*\)", "]", line) for line in lines]


def test_lines_of_pages_wrap_at_100():
    pages = (
        *DOCS.rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / folder / "README.md" for folder in ("native", "tests", "benchmarks")),
        *ROOT.glob("plugins/*/README.md"),
    )
    read = {page for page in pages if page.exists()} - {DOCS / "conformance.md"}  # drawn as a whole
    long = [f"{page.name}: {line}" for page in sorted(read) for line in prose(page) if len(line) > 100]
    assert not long, "\n".join(long)


def documented() -> list[tuple[str, str]]:
    """Return (module, name) of all that the reference describes; a module without names describes all."""
    page = (DOCS / "reference.md").read_text(encoding="utf-8")
    found = []
    for module, options in re.findall(r"^::: ([\w.]+)\n((?: {4}.*\n)*)", page, re.MULTILINE):
        members = re.search(r"members: \[(.*)\]", options)
        names = re.findall(r"\w+", members[1]) if members else ["*"]
        found += [(module, name) for name in names]
    return found


def test_the_reference_describes_what_is_public_and_no_internals():
    errors = {name for module, name in documented() if module.startswith("nxcore.errors.")}
    assert errors == {"*"}, "one by one, under the tree"
    for module, name in documented():
        if not module.startswith("nxcore.errors."):
            homes = [importlib.import_module(home) for home, names in PUBLIC.items() if name in names]
            found = getattr(importlib.import_module(module), name)
            assert [home for home in homes if getattr(home, name) is found], f"{module}.{name} is not public"


def test_the_reference_leaves_out_nothing_that_plugins_are_offered():
    described = {name for _, name in documented()} | {module.rpartition(".")[2] for module, _ in documented()}
    missing = set(plugin.__all__) - described - {"hookimpl"}
    assert not missing, "list them under `members` in docs/reference.md"


def test_the_install_page_warns_of_the_name_and_of_torch_with_cuda():
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ (pip install '?torch.*)$", page, re.MULTILINE)
    assert f"$ {command}\n" in readme
    assert "`pip install nxcore` is another package" in page


def test_the_page_on_kernels_shows_a_kernel_as_it_is_and_every_helper():
    page = (DOCS / "kernels.md").read_text(encoding="utf-8")
    file, code = re.search(r'^```python title="([^"]+)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL).groups()
    assert (ROOT / file).read_text(encoding="utf-8") == code
    operators = {spec.name for spec in nxcore_ops()}
    for name, title in {"numba": "Numba", "triton": "Triton", "cuda": "CUDA C++", "jax": "JAX"}.items():
        sources = ROOT / "plugins" / name / "src" / f"nxcore_{name}"
        part = page.partition(f"## Helpers: {title}\n")[2].partition("\n## ")[0]
        helpers = {
            str(path.relative_to(sources))
            for path in (*sources.rglob("*.py"), *sources.glob("*.cuh"))
            if path.stem not in operators and not path.stem.startswith(("accepts", "__init__"))
        }
        assert set(re.findall(r"^\| `([\w/.]+)` \|", part, re.MULTILINE)) == helpers


def test_contributing_names_every_list_that_the_suite_holds_an_operator_to():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = page.partition("## Add an operator\n")[2].partition("\n## ")[0]
    for file, name in (
        ("tests/outside/strategies.py", "STRATEGIES"),
        ("tests/null/interop/test_autograd.py", "CASES"),
        ("tests/null/interop/test_library.py", "SIZES"),
        ("tests/declines.txt", "[cpu]"),
        ("nxcore/ops/__init__.pyi", "class _Add"),
    ):
        assert f"`{file}`" in recipe or f"> {file}`" in recipe
        assert name in (ROOT / file).read_text(encoding="utf-8")
    assert "`CASES`" in recipe
    assert "`SIZES`" in recipe


def test_contributing_names_files_that_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:nxcore|tests|docs|plugins|benchmarks)/[\w./-]*)`", page)
    assert len(named) > 5
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.browser
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="there is no chromium, or no chromedriver")
def test_a_copy_button_copies_commands_alone(tmp_path):
    """As the theme does it: the block is marked while its visible text is read."""
    markdown = pytest.importorskip("markdown", reason="of the extra `docs`")
    pytest.importorskip("pymdownx", reason="of the extra `docs`")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium isn't installed")
    spans = re.search(r"pymdownx\.highlight:\n +line_spans: (\w+)", SETTINGS)[1]
    block = "```console\n$ pip install .\n...\nSuccessfully installed\n$ nxcore doctor\n```\n"
    block += "\n```python\nx = 1\n```\n"
    html = markdown.markdown(
        block,
        extensions=["pymdownx.highlight", "pymdownx.superfences"],
        extension_configs={"pymdownx.highlight": {"line_spans": spans}},
    )
    (sheet,) = re.findall(r"^extra_css: \[(.*)\]$", SETTINGS, re.MULTILINE)
    page = tmp_path / "page.html"
    page.write_text(f"<style>{(DOCS / sheet).read_text(encoding='utf-8')}</style>{html}", encoding="utf-8")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.get(page.as_uri())
        copied = driver.execute_script(
            "return [...document.querySelectorAll('code')].map((code) => {"
            "code.setAttribute('data-md-copying', ''); return code.innerText.trimEnd(); })"
        )
    finally:
        driver.quit()
    assert copied == ["pip install .\nnxcore doctor", "x = 1"]


def test_the_readme_is_short_and_shows_a_picture_within_the_first_screen():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.sub(r"^<!--.*?-->\n", "", page, flags=re.DOTALL | re.MULTILINE).splitlines()
    assert len(lines) <= 140
    assert any(line.startswith("![") for line in lines[:25])


@pytest.mark.slow
def test_the_site_that_is_built(tmp_path):
    """No sources, an index of each folder, no file that takes seconds to load; its report needs two files."""
    pytest.importorskip("mkdocs", reason="of the extra `docs`")
    pytest.importorskip("plotly", reason="of the extra `docs`")
    left = [ROOT / folder / "__pycache__" / "left.pyc" for folder in ("docs", "docs/template")]
    for path in left:  # as a run of a script leaves it
        path.parent.mkdir(exist_ok=True)
        path.touch()
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    for path in left:
        path.unlink()
    assert done.returncode == 0, done.stderr
    files = [path for path in site.rglob("*") if path.is_file()]
    assert len(files) > 100
    assert [path.name for path in files if path.suffix in (".py", ".pyc", ".toml")] == []
    assert [path.name for path in files if path.stat().st_size > 5_500_000] == []
    folders = [site, *(path for path in site.rglob("*") if path.is_dir())]
    assert [str(path) for path in folders if not (path / "index.html").is_file()] == []
    report = (site / "records.html").read_text(encoding="utf-8")
    assert re.findall(r'<script src="([^"]+)">', report) == ["plotly.min.js"]
    assert "script-src 'self' 'unsafe-inline'" in report
    assert (site / "plotly.min.js").read_text(encoding="utf-8").startswith("/**\n* plotly.js")
