"""The page in a browser: no error, filters that filter, cells that open, dark as the system is."""

import io
from pathlib import Path

import pytest
from PIL import Image

from nxcore.report import page
from nxcore.report.figures import joined
from nxcore.report.records import read
from tests.report.driven import MARKS, choose, element, scheme, texts, wait
from tests.report.lines import record, write

FIGURES = ("time", "error", "roofline", "intensity", "regret", "host", "jit")

pytestmark = MARKS


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    pytest.importorskip("plotly", reason="the extra `report` isn't installed")
    folder = tmp_path_factory.mktemp("report")
    records = read([write(folder / "a.jsonl", *record())])
    file: Path = folder / "report.html"
    file.write_text(page.html(joined(records)), "utf-8")
    return file.as_uri()


def test_every_figure_is_drawn(browser):
    for name in FIGURES:
        wait(browser, f"return document.querySelectorAll('#plot-{name} .main-svg').length > 0")
        assert "The table below" in element(browser, f"#plot-{name}").get_attribute("aria-label")
    assert len(texts(browser, ".tile")) == 12
    assert texts(browser, "#tiles dd") == ["2.88\u00d7", "1.00\u00d7", "1.00\u00d7", "0of 12", "4of 12"]
    assert "needs CPU tensors, got cuda <b>here</b>" in element(browser, "#facts").text


def test_the_browser_computes_what_python_does(browser):
    same = """
        const python = DATA.devices[0].summary;
        return python.every(p => {
          const rows = DATA.cells.map(c => p.policy === "nxcore" ? c : rowOf(c, p.policy));
          const found = spread(rows.filter(r => r && r.ratio && !FAILED.has(r.verdict)).map(r => r.ratio[0]));
          return Object.keys(found).every(k => Math.abs(found[k] - p[k]) < 1e-9);
        }) && python.length;"""
    assert browser.execute_script(same) == 4  # nxcore, triton, cuda, jax


def test_filters_leave_what_they_say(browser):
    choose(browser, "op", "sum")
    choose(browser, "dtype", "bfloat16")
    assert element(browser, "#count").text == "3 of 12 cells"
    assert texts(browser, ".tile") == ["1.00", "3.00", "12.0"]
    assert texts(browser, "#support-table tbody th") == ["sum"]
    choose(browser, "backend", "numba")
    assert texts(browser, ".tile") == ["\u2013"] * 3
    assert {e.get_attribute("class") for e in browser.find_elements("css selector", ".tile")} == {"tile none"}
    assert not element(browser, "#plot-jit").is_displayed()
    assert "not recorded" in element(browser, "#empty-jit").text
    element(browser, "#reset").click()
    assert element(browser, "#count").text == "12 of 12 cells"


def test_what_cannot_be_told_is_marked_beside_its_colour(browser):
    choose(browser, "backend", "cuda")
    tiles = browser.find_elements("css selector", ".tile")
    assert all("ambg" in t.get_attribute("class") and "AMBG" in t.get_attribute("aria-label") for t in tiles)
    choose(browser, "backend", "jax")
    assert texts(browser, ".tile.wrong") == ["✕"] * 4


def test_a_click_opens_a_cell_and_escape_closes_it(browser):
    from selenium.webdriver.common.keys import Keys

    tile = element(browser, ".tile[aria-label*='sum, large, float32']")
    tile.click()
    dialog = element(browser, "#cell")
    assert dialog.get_attribute("open") is not None
    assert "sum\nlarge, float32" in dialog.text
    # fastest first, and last what is wrong
    assert texts(browser, "#cell tbody th")[:4] == ["triton", "cuda", "torch", "jax"]
    assert texts(browser, "#cell .chosen th") == ["triton"]
    assert "needs CPU tensors" in dialog.text
    element(browser, "body").send_keys(Keys.ESCAPE)
    assert dialog.get_attribute("open") is None
    assert browser.switch_to.active_element == tile


