"""The study's page in a browser: every figure is drawn, filters filter, no error is logged."""

from __future__ import annotations

from pathlib import Path

import pytest

from nxcore.report.study import page
from tests.report.driven import MARKS, choose, element, texts, wait
from tests.report.study_record import cell, record

FIGURES = ("ratio", "time", "first", "memory", "error")

pytestmark = MARKS


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    pytest.importorskip("plotly", reason="the extra `report` isn't installed")
    file: Path = tmp_path_factory.mktemp("study") / "conv-study.html"
    file.write_text(page.html(record()), "utf-8")
    return file.as_uri()


def points(name: str) -> str:
    return f"return document.querySelectorAll('#plot-{name} .points path.point').length"


def test_every_figure_is_drawn_with_its_table(browser):
    for name in FIGURES:
        wait(browser, f"{points(name)} > 0")
        assert "The table below" in element(browser, f"#plot-{name}").get_attribute("aria-label")
        browser.execute_script(f"document.querySelector('#table-{name}').open = true")
        assert texts(browser, f"#table-{name} tbody th")
    wait(browser, f"{points('ratio')} === 10")  # five entrants, two shapes
    assert browser.title == "One small convolution by several toolkits on Invented 9000"


def test_the_summary_is_the_computed_one(browser):
    assert texts(browser, "#summary li") == page.data(record())["sentences"]
    assert texts(browser, "#absent-table tbody tr") == ["jax jax is not installed; pip install jax"]


def test_the_table_has_every_row_and_marks_the_first(browser):
    assert len(texts(browser, "#rows-table tbody tr")) == 10
    assert texts(browser, "#rows-table tr.total td:nth-of-type(1)") == ["nxcore", "torch-conv2d"]


def test_filters_leave_what_they_say(browser):
    assert element(browser, "#count").text == "2 of 2 shapes"
    choose(browser, "padding", "same")
    assert element(browser, "#count").text == "1 of 2 shapes"
    assert len(texts(browser, "#rows-table tbody tr")) == 5
    wait(browser, f"{points('ratio')} === 5")
    choose(browser, "what", "host_us")
    assert "Host time" in element(browser, "#plot-time").get_attribute("aria-label")
    browser.execute_script("document.querySelector('#table-time').open = true")
    assert "50.0 µs" in texts(browser, "#table-time tbody tr")[0]


def test_dark_follows_the_button(browser):
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = browser.execute_script(paper)
    element(browser, "#theme").click()
    assert browser.execute_script(paper) != light
    assert element(browser, "#theme").get_attribute("aria-pressed") == "true"


def test_a_record_of_almost_nothing_is_a_page(browser, tmp_path):
    bare = record(cell([32, 3, 1], 2.0)) | {"starts": {}}
    bare["cells"][0]["rows"] = [{"label": "nxcore", "reason": "raised ValueError: <b>no</b>"}]
    file = tmp_path / "bare.html"
    file.write_text(page.html(bare), "utf-8")
    browser.get(file.as_uri())
    wait(browser, "return document.documentElement.dataset.ready === 'yes'")
    assert texts(browser, "#summary li")[0] == "Nothing was measured."
    assert "<b>no</b>" in element(browser, "#rows-table").text


def test_a_narrow_window_scrolls_down_alone(browser):
    size = {"width": 500, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        wait(browser, "return document.documentElement.scrollWidth <= 500")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
