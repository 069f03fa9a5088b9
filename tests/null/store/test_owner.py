"""What is loaded, executed or believed is the user's or root's, and nobody else can exchange it."""

import contextlib
import os
import shutil
import socket
import tempfile
import warnings
from pathlib import Path

import pytest

from nxcore.errors import InvalidInputError
from nxcore.store import compiled, owner, transfer
from nxcore.store.encoding import decoded
from nxcore.store.files import Store, toolkit_folder
from nxcore.store.lock import Lock
from nxcore.store.owner import ForeignError, StoreWarning

STRANGER = 54321
KEY = {"op": "add"}

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes and owners are Unix's")
root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file to another user"
)


@pytest.fixture
def folder():
    """A folder that every user can enter: pytest's own are the user's alone."""
    found = Path(tempfile.mkdtemp(prefix="nxcore-owner-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


@pytest.fixture
def stranger():
    """Be another user for the test."""
    os.seteuid(STRANGER)
    owner._private.cache_clear()
    yield STRANGER
    os.seteuid(0)
    owner._private.cache_clear()


@contextlib.contextmanager
def told_once(match):
    """Expect one warning."""
    with pytest.warns(StoreWarning, match=match) as told:
        yield
    assert len(told) == 1


def placed(folder, change):
    """Return a file in a private folder, after ``change(file)``."""
    (folder / "above" / "own").mkdir(parents=True)
    file = folder / "above" / "own" / "file"
    file.write_text("text")
    change(file)
    return file


def fifo(file):
    file.unlink()
    os.mkfifo(file)


def linked(file):
    file.rename(file.with_name("other"))
    file.symlink_to("other")


def unix_socket(file):
    file.unlink()
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(str(file))


def directory(file):
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: f.chmod(0o622), f"can be written by other users .mode 622, owner {os.geteuid()}.; chmod"),
        (lambda f: f.parent.chmod(0o1777), "own can be written by other users"),
        (lambda f: f.parent.chmod(0o770 if os.getgid() == 0 else 0o707), "own can be written"),
        (lambda f: f.parents[1].chmod(0o777), "above can be written by other users"),
        (fifo, "is no regular file; remove it"),
        (directory, "is no regular file"),
        (linked, "symbolic link"),
        (unix_socket, "No such device"),
    ],
    ids=["mode", "sticky", "group", "above", "fifo", "directory", "link", "socket"],
)
def test_what_others_may_write_or_is_no_file_is_refused_at_once(folder, change, why):
    with pytest.raises(OSError, match=why):
        owner.read_owned(placed(folder, change), 100)


@root
@pytest.mark.parametrize(
    "theirs", [lambda f: f, lambda f: f.parent, lambda f: f.parents[1]], ids=["file", "folder", "above"]
)
def test_what_belongs_to_another_user_is_refused_with_how_to_mend_it(folder, theirs):
    file = placed(folder, lambda f: os.chown(theirs(f), STRANGER, STRANGER))
    with pytest.raises(ForeignError, match="belongs to user 54321, not to 0") as found:
        owner.read_owned(file, 100)
    assert found.value.path == str(theirs(file))
    assert f"chown -R 0 {theirs(file)}" in str(found.value)


@root
def test_a_link_of_another_user_is_not_followed(folder):
    file = placed(folder, lambda f: None)
    folder.chmod(0o1777)
    for name, user in (("mine", 0), ("theirs", STRANGER)):
        (folder / name).symlink_to(file)
        os.chown(folder / name, user, user, follow_symlinks=False)
    assert owner.given(folder / "mine", 100) == b"text"
    with pytest.raises(ForeignError, match="theirs belongs to user"):
        owner.given(folder / "theirs", 100)