def test_a_point_of_a_plot_opens_its_cell(browser):
    wait(browser, "return document.querySelectorAll('#plot-error .points path').length > 0")
    browser.execute_script(
        "document.getElementById('plot-error').emit('plotly_click', {points: [{customdata: 0}]})"
    )
    assert element(browser, "#cell").get_attribute("open") is not None


def test_the_heat_map_is_walked_by_arrow_keys(browser):
    from selenium.webdriver.common.keys import Keys

    tiles = browser.find_elements("css selector", ".tile")
    assert [t.get_attribute("tabindex") for t in tiles].count("0") == 1
    tiles[0].send_keys(Keys.ARROW_RIGHT)
    assert browser.switch_to.active_element == tiles[1]
    tiles[1].send_keys(Keys.ARROW_DOWN)
    assert browser.switch_to.active_element == tiles[4]
    tiles[4].send_keys(Keys.ENTER)
    assert element(browser, "#cell").get_attribute("open") is not None


def test_behind_a_figure_is_a_table(browser):
    element(browser, "#table-time summary").click()
    wait(browser, "return document.querySelectorAll('#table-time tbody tr').length > 0")
    assert len(texts(browser, "#table-time tbody tr")) == 12 * 4 - 4  # jax's wrong rows count nowhere


def test_dark_follows_the_system_and_the_button(browser):
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = browser.execute_script(paper)
    scheme(browser, "dark")
    dark = browser.execute_script(paper)
    assert dark != light
    ink = "return document.querySelector('#plot-error .legendtext').style.fill"
    wait(browser, f"{ink.replace('return ', 'return (')}) === 'rgb(233, 233, 230)'")
    element(browser, "#theme").click()
    assert browser.execute_script(paper) == light
    assert element(browser, "#theme").get_attribute("aria-pressed") == "false"


def test_filters_may_change_faster_than_plots_are_drawn(browser):
    browser.execute_script("""
        for (const backend of ["triton", "numba", "", "numba", "triton"]) {
          document.getElementById("backend").value = backend;
          render();
        }""")
    wait(browser, "return document.querySelectorAll('#plot-jit .points path').length === 8")  # 4 never pay


def test_a_record_of_almost_nothing_is_a_page(browser, tmp_path):
    bare = {"record": "row", "op": "add", "sample": "s", "dtype": "float32"}
    lines = [bare | {"label": "triton"}, bare | {"label": "numba", "call_us": 3.0, "more": {"deep": [1]}}]
    file = tmp_path / "bare.html"
    file.write_text(page.html(joined(read([write(tmp_path / "a.jsonl", *lines)]))), "utf-8")
    browser.get(file.as_uri())
    wait(browser, "return document.documentElement.dataset.ready === 'yes'")
    assert element(browser, "#lede").text == "No cell passes the filters and has a ratio to torch."
    assert "a row before any head" in element(browser, "#notes").text
    element(browser, ".tile").click()
    assert texts(browser, "#cell tbody th") == ["numba", "triton"]


def test_a_narrow_window_scrolls_down_alone(browser):
    size = {"width": 500, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        # Plots follow the window a moment later.
        wait(browser, "return document.documentElement.scrollWidth <= 500")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_table_wider_than_a_telephone_shows_on_which_side_it_goes_on(browser):
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        wait(browser, "return document.documentElement.scrollWidth <= 400")
        wide = element(browser, "#policies-table")
        assert browser.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth", wide)
        left, right = edges(wide)
        assert right < left - 20, "there is more to the right"
        browser.execute_script("arguments[0].scrollLeft = 10000", wide)
        left, right = edges(wide)
        assert left < right - 20, "there is more to the left"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def edges(found) -> tuple[int, int]:
    """Return how bright an element is at its left and its right edge, from 0 to 255: what most rows are."""
    image = Image.open(io.BytesIO(found.screenshot_as_png)).convert("L")
    columns = (image.crop((x, 0, x + 1, image.height)).histogram() for x in (1, image.width - 2))
    left, right = (max(range(256), key=column.__getitem__) for column in columns)
    return left, right
