"""A document that holds anything at all is a miss, and never an exception from a call."""

import json
import random
import warnings

import pytest
import torch

from nxcore.errors import InvalidInputError
from nxcore.measure.collection import no_collection
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.store import transfer
from nxcore.store.lock import locked
from nxcore.store.owner import StoreWarning
from nxcore.store.problems import described, read
from nxcore.store.wisdom import digest, environment
from nxcore.trust.suspect import Suspect
from tests.null import fakes

ADD = fakes.SPECS["add"].reference
X = torch.arange(12.0).view(3, 4)
MARK = "@mutated@"
TEXTS = {
    "huge": "1" + "0" * 400,
    "huge_negative": "-1" + "0" * 400,
    "of_64_bits": str(2**63),
    "beyond_float": "1e999",
    "largest": "1.7e308",
    "smallest": "5e-324",
    "infinite": "Infinity",
    "negative_infinite": "-Infinity",
    "nan": "NaN",
    "negative": "-1",
    "negative_float": "-0.5",
    "zero": "0",
    "zero_float": "0.0",
    "one": "1",
    "half": "0.5",
    "true": "true",
    "false": "false",
    "null": "null",
    "empty": '""',
    "text": '"text"',
    "number_as_text": '"3"',
    "zero_byte": '"\\u0000"',
    "surrogate": '"\\ud800"',
    "long": '"' + "x" * 5000 + '"',
    "list": "[]",
    "list_of_null": "[null]",
    "list_of_nan": "[NaN, NaN]",
    "list_of_lists": "[[], [[]]]",
    "object": "{}",
    "object_of_empty": '{"": ""}',
    "nested": "[" * 50 + "]" * 50,
    "deep": "[" * 900 + "]" * 900,
    "deep_objects": '{"a":' * 900 + "1" + "}" * 900,
    "too_deep": "[" * 100_000,
    "no_json": "}",
}
"""JSON, or nearly, in place of a value."""

DRAWS = 4
"""The places in a document at which each text is tried."""


def places(value, at=()):
    """Yield the way to each value in a document."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in list(pairs):
        yield from places(inner, (*at, name))


def changed(document, at, text):
    """Return a document as text, with another text at a place."""
    copy = json.loads(json.dumps(document))
    if not at:
        return text
    inner = copy
    for name in at[:-1]:
        inner = inner[name]
    inner[at[-1]] = MARK
    return json.dumps(copy).replace(f'"{MARK}"', text)


def mutations(document, seed):
    """Yield name and text of mutated documents."""
    draw, ways = random.Random(seed), list(places(document))
    for name, text in TEXTS.items():
        for at in draw.sample(ways, min(DRAWS, len(ways))):
            yield f"{name} at {at}", changed(document, at, text)


def session(folder, **how):
    return Session(
        Settings(cache=folder, policy="measure", **how),
        fakes.registry(fakes.backend("fake", fakes.kernel("add", ADD))),
        fakes.QUICK,
    )


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A cache with a document of every kind; return its folder."""
    fakes.identified(monkeypatch)
    first = session(tmp_path)
    assert torch.equal(first.op("add")(X, X), 2 * X)
    suspect = Suspect("add", "fake", "float32", {"type": "cpu", "name": "One"}, {"identity": "1"})
    other = Suspect("sum", "fake", "float32", {"type": "cpu", "name": "One"}, {"identity": "1"})
    quarantine = first.gate.quarantine
    quarantine.add(other, "wrong", "zeros")
    quarantine._doubted(suspect, "its first run", {"op": "add", "problem": {}})
    note = {"what": "x", "since": 1.0, "suspect": suspect_document(suspect), "for": None, "call": {}}
    first.gate.store.write("journal", {"host": "elsewhere", "pid": 1, "born": "", "turn": 0}, note)
    first.gate.store.write("identities", {"kernel": "fake"}, {"format": 2, "files": {}, "kernel": "1"})
    return tmp_path


def suspect_document(suspect):
    return {"op": suspect.op, "kernel": suspect.kernel, "dtype": suspect.dtype, "device": {}, "made_of": {}}


KINDS = ("entries", "environments", "verdicts", "quarantine", "journal", "doubts", "identities")


def use(folder, **how):
    """Do what reads documents of every kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        found = session(folder, **how)
        assert torch.equal(found.op("add")(X, X), 2 * X)
        str(found.explain("add", X, X))
        [str(entry) for entry in found.gate.quarantined()]
        [str(doubt.reason) for doubt in found.gate.quarantine.doubts]
        transfer.exported(found.gate.store)
        list(found.wisdom.keys("cpu"))
        list(found.wisdom.pages(torch.device("cpu")))
        found.wisdom.shelf(environment(torch.device("cpu")), "add")


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_of_the_store_that_holds_anything_is_no_exception(store, kind):
    path = next((store / "v1").glob(f"**/{kind}/*.json"))
    whole = path.read_text()
    for name, text in mutations(json.loads(whole), kind):
        path.write_text(text)
        try:
            with no_collection():
                use(store)
        except Exception as error:
            raise AssertionError(f"{kind}: {name}") from error
        finally:
            path.parent.mkdir(exist_ok=True)
            path.write_text(whole)


def test_a_lock_that_holds_anything_is_no_exception(store, tmp_path):
    path = tmp_path / "lock.json"
    known = session(store)
    known.op("add")(X, X)
    document = locked(known.gate.store, digest(environment(torch.device("cpu"))))
    assert document["locked"]
    for name, text in mutations(document, "lock"):
        path.write_text(text)
        try:
            use(None, lock=path)
        except Exception as error:
            raise AssertionError(name) from error


def test_an_exported_file_that_holds_anything_is_refused_or_read(store, tmp_path):
    known = session(store)
    known.op("add")(X, X)
    document, path = transfer.exported(known.gate.store), tmp_path / "cpu-x.json"
    for _, text in mutations(document, "export"):
        path.write_text(text)
        try:
            transfer.imported(session(None).gate.store, *transfer.read(path))
            transfer.merged([transfer.read(path), transfer.read(path)])
        except InvalidInputError:
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            facts, pages = transfer.shipped("cpu", tmp_path)
            known.wisdom._shipped = lambda _, found=(facts, pages): found
            known.wisdom._complete.clear()
            known.wisdom.shelf(environment(torch.device("cpu")), "add")
            list(known.wisdom.keys("cpu"))


def test_a_recording_that_holds_anything_is_refused_or_described(tmp_path):
    known, path = session(None), tmp_path / "problems.jsonl"
    path.write_text("")
    with known.record(path):
        known.op("add")(X, X)
    document = json.loads(path.read_text().splitlines()[0])
    for _, text in mutations(document, "recording"):
        path.write_text(text + "\n")
        try:
            for _, line in read(path):
                described(known.registry.spec("add"), line)
        except InvalidInputError:
            pass


def test_there_are_enough_kinds_of_values():
    assert len(TEXTS) >= 33
