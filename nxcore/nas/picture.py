"""Pictures of a search's result: the genotype, a row of nodes with arcs, and charts, which plotly draws.

The genotype is SVG, drawn by hand: graphviz needs a program that pip does not install.
"""

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree as ET

from nxcore.nas.genotype import Gene, Genotype
from nxcore.report.page import plotly
from nxcore.store.encoding import encoded

APART, RISE, RADIUS, MARGIN = 150, 44, 17, 70
COLOURS = {"sep": "#1a7f4b", "dil": "#b35900", "max": "#1f5fbf", "avg": "#1f5fbf", "skip": "#666666"}
OTHER = "#7a3fa0"


def genotype_svg(genotype: Genotype) -> str:
    """Return both cells as one SVG: states from left to right, an arc for each operation."""
    cells = (
        ("normal cell", genotype.normal, genotype.normal_concat),
        ("reduction cell", genotype.reduce, genotype.reduce_concat),
    )
    width = 2 * MARGIN + APART * (2 + max(len(genes) for _, genes, _ in cells) // 2)
    picture = ET.Element("svg", xmlns="http://www.w3.org/2000/svg")
    picture.set("font-family", "sans-serif")
    picture.set("font-size", "13")
    picture.set("text-anchor", "middle")
    ET.SubElement(picture, "rect", width="100%", height="100%", fill="white")
    top = 0
    for title, genes, concat in cells:
        top = _cell(picture, title, genes, concat, top)
    picture.set("viewBox", f"0 0 {width} {top}")
    picture.set("width", str(width))
    picture.set("height", str(top))
    return ET.tostring(picture, encoding="unicode") + "\n"


def page(title: str, *parts: str) -> str:
    """Return a page of HTML that needs nothing else; it draws the rows and charts that its parts hold."""
    frame = files("nxcore.nas").joinpath("page.html").read_text(encoding="utf-8")
    given = {"title": escape(title), "parts": "\n".join(parts), "plotly": plotly()}
    return re.sub(r"\{\{(\w+)\}\}", lambda m: given[m[1]], frame)


def drawn(kind: str, data: Any) -> str:
    """Return a part of a page: the ``history`` of a trainer, or traces and layout of a ``chart``."""
    return f'<div data-{kind}="{escape(encoded(data))}"></div>'


def _cell(picture: ET.Element, title: str, genes: Sequence[Gene], concat: Sequence[int], top: int) -> int:
    """Draw a cell below ``top``; return its lower end."""
    nodes = len(genes) // 2
    y = top + MARGIN + RISE * max(2 + i // 2 - source for i, (_, source) in enumerate(genes))
    # Numbered as in the genotype.
    names = ["0: before last", "1: last", *(str(2 + i) for i in range(nodes)), "out"]
    places = [MARGIN + APART * i for i in range(len(names))]
    _text(picture, MARGIN, top + 30, title, "black").set("font-weight", "bold")
    for state in concat:  # arcs of concatenated states, below the nodes
        _arc(picture, places[state], places[-1], y, -RISE / 2 * (len(names) - 1 - state), "#bbbbbb")
    labels = []
    for i, (operation, source) in enumerate(genes):
        target, colour = 2 + i // 2, COLOURS.get(operation.partition("_")[0], OTHER)
        rise = RISE * (target - source)
        _arc(picture, places[source], places[target], y, rise, colour)
        middle = (places[source] + places[target]) / 2
        labels.append((middle, y - rise - 6, operation, colour))
    for at in labels:
        # Drawn after the arcs, so that no arc crosses a label. No two labels overlap: sources differ.
        label = _text(picture, *at)
        label.set("stroke", "white")
        label.set("stroke-width", "4")
        label.set("paint-order", "stroke")
    for x, name in zip(places, names, strict=True):
        fill = "#eeeeee" if name.isdigit() else "#ffe9b8"
        wide = RADIUS if name.isdigit() else 42
        box = {"x": x - wide, "y": y - RADIUS, "width": 2 * wide, "height": 2 * RADIUS, "rx": RADIUS}
        ET.SubElement(
            picture, "rect", {k: str(v) for k, v in box.items()} | {"fill": fill, "stroke": "#444444"}
        )
        _text(picture, x, y + 5, name, "black")
    return int(y + MARGIN + RISE / 2 * max(len(names) - 1 - state for state in concat))


def _arc(picture: ET.Element, start: float, end: float, y: float, rise: float, colour: str) -> None:
    """Draw an arrow whose apex is ``rise`` above ``y``; below it if negative."""
    edge = y - RADIUS if rise > 0 else y + RADIUS
    control = 2 * (y - rise) - edge
    tip, off = end - 8, -6 if rise > 0 else 6
    path = f"M {start + 8} {edge} Q {(start + end) / 2} {control} {tip} {edge}"
    ET.SubElement(picture, "path", {"d": path, "fill": "none", "stroke": colour, "stroke-width": "2"})
    head = f"{tip},{edge} {tip - 9},{edge + off / 2} {tip - 3},{edge + 1.6 * off}"
    ET.SubElement(picture, "polygon", points=head, fill=colour)


def _text(picture: ET.Element, x: float, y: float, text: str, colour: str) -> ET.Element:
    element = ET.SubElement(picture, "text", x=str(x), y=str(y), fill=colour)
    element.text = text
    return element