def test_links_that_lead_round_are_refused(folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    with pytest.raises(ForeignError, match="too many symbolic links"):
        owner.given(folder / "a", 100)


def test_a_file_that_a_user_names_may_lie_in_a_sticky_folder_and_behind_links(folder):
    file = placed(folder, lambda f: f.parent.chmod(0o1777))
    (folder / "link").symlink_to("above/../above/own/file")
    assert owner.given(folder / "link", 100) == owner.given(file, 100) == b"text"
    with pytest.raises(OSError, match="has more than 3 bytes"):
        owner.given(file, 3)


@root
def test_what_root_owns_is_read_by_a_user_and_written_to_memory(folder, stranger):
    os.seteuid(0)
    Store(folder / "cache").write("kind", KEY, {"by": "root"})
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    os.seteuid(stranger)
    with pytest.warns(StoreWarning, match="it is read-only; measurements stay in memory"):
        store = Store(folder / "cache")
    assert store.read("kind", KEY) == {"by": "root"}
    store.write("kind", KEY, {"by": "user"})
    store.write("kind", {"op": "sum"}, {})
    assert store.read("kind", KEY) == {"by": "user"}
    assert len(list(store.items("kind"))) == len(list(store.keys("kind"))) == 2
    store.remove("kind", KEY)
    assert store.read("kind", KEY) is None
    assert len(list(store.items("kind"))) == 1


@root
def test_root_leaves_the_cache_of_a_user_alone(folder):
    (folder / "cache").mkdir()
    os.chown(folder / "cache", STRANGER, STRANGER)
    with told_once("cache belongs to user 54321, not to 0"):
        assert Store(folder / "cache").folder is None
        assert compiled.compiled_folder(folder / "cache") == owner.temporary()
    assert list((folder / "cache").iterdir()) == []


@root
@pytest.mark.parametrize("which", ["v1", "v1/kind", "v1/kind/FILE"])
def test_of_a_cache_what_is_foreign_is_not_believed(folder, which):
    Store(folder).write("kind", KEY, {"by": "me"})
    (file,) = (folder / "v1" / "kind").iterdir()
    os.chown(folder / which.replace("FILE", file.name), STRANGER, STRANGER)
    with told_once("belongs to user 54321"):
        store = Store(folder)
        assert store.read("kind", KEY) is None
        assert list(store.items("kind")) == list(store.keys("kind")) == []
        store.write("kind", KEY, {"by": "me again"})
    assert store.read("kind", KEY) == {"by": "me again"}


def test_a_cache_below_a_folder_that_others_may_write_is_not_used(folder):
    (folder / "above").mkdir()
    (folder / "above").chmod(0o777)
    with pytest.warns(StoreWarning, match="above can be written by other users"):
        assert Store(folder / "above" / "cache").folder is None
    assert list((folder / "above").iterdir()) == []


def test_a_cache_behind_a_link_is_used(folder):
    (folder / "real").mkdir(0o700)
    (folder / "cache").symlink_to("real")
    Store(folder / "cache").write("kind", KEY, {})
    assert (folder / "real" / "v1" / "kind").is_dir()


def test_every_folder_that_is_made_is_the_users_alone(folder):
    before = os.umask(0o002)
    try:
        owner.made(folder / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in sorted(folder.rglob("*"))] == [0o700] * 3


def test_a_group_of_the_user_alone_may_write(folder, monkeypatch):
    monkeypatch.setattr(owner, "_private", lambda group: True)
    assert owner.read_owned(placed(folder, lambda f: f.chmod(0o664)), 100) == b"text"


def test_root_has_no_group_of_its_own():
    assert os.getgid() != 0 or not owner._private(0)
    assert not owner._private(STRANGER)


def test_in_a_container_that_does_not_know_the_hosts_root_its_folders_pass(monkeypatch):
    owner._unmapped.cache_clear()
    texts = {"/proc/self/uid_map": "0 1000 1\n", "/proc/sys/kernel/overflowuid": "65534\n"}
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: texts[str(path)])
    assert owner._unmapped() == 65534
    owner._unmapped.cache_clear()
    texts["/proc/self/uid_map"] = "         0          0 4294967295\n"
    assert owner._unmapped() == 0
    owner._unmapped.cache_clear()


# ---- what users name


