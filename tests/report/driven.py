"""A browser that tests drive: where it is, and what they do with it."""

import shutil

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="there is no chromium, or no chromedriver"),
]


def wait(driver, script):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, 30).until(lambda d: d.execute_script(script))


def scheme(driver, value):
    features = [
        {"name": "prefers-color-scheme", "value": value},
        {"name": "prefers-reduced-motion", "value": "reduce"},  # a page that still scrolls can't be clicked
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def element(driver, selector):
    return driver.find_element("css selector", selector)


def texts(driver, selector):
    return [e.text for e in driver.find_elements("css selector", selector)]


def choose(driver, name, value):
    from selenium.webdriver.support.ui import Select

    Select(element(driver, f"#{name}")).select_by_value(value)
