"""The wisdom in the package is of the kernels beside it. Neither a GPU nor a compiler is needed."""

import json
import os

import pytest
import torch

from nxcore import session
from nxcore.offline import shipped
from nxcore.spec.problem import Problem
from nxcore.store import transfer, wisdom
from nxcore.store.files import Store
from nxcore.store.wisdom import Wisdom, is_pair
from tests.stand_ins import stand_in

transfer_has = stand_in(transfer)


@pytest.mark.parametrize("path", shipped.files(), ids=lambda path: path.name)
def test_no_shipped_entry_is_stale(path, monkeypatch):
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a process was started"))
    found = shipped.stale(shipped.compared(session.default()), [path])
    fix = (
        "Where a kernel was only rewritten, `python benchmarks/retrace.py COMMIT` keeps its figures, with the"
        " commit at which they counted. Otherwise measure it again, or run `nxcore wisdom shipped --prune`."
    )
    assert not found, "\n".join([*map(str, found), fix])


@pytest.mark.parametrize("path", shipped.files(), ids=lambda path: path.name)
def test_a_shipped_file_is_read_whole(path):
    _, pages = transfer.read(path)
    entries = [entry for part in json.loads(path.read_text())["environments"] for entry in part["entries"]]
    assert len(pages) == len(entries) > 0
    for entry in entries:
        makes, decision = entry["page"]["makes"], entry["page"]["decision"]
        timed = {c["label"] for c in decision["candidates"] if c["timing"]}
        assert is_pair(entry["key"]) or timed <= set(makes), "every kernel that was timed has an identity"
        assert makes


def test_a_file_of_the_package_is_read_once_for_all_sessions(tmp_path, transfer_has):
    """It has megabytes, and is read anew where it has changed."""
    path = tmp_path / "cuda-x.json"
    path.write_text('{"format": 1, "environments": []}', encoding="utf-8")
    reads, read = [], transfer.read_json
    transfer_has(read_json=lambda path, *how: reads.append(path) or read(path, *how))
    for _ in range(2):
        assert transfer.shipped("cuda", tmp_path) == ({}, {})
    assert reads == [path]
    facts = {"name": "A"}
    path.write_text(json.dumps({"format": 1, "environments": [{"facts": facts, "entries": []}]}), "utf-8")
    os.utime(path, ns=(1, 1))
    assert list(transfer.shipped("cuda", tmp_path)[0].values()) == [facts]


def test_pages_of_the_package_are_looked_at_when_they_are_asked_for(tmp_path, transfer_has):
    """A process asks for a few, and to look at all takes longer than to read the file."""
    x = torch.ones(3)
    problem = Problem.of(session.default().registry.ops["add"], (x, x, 1, None))
    broken = {"key": wisdom.key(problem), "page": {"date": 0.0}}
    parts = [{"facts": problem.machine.to_dict(), "entries": [broken]}]
    (tmp_path / "cpu-x.json").write_text(json.dumps({"format": 1, "environments": parts}), encoding="utf-8")
    asked = Wisdom(Store(), lambda kind: transfer.shipped(kind, tmp_path))
    transfer_has(page=None)
    assert asked.environments("cpu") == [parts[0]["facts"]]
    assert asked.read(problem) is None


def test_a_shelf_looks_at_the_pages_of_one_operator(tmp_path, monkeypatch):
    path = next(path for path in shipped.files() if path.name.startswith("cuda-"))
    environments, pages = transfer.read(path, checked=False)
    name, facts = next(iter(environments.items()))
    ops = [key["op"] for (of, _), (key, _) in pages.items() if of == name]
    looks, page = [], wisdom.page
    monkeypatch.setattr(wisdom, "page", lambda document: looks.append(1) or page(document))
    held = Wisdom(Store(), lambda kind: (environments, pages))
    for _ in range(2):
        assert len(held.shelf(facts, ops[0])) == ops.count(ops[0]) == len(looks)
    assert held.shelf(facts, "none") == {}
