"""What is on disk is whole, of this user, or a miss with one warning."""

import json
import multiprocessing
import os
import threading
import warnings

import pytest

from nxcore.store.files import LIMIT, Store
from nxcore.store.owner import StoreWarning

KEY = {"op": "add", "dtype": "float32"}
unix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="modes and owners are Unix's")


@pytest.fixture(params=["disk", "memory"])
def store(request, tmp_path):
    return Store(tmp_path / "cache" if request.param == "disk" else None)


def file(store, kind="verdicts"):
    (path,) = (store.folder / kind).glob("*.json")
    return path


def test_what_was_written_is_read(store):
    store.write("verdicts", KEY, {"error": 1e-8})
    assert store.read("verdicts", KEY) == {"error": 1e-8}
    assert list(store.items("verdicts")) == [(KEY, {"error": 1e-8})]
    assert store.read("quarantine", KEY) is None
    assert store.read("verdicts", KEY | {"dtype": "float16"}) is None


def test_a_second_document_replaces_the_first(store):
    for error in (1.0, 2.0):
        store.write("verdicts", KEY, {"error": error})
    assert list(store.items("verdicts")) == [(KEY, {"error": 2.0})]


def test_what_was_removed_is_gone_and_may_be_removed_again(store):
    store.write("verdicts", KEY, {})
    for _ in range(2):
        store.remove("verdicts", KEY)
        assert store.read("verdicts", KEY) is None


def test_another_store_of_the_folder_reads_it(tmp_path):
    Store(tmp_path).write("verdicts", KEY, {"error": 0.5})
    assert Store(tmp_path).read("verdicts", KEY) == {"error": 0.5}


def test_documents_that_are_written_later_are_read_at_once(tmp_path):
    store, other = Store(tmp_path), Store(tmp_path)
    with store.later("verdicts"):
        for error in (1.0, 2.0):
            store.write("verdicts", KEY, {"error": error})
        store.write("journal", KEY, {})
        store.write("verdicts", KEY | {"op": "mul"}, {})
        store.remove("verdicts", KEY | {"op": "mul"})
        assert store.read("verdicts", KEY) == {"error": 2.0}
        assert other.read("verdicts", KEY) is None
        assert other.read("journal", KEY) == {}, "others don't wait"
    for thread in threading.enumerate():
        if thread.name == "nxcore store":
            thread.join()
    assert list(other.items("verdicts")) == [(KEY, {"error": 2.0})]
    assert store.read("verdicts", KEY) == {"error": 2.0}
    store.write("verdicts", KEY, {"error": 3.0})
    assert Store(tmp_path).read("verdicts", KEY) == {"error": 3.0}, "after the block, none waits"


def test_documents_of_memory_do_not_wait():
    store = Store(None)
    with store.later("verdicts"):
        store.write("verdicts", KEY, {"error": 1.0})
        assert list(store.items("verdicts")) == [(KEY, {"error": 1.0})]


def test_what_waits_is_written_where_no_thread_can_start(tmp_path, monkeypatch):
    def full(self):
        raise RuntimeError("can't start new thread")

    store = Store(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", full)
    with store.later("verdicts"):
        store.write("verdicts", KEY, {"error": 1.0})
    assert Store(tmp_path).read("verdicts", KEY) == {"error": 1.0}


def test_no_temporary_file_is_left(tmp_path):
    store = Store(tmp_path)
    store.write("verdicts", KEY, {})
    assert [p.name for p in (store.folder / "verdicts").iterdir()] == [file(store).name]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSONDecodeError"),
        ('{"key": {"op', "JSONDecodeError"),
        ("[]", "holds list, not an object"),
        ('{"key": {}}', "has no key and value"),
        ("[" * 100_000, "it is nested too deeply"),
        ('"' + "x" * LIMIT + '"', f"has more than {LIMIT} bytes"),
        ("\ud800", "UnicodeDecodeError"),
    ],
    ids=["empty", "truncated", "list", "no_value", "deep", "long", "no_text"],
)
def test_a_broken_file_is_a_miss_and_one_warning(tmp_path, text, why):
    store = Store(tmp_path)
    store.write("verdicts", KEY, {})
    file(store).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.warns(StoreWarning, match=why):
        assert store.read("verdicts", KEY) is None
    assert store.read("verdicts", KEY) is None, "and no second warning, which would be an error here"
    assert list(store.items("verdicts")) == []
    store.write("verdicts", KEY, {"error": 1.0})
    assert store.read("verdicts", KEY) == {"error": 1.0}


