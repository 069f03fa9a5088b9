"""The browser of a module's tests."""

import pytest

from tests.report.driven import BROWSER, DRIVER, scheme, wait


@pytest.fixture(scope="module")
def started():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium isn't installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    # A container's root has no sandbox, and its /dev/shm is small.
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(started, address):
    """The page, just opened, in light colours; a test that leaves an error in the console fails."""
    scheme(started, "light")
    started.get(address)
    wait(started, "return document.documentElement.dataset.ready === 'yes'")
    yield started
    assert [e for e in started.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
