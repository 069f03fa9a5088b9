"""Wisdom as a file: carried over whole, put together by date, refused where it makes no sense; and locks."""

import json

import pytest
import torch

from nxcore import session as sessions
from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.store import transfer, wisdom
from nxcore.store.files import Store
from nxcore.store.lock import Lock
from tests.null import fakes
from tests.null.cli.commands import command

X = torch.arange(12.0).view(3, 4)


@pytest.fixture(autouse=True)
def _of_known_source(monkeypatch):
    fakes.identified(monkeypatch)


def measured(folder, *shapes, policy="measure", **settings):
    """Return a session on ``folder`` that has measured an add of each shape."""
    registry = fakes.registry(fakes.backend("fake", fakes.kernel("add")))
    session = Session(Settings(cache=folder, policy=policy, **settings), registry, fakes.QUICK)
    for shape in shapes:
        session.op("add")(torch.ones(shape), torch.ones(shape))
    return session


@pytest.fixture
def cli(tmp_path, as_default):
    """The command line of a session that has measured two problems."""
    session = measured(tmp_path / "here", (3, 4), (5,))
    as_default(session)

    def run(*words, status=0):
        return command("wisdom", *words, status=status).output

    return run


def test_what_is_exported_is_imported_whole(tmp_path):
    here, there = measured(tmp_path / "a", (3, 4), (5,)).wisdom.store, Store(tmp_path / "b")
    transfer.write(tmp_path / "file.json", transfer.exported(here))
    lines = (tmp_path / "file.json").read_text().splitlines()
    assert sum(line.startswith('{"key"') for line in lines) == len(transfer.gathered(here)[1]), "one an entry"
    assert transfer.imported(there, *transfer.read(tmp_path / "file.json")) == 2
    assert transfer.exported(there) == transfer.exported(here)
    assert transfer.imported(there, *transfer.read(tmp_path / "file.json")) == 0, "nothing is new"


def test_what_was_imported_is_used(tmp_path, raced_by):
    here = measured(tmp_path / "a", (3, 4)).wisdom.store
    session = measured(tmp_path / "b")
    transfer.imported(session.wisdom.store, *transfer.gathered(here))
    raced_by(fakes.raising(AssertionError("measured")))
    assert torch.equal(session.op("add")(X, X), 2 * X)


def test_of_two_pages_the_later_stays(tmp_path):
    environments, pages = transfer.gathered(measured(tmp_path, (3, 4)).wisdom.store)
    ((place, (key, page)),) = pages.items()
    later = {place: (key, page | {"date": page["date"] + 10})}
    for order in ((pages, later), (later, pages)):
        _, merged = transfer.merged([(environments, found) for found in order])
        assert merged == later


def test_another_devices_figures_are_kept_apart(tmp_path):
    environments, pages = transfer.gathered(measured(tmp_path / "a", (3, 4)).wisdom.store)
    (facts,), ((_, entry),) = environments.values(), pages.items()
    other = facts | {"name": "another"}
    name = wisdom.digest(other)
    session = measured(tmp_path / "b")
    transfer.imported(session.wisdom.store, {name: other}, {(name, wisdom.digest(entry[0])): entry})
    assert list(session.wisdom.pages(X.device)) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "isn't JSON"),
        ("[]", "must hold an object, got list"),
        ("{}", "isn't wisdom of format 1: got format None"),
        ('{"format": 1, "environments": [{}]}', "an environment has no facts"),
        ('{"format": 1, "environments": [{"facts": {}, "entries": [{"key": {}}]}]}', "an entry is invalid"),
        ("[" * 100_000, "isn't JSON"),
    ],
    ids=["no_json", "list", "empty", "no_facts", "no_page", "deep"],
)
def test_a_file_that_is_none_is_refused(tmp_path, text, why):
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(InvalidInputError, match=why):
        transfer.read(tmp_path / "file.json")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="can't be read"):
        transfer.read(tmp_path / "nowhere.json")


# ---- locks


def lock(folder, label):
    """Write a lock of the add of X that names ``label``; return its path."""
    problem = measured(None)._problem(measured(None).op("add"), (X, X, 1, None))
    path = folder / "lock.json"
    transfer.write(path, {"format": 1, "locked": [{"problem": wisdom.key(problem), "kernel": label}]})
    return path


def test_a_lock_decides_whatever_was_measured(tmp_path, raced_by):
    raced_by(fakes.raising(AssertionError("measured")))
    for policy in ("measure", "auto", "frozen"):
        session = measured(None, policy=policy, lock=lock(tmp_path, "fake"))
        assert torch.equal(session.op("add")(X, X), 2 * X)
        found = session.explain("add", X, X).decision
        assert (found.chosen, found.rule, found.reason) == ("fake", "locked", "the lock names it")