def test_a_file_of_another_key_is_a_miss(tmp_path):
    store = Store(tmp_path)
    store.write("verdicts", KEY, {})
    path = file(store)
    path.write_text(json.dumps({"key": {"op": "sum"}, "value": {}}))
    assert store.read("verdicts", KEY) is None


@unix
def test_a_new_folder_is_the_users_alone(tmp_path):
    store = Store(tmp_path / "cache")
    store.write("verdicts", KEY, {})
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert file(store).stat().st_mode & 0o777 == 0o600


@unix
@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_can_write_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.warns(StoreWarning, match=f"can be written by other users \\(mode {mode:o}, owner"):
        store = Store(tmp_path)
    store.write("verdicts", KEY, {"error": 1.0})
    assert store.read("verdicts", KEY) == {"error": 1.0}, "kept in memory"
    assert list(tmp_path.iterdir()) == []


@unix
def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    if os.geteuid() == 0:
        os.chown(tmp_path, 54321, 54321)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.warns(StoreWarning, match="belongs to user"):
        assert Store(tmp_path).folder is None


def test_a_path_that_is_no_folder_leaves_memory_and_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(StoreWarning, match="Set NXCORE_CACHE to another folder"):
        store = Store(tmp_path / "file" / "cache")
    store.write("verdicts", KEY, {"error": 2.0})
    assert store.read("verdicts", KEY) == {"error": 2.0}


def test_a_disk_that_is_full_leaves_memory_and_one_warning(tmp_path, monkeypatch):
    store = Store(tmp_path)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.warns(StoreWarning, match="No space left on device"):
        store.write("verdicts", KEY, {"error": 1.0})
    store.write("verdicts", KEY, {"error": 2.0})
    assert store.read("verdicts", KEY) == {"error": 2.0}


def _write_many(folder, who):
    store = Store(folder)
    for i in range(50):
        store.write("verdicts", {"who": who, "i": i}, {"error": float(i)})
        store.write("verdicts", {"shared": i}, {"who": who})


def test_eight_processes_that_write_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, who)) for who in range(8)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(120)
    assert [w.exitcode for w in writers] == [0] * 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {json.dumps(k, sort_keys=True): v for k, v in Store(tmp_path).items("verdicts")}
    assert len(found) == 8 * 50 + 50
    assert all(
        found[json.dumps({"i": i, "who": w}, sort_keys=True)] == {"error": float(i)}
        for w in range(8)
        for i in range(50)
    )


def test_a_long_document_is_read_to_its_end(tmp_path):
    long = {"text": "x" * (LIMIT // 2)}
    Store(tmp_path).write("kind", {"a": 1}, long)
    assert Store(tmp_path).read("kind", {"a": 1}) == long


def test_a_folder_that_is_missing_is_asked_for_once_a_second(tmp_path):
    now = [100.0]
    store = Store(tmp_path, clock=lambda: now[0])
    assert [store.read("pages", {"n": n}) for n in range(3)] == [None] * 3
    Store(tmp_path).write("pages", {"n": 1}, {"of": "another process"})
    assert store.read("pages", {"n": 1}) is None
    now[0] += 1.0
    assert store.read("pages", {"n": 1}) == {"of": "another process"}
    assert store.read("notes", {"n": 1}) is None
    store.write("notes", {"n": 1}, {"of": "this one"})
    assert store.read("notes", {"n": 1}) == {"of": "this one"}