def test_a_lock_that_others_may_write_is_none_and_a_warning(folder):
    path = folder / "lock.json"
    path.write_text('{"format": 1, "locked": []}')
    path.chmod(0o666)
    with pytest.raises(InvalidInputError, match="can be written by other users"):
        Lock.read(path)
    with pytest.warns(StoreWarning, match="NXCORE_LOCK: .* kernels are chosen without it"):
        assert Lock.set_by(path, strict=False).chosen == {}
    with pytest.raises(InvalidInputError, match="can be written by other users"):
        Lock.set_by(path, strict=True)
    with pytest.raises(InvalidInputError, match="can't be read"):
        Lock.set_by(folder / "nowhere.json", strict=False)


def test_a_fifo_in_place_of_an_exported_file_or_of_the_packages_does_not_block(folder):
    os.mkfifo(folder / "cpu-x.json")
    with pytest.raises(InvalidInputError, match="is no regular file"):
        transfer.read(folder / "cpu-x.json")
    with pytest.warns(StoreWarning, match="shipped wisdom is ignored: .* is no regular file"):
        assert transfer.shipped("cpu", folder) == ({}, {})


# ---- compiled code


def test_a_compiled_file_is_found_if_it_holds_what_was_kept(folder):
    path = folder / "cache" / "kernel.so"
    assert compiled.compiled_file(path) is None
    kept = compiled.keep_compiled(path, b"code")
    assert compiled.compiled_file(path) == kept
    assert kept.read_bytes() == b"code"
    kept.write_bytes(b"other")
    with pytest.warns(StoreWarning, match="doesn't hold what was kept"):
        assert compiled.compiled_file(path) is None
    assert compiled.compiled_file(path) is None
    assert compiled.compiled_file(compiled.keep_compiled(path, b"new")) is None, "a file is no name"
    assert compiled.compiled_file(path).read_bytes() == b"new"


@pytest.mark.parametrize(
    "seal",
    ["", "[]", "{}", '{"sha256": 3}', '{"sha256": "../x"}', '{"sha256": "' + "0" * 64 + '"}', "[" * 4000],
)
def test_a_seal_that_says_nothing_is_a_miss(folder, seal):
    path = folder / "cache" / "kernel.so"
    compiled.keep_compiled(path, b"code")
    (folder / "cache" / "kernel.so.json").write_text(seal)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        assert compiled.compiled_file(path) is None


def test_compiled_code_of_a_folder_that_others_may_write_is_neither_used_nor_left(folder):
    path = folder / "cache" / "kernel.so"
    compiled.keep_compiled(path, b"code")
    path.parent.chmod(0o777)
    before = sorted(path.parent.iterdir())
    with told_once("cache can be written by other users"):
        assert compiled.compiled_file(path) is None
        kept = compiled.keep_compiled(path, b"mine")
    assert kept.read_bytes() == b"mine"
    assert kept.parent == owner.temporary()
    assert sorted(path.parent.iterdir()) == before


def test_on_a_full_disk_compiled_code_is_this_processs(folder, monkeypatch):
    path, write = folder / "cache" / "kernel.so", compiled.replace_file

    def full(to, content):
        if to.parent == path.parent:
            raise OSError(28, "No space left on device")
        write(to, content)

    monkeypatch.setattr(compiled, "replace_file", full)
    with pytest.warns(StoreWarning, match="No space left on device; compiled code isn't kept"):
        assert compiled.keep_compiled(path, b"code").read_bytes() == b"code"


def test_a_toolkits_folder_that_others_may_write_is_none(folder, monkeypatch):
    monkeypatch.setenv("NXCORE_CACHE", str(folder))
    assert toolkit_folder("mine") == folder / "mine"
    (folder / "mine").chmod(0o777)
    with pytest.warns(StoreWarning, match="mine can be written by other users"):
        assert toolkit_folder("mine") is None


def test_a_number_of_many_digits_is_no_json():
    with pytest.raises(ValueError, match="holds a number of 401 digits"):
        decoded(str(10**400))
