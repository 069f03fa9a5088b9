"""``nxcore audit``: the kernels of one package, by the kit and by the clock."""

import json
import zlib

import pytest
import torch

from nxcore.cli import referee
from nxcore.errors import UnknownBackendError
from nxcore.spec.kernel import YES, Backend
from nxcore.store.encoding import encoded
from tests.null import fakes
from tests.null.cli.commands import command

HOW = {"dtypes": (torch.float32,)}


def wrong(x, dim, keepdim):
    return torch.zeros_like(fakes.SPECS["sum"].reference(x, dim, keepdim))


@pytest.fixture(autouse=True)
def session(as_default):
    """The default session: a backend of a library, right in add and wrong in sum."""
    kernels = (fakes.kernel("add", **HOW), fakes.kernel("sum", wrong, **HOW))
    backend = Backend("fake", lambda: YES, kernels, api=1, toolkit=lambda: {"a-library": "1.0 abc"})
    found = fakes.session(backend)
    as_default(found)
    return found


def test_a_package_is_found_by_each_of_its_names():
    assert [referee.backends_of(name) for name in ("fake", "nxcore-fake", "a-library")] == [["fake"]] * 3
    with pytest.raises(UnknownBackendError, match="fake"):
        referee.backends_of("fakes")


def test_kernels_are_verified_or_refused_and_the_verified_are_timed():
    done = command("audit", "a-library", "--json", "--fast", "--budget", "0", status=1)
    found = json.loads(done.stdout)
    outcomes = {row["op"]: row for row in found["kernels"]}
    assert found["backends"] == ["fake"]
    assert outcomes["add"]["outcome"] == "verified"
    broken = next(b for b in outcomes["sum"]["broken"] if b["sample"])
    assert broken["seed"] == zlib.crc32(f"{broken['sample']}/0".encode())
    assert "verify" in done.stderr
    assert "time" in done.stderr


def test_one_line_is_printed_for_each_and_no_page_without_times(tmp_path):
    page = tmp_path / "page.html"
    text = command("audit", "fake", "--budget", "0", "--output", str(page), status=1).stdout
    assert "1 verified, 1 wrong" in text
    assert "No page: no kernel was timed" in text
    assert not page.exists()


def test_the_page_is_the_reports_with_the_times_of_the_record(tmp_path):
    page, record = tmp_path / "page.html", tmp_path / "fake.jsonl"
    head = {"record": "head", "device": {"name": "a device", "type": "cpu"}, "time": "2026-11-28T00:00:00"}
    row = {"record": "row", "op": "add", "sample": "one", "dtype": "float32", "verdict": "OK", "error": 0.0}
    lines = [head, *(row | {"label": name, "device_us": 5.0} for name in ("torch", "fake"))]
    record.write_text("".join(f"{encoded(line)}\n" for line in lines))
    referee.page_of(record, page)
    assert "<title>Kernels against torch on a device" in page.read_text()
