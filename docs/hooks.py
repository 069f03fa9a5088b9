"""What mkdocs adds to these pages: the report of all committed records, and an index of each folder."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from nxcore.report.figures import joined
from nxcore.report.page import html
from nxcore.report.records import read

PLOTLY = re.compile(r"<script>\s*(/\*\*\s*\* plotly\.js.*?)</script>", re.DOTALL)
LIBRARY = "plotly.min.js"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add ``records.html``, and its library as a file of its own: a browser keeps it."""
    root = Path(config.config_file_path).parent
    records = read([root / "benchmarks" / "results"])
    records.runs = [replace(run, file=str(Path(run.file).relative_to(root))) for run in records.runs]
    page = html(joined(records))
    (library,) = PLOTLY.findall(page)
    page = PLOTLY.sub(f'<script src="{LIBRARY}"></script>', page, count=1)
    page = page.replace("script-src 'unsafe-inline'", "script-src 'self' 'unsafe-inline'", 1)
    files.append(File.generated(config, LIBRARY, content=library))
    files.append(File.generated(config, "records.html", content=page))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Write an index of each folder that has none, such as the pictures'."""
    site = Path(config.site_dir)
    for folder in (path for path in site.rglob("*") if path.is_dir()):
        index = folder / "index.html"
        if not index.exists():
            names = sorted(path.name for path in folder.iterdir())
            title = escape(str(folder.relative_to(site)))
            links = "".join(f'<li><a href="{escape(name)}">{escape(name)}</a></li>' for name in names)
            text = (
                f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><ul>{links}</ul>'
            )
            index.write_text(text, encoding="utf-8")
