"""The browser of a module's tests."""

from __future__ import annotations

import pytest

from tests.report.driven import BROWSER, DRIVER


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
