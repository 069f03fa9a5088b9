"""What mkdocs adds to these pages: the report of all committed records, built as the site is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from nxcore.report.figures import joined
from nxcore.report.page import html
from nxcore.report.records import read


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add ``records.html``."""
    root = Path(config.config_file_path).parent
    records = read([root / "benchmarks" / "results"])
    records.runs = [replace(run, file=str(Path(run.file).relative_to(root))) for run in records.runs]
    files.append(File.generated(config, "records.html", content=html(joined(records))))
    return files
