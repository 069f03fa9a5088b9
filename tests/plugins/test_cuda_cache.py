"""A compiled file of the cache is loaded only if this user's process kept it there."""

import pytest

pytest.importorskip("nxcore_cuda")

from nxcore_cuda.machine import toolkit
from nxcore_cuda.machine.compile import kept


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Return what has a stand-in for a compiler copy its input."""
    monkeypatch.setenv("NXCORE_CUDA_CACHE", str(tmp_path / "cache"))
    tool = tmp_path / "compiler"
    tool.write_text('#!/bin/sh\ncp "$3" "$2"\n')
    tool.chmod(0o755)
    return lambda: kept(toolkit.cache_folder() / "made", "a kernel", [tool], "the text", ".cu")


def test_a_file_that_was_put_there_is_not_used(make):
    toolkit.cache_folder().mkdir(0o700)
    for name in ("made", f"made-{'0' * 16}"):
        (toolkit.cache_folder() / name).write_text("planted")
    assert make().read_text() == "the text"


def test_a_file_that_was_changed_is_made_again(make):
    make().write_text("planted")
    with pytest.warns(UserWarning, match="doesn't hold what was kept"):
        assert make().read_text() == "the text"


def test_a_folder_that_others_may_write_is_not_used(make):
    first = make()
    toolkit.cache_folder().chmod(0o777)
    with pytest.warns(UserWarning, match="cache can be written by other users"):
        again = make()
    assert again.read_text() == "the text"
    assert again.parent != first.parent
