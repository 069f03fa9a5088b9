"""Joined records -> one self-contained HTML file, which needs no network and no second file."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from nxcore.errors import NxcoreError
from nxcore.store.encoding import encoded

FRAME = "page.html"
STYLES = ("page.css", "figures.css")
SCRIPTS = ("view.js", "plots.js", "tables.js", "about.js", "figures.js", "costs.js", "page.js")
LIMIT = 8_000_000  # bytes of a whole page


def title(data: dict[str, Any]) -> str:
    """Return the title of a page."""
    return "Kernels against torch on " + " and ".join(d["name"].partition(",")[0] for d in data["devices"])


def html(data: dict[str, Any]) -> str:
    """Return the page.

    Parameters
    ----------
    data : dict
        The data that `figures.joined` returns.

    Raises
    ------
    NxcoreError
        If plotly isn't installed, or the page would be larger than 8 MB.
    """
    template = files("nxcore.report") / "template"
    read = {name: (template / name).read_text(encoding="utf-8") for name in (FRAME, *STYLES, *SCRIPTS)}
    parts = {
        "title": re.sub(r"[<>&\"]", " ", title(data)),
        "style": "\n".join(read[name] for name in STYLES),
        "plotly": plotly(),
        # A "<" could end the element that holds the data; JSON allows it as an escape.
        "data": encoded(data, separators=(",", ":")).replace("<", "\\u003c"),
        "script": "\n".join(read[name] for name in SCRIPTS),
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], read[FRAME])
    size = len(page.encode())
    if size > LIMIT:
        raise NxcoreError(
            f"the page would have {size / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f} MB: give fewer records"
        )
    return page


def plotly() -> str:
    """Return plotly's script, to be put into a page; raise if it isn't installed."""
    try:
        source = files("plotly") / "package_data" / "plotly.min.js"
        return source.read_text(encoding="utf-8").replace("</script", "<\\/script")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise NxcoreError(
            "an HTML page needs plotly: pip install plotly; a report in Markdown (--output report.md) doesn't"
        ) from error