def test_a_locked_kernel_that_is_not_there_leaves_torch_or_an_error(tmp_path):
    path = lock(tmp_path, "gone")
    found = measured(None, lock=path).explain("add", X, X).decision
    assert (found.chosen, found.reason) == ("torch", "the lock names gone, and it isn't installed")
    with pytest.raises(UnsupportedProblemError, match="the lock names it, and it isn't installed"):
        measured(None, lock=path, strict=True).op("add")(X, X)


def test_frozen_without_a_word_of_the_record_is_torch_or_an_error(tmp_path):
    measured(tmp_path, (5,))
    found = measured(tmp_path, policy="frozen").op("add")
    assert torch.equal(found(X, X), 2 * X)
    with pytest.raises(UnsupportedProblemError, match="the record has no entry for add"):
        measured(tmp_path, policy="frozen", strict=True).op("add")(X, X)


def test_frozen_without_a_lock_has_the_record_and_with_one_the_lock_alone(tmp_path):
    measured(tmp_path, (3, 4))
    session = measured(tmp_path, policy="frozen")
    assert session.explain("add", X, X).origin is not None
    never = session.explain("add", X[:1], X[:1]).decision
    assert never.reason == "it was never measured, and the policy is 'frozen'"
    session.hold(Lock({}), "frozen")
    assert session.explain("add", X, X).decision.rule == "prior", "an empty lock is one"
    strict = measured(tmp_path, policy="frozen", strict=True)
    assert strict.explain("add", X, X).origin is not None
    strict.hold(Lock({}), "frozen")
    with pytest.raises(UnsupportedProblemError, match="the lock has no entry for add"):
        strict.op("add")(X, X)


def test_a_lock_that_makes_no_sense_is_refused(tmp_path):
    for text in ("{}", '{"format": 1, "locked": [3]}'):
        (tmp_path / "lock.json").write_text(text)
        with pytest.raises(InvalidInputError, match=r"isn't a lock|is invalid"):
            Lock.read(tmp_path / "lock.json")


def test_estimate_measures_nothing_and_measure_does_later(tmp_path, monkeypatch):
    session = measured(None, (3, 4), policy="frozen")
    with session.policy("frozen"):
        assert next(iter(session.chooser.choices.values())).decision.rule == "prior"
        assert session.explain("add", X, X).decision.rule == "prior", "which is who would run"
    with session.policy("measure"):
        assert session.explain("add", X, X).decision.rule in ("measured", "reference")


def test_a_policy_that_is_none_is_refused():
    with pytest.raises(InvalidInputError, match="did you mean 'measure'"), measured(None).policy("mesure"):
        pass
    with pytest.raises(InvalidInputError, match="NXCORE_POLICY must be one of"):
        Settings.from_environment({"NXCORE_POLICY": "x"})


@pytest.mark.parametrize(("former", "now"), [("online", "auto"), ("estimate", "frozen"), ("Frozen ", None)])
def test_a_former_policy_names_the_one_in_its_place(former, now):
    if now is None:
        assert Settings.from_environment({"NXCORE_POLICY": former}).policy == "frozen"
        return
    told = f"must be one of auto, measure, frozen, got {former!r}; {now!r} is in its place"
    with pytest.raises(InvalidInputError, match=f"NXCORE_POLICY {told}"):
        Settings.from_environment({"NXCORE_POLICY": former})
    with pytest.raises(InvalidInputError, match=f"policy {told}"):
        measured(None).policy(former)


# ---- the command line


def test_show_lists_problems(cli):
    text = cli("show")
    assert "float32[3, 4]" in text
    assert "measure" in text
    rows = json.loads(cli("show", "add", "--json"))
    assert {tuple(row["problem"]["x"]["shape"]) for row in rows} == {(3, 4), (5,)}
    assert all("torch" in row["kernels"] for row in rows)
    assert cli("show", "sum") == "nothing is measured yet\n"


def test_export_merge_import_and_prune(cli, tmp_path):
    first, both = tmp_path / "first.json", tmp_path / "both.json"
    assert "2 problems written" in cli("export", first)
    assert "2 problems written" in cli("merge", first, first, "--output", both)
    assert "0 problems imported" in cli("import", both)
    assert "0 problems removed" in cli("prune", "--days", "1")
    assert "0 problems removed" in cli("prune", "--others")
    assert "2 problems removed" in cli("prune")
    assert "2 problems imported" in cli("import", both)


def test_a_lock_of_what_was_measured_chooses_the_same(cli, tmp_path):
    path = tmp_path / "lock.json"
    assert "2 winners locked" in cli("lock", path, "--device", "cpu")
    chosen = sessions.default().explain("add", X, X).decision.chosen
    again = measured(None, lock=path, policy="frozen", strict=True)
    assert again.explain("add", X, X).decision.chosen == chosen
