"""Pictures of a search's result: the genotype as SVG, the learning curve as a plotly page.

The genotype is drawn by hand, as a row of nodes with arcs: graphviz needs a program that pip does not
install, and matplotlib would be a dependency for this picture alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from nxcore.errors import InvalidInputError
from nxcore.nas.genotype import Gene, Genotype

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


def curve_html(history: Sequence[Mapping[str, Any]]) -> str:
    """Return accuracy, loss and entropy over the epochs as a self-contained HTML page.

    Parameters
    ----------
    history : sequence of mapping
        Rows of ``Trainer.history``.

    Raises
    ------
    InvalidInputError
        If plotly is not installed.
    """
    try:
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise InvalidInputError(
            "the learning curve needs plotly: pip install plotly", argument="history"
        ) from error
    shown = {
        1: (
            ("training", "accuracy"),
            ("validation", "validation_accuracy"),
            ("held out", "held_out_accuracy"),
        ),
        2: (("training", "loss"), ("validation", "validation_loss"), ("held out", "held_out_loss")),
        3: (("entropy", "entropy"),),
    }
    figure = make_subplots(rows=3, shared_xaxes=True, vertical_spacing=0.04, row_heights=[0.45, 0.35, 0.2])
    colours = {"training": "#1f5fbf", "validation": "#b35900", "held out": "#1a7f4b", "entropy": "#7a3fa0"}
    for place, lines in shown.items():
        for name, key in lines:
            points = [(x, row[key]) for x, row in enumerate(history, 1) if key in row]
            figure.add_scatter(
                x=[x for x, _ in points],
                y=[y for _, y in points],
                name=name,
                legendgroup=name,
                showlegend=place != 2,
                line={"color": colours[name]},
                row=place,
                col=1,
            )
    begun = [x for x, row in enumerate(history, 1) if x == 1 or row["phase"] != history[x - 2]["phase"]]
    for nth, x in enumerate(begun):
        figure.add_vline(x=x - 0.5, line={"color": "#999999", "dash": "dot"})
        # Each label one line higher: a phase may be shorter than its name.
        at = {
            "x": x - 0.5,
            "xanchor": "left",
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "yshift": 14 * nth,
        }
        figure.add_annotation(text=history[x - 1]["phase"], showarrow=False, **at)
    for place, title in ((1, "accuracy"), (2, "loss, nats"), (3, "entropy, nats")):
        figure.update_yaxes(title_text=title, row=place, col=1)
    figure.update_xaxes(title_text="epoch", row=3, col=1)
    figure.update_layout(template="plotly_white", title="Architecture search", height=800)
    page: str = figure.to_html(include_plotlyjs=True)
    return page


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
