"""A file of the package has an entry a line, which is parsed where it is asked for."""

import json

import pytest
import torch

from nxcore import session
from nxcore.offline import shipped
from nxcore.spec.problem import Problem
from nxcore.store import lines, transfer, wisdom
from nxcore.store.files import Store
from nxcore.store.lines import Line
from nxcore.store.wisdom import Wisdom


def package(folder, entries, facts):
    """Write a file as the package has it; return its path."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{facts['type']}-some.json"
    parts = [{"facts": facts, "entries": entries}]
    shipped.write(path, {"format": 1, "note": "as measured", "environments": parts})
    return path


@pytest.mark.parametrize("path", shipped.files(), ids=lambda path: path.name)
def test_the_packages_own_files_are_read_so_with_the_same_entries(path, monkeypatch):
    environments, pages = transfer.read(path, checked=False)
    monkeypatch.setattr(transfer, "read", None)
    found = transfer._kept(path, -1)
    assert found[0] == environments
    assert [*found[1]] == [*pages]
    for place in [*pages][:: len(pages) // 20]:
        line = found[1][place]
        assert isinstance(line, Line)
        assert (line[0], line[1], tuple(line), len(line)) == (*pages[place], pages[place], 2)
        assert line[:1] == pages[place][:1]
        assert line.names(pages[place][0]["op"])


def test_a_page_is_parsed_once_it_is_asked_for(tmp_path, monkeypatch):
    x = torch.ones(3)
    problem = Problem.of(session.default().registry.ops["add"], (x, x, 1, None))
    entry = {"key": wisdom.key(problem), "page": {"date": 0.0}}
    facts = problem.machine.to_dict()
    package(tmp_path, [entry, {"key": {"op": "mul"}, "page": {"date": 1.0}}], facts)
    parsed = []
    monkeypatch.setattr(wisdom, "page", lambda document: parsed.append(document))
    asked = Wisdom(Store(), lambda kind: transfer.shipped(kind, tmp_path))
    assert asked.environments("cpu") == [facts]
    assert {key["op"] for key in asked.keys("cpu")} == {"add", "mul"}
    assert (asked.read(problem), parsed) == (None, [{"date": 0.0}])
    assert asked.shelf(facts, "mul") == {}
    assert parsed == [{"date": 0.0}, {"date": 1.0}], "the other operator's page isn't parsed again"


def test_a_line_that_is_broken_is_no_entry():
    assert [*Line('{"key":{"op":"add"},"page":{"date":}}')] == [{}, {}]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('{"format":1,', '{"form":1,'),
        lambda text: text.replace(',"page":', ', "page": '),
        lambda text: text.replace('"facts"', '"fact"'),
        lambda text: text.replace("]}\n]}", "]}\nmore\n]}"),
        lambda text: text.replace('{"key":{', '{"key":{{'),
        lambda text: json.dumps(json.loads(text)),
    ],
)
def test_a_file_of_another_layout_is_read_whole(tmp_path, change):
    facts = {"type": "cpu", "name": "A"}
    text = package(tmp_path, [{"key": {"op": "add"}, "page": {"date": 1.0}}], facts).read_text()
    found = lines.lines(text)
    assert [(of, [(key, [*line]) for key, line in entries]) for of, entries in found] == [
        (facts, [({"op": "add"}, [{"op": "add"}, {"date": 1.0}])])
    ]
    assert lines.lines(change(text)) is None
