"""Generated modules: the text runs, whatever lies on disk."""

import inspect

import pytest

from nxcore.expression import generated
from nxcore.store.owner import StoreWarning


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NXCORE_CACHE", str(tmp_path))
    generated._folder.cache_clear()
    yield tmp_path / "mine" / "pointwise"
    generated._folder.cache_clear()


def made(text):
    return generated.generated.__wrapped__("mine", text)


def test_a_module_is_the_text_whatever_was_put_in_its_place(folder):
    text = "def answer():\n    return 42\n"
    path = folder / made(text).__file__
    path.write_text("raise SystemExit\n")
    module = made(text)
    assert module.answer() == 42
    assert path.read_text() == text
    assert inspect.getsource(module.answer) == text
    assert [p.name for p in folder.iterdir()] == [path.name], "no bytecode, which would be believed"


def test_a_folder_that_others_may_write_is_left_alone(folder):
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.warns(StoreWarning, match="pointwise can be written by other users"):
        assert made("ANSWER = 42").ANSWER == 42
    assert list(folder.iterdir()) == []
