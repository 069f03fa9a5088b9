"""Shipped entries whose kernels have changed: found, named, removed."""

import json

import pytest
from typer.testing import CliRunner

from nxcore.cli import app, machine
from nxcore.offline import shipped
from nxcore.store import transfer
from tests.null import fakes


def entry(op, chosen="fast", captured=None, **makes):
    def candidate(label, timing):
        why = "" if timing else "needs CPU tensors"
        return {
            "label": label,
            "backend": label,
            "refusal": why,
            "simulated": False,
            "error": None,
            "ratio": None,
            "p_value": None,
            "timing": {"device_us": [1.0]} if timing else None,
        }

    decision = {
        "chosen": chosen,
        "rule": "measured",
        "reason": "it was faster",
        "noise": 0.01,
        "candidates": [*(candidate(label, True) for label in makes), candidate("refused", False)],
        "captured": {"chosen": captured, "rule": "measured", "reason": ""} if captured else None,
    }
    page = {"decision": decision, "again": None, "makes": makes, "late": [], "policy": "measure"}
    return {"key": {"op": op, "n": len(makes)}, "page": page | {"date": 1.0, "versions": {}}}


@pytest.fixture
def file(tmp_path):
    entries = [
        entry("add", torch="1", fast="1"),
        entry("add", "torch", torch="1", fast="1", slow="0"),
        entry("sum", "slow", torch="1", slow="0"),
        entry("sum", "torch", "slow", torch="1", fast="1", slow="0"),
    ]
    path = tmp_path / "cuda-one.json"
    part = {"facts": {"type": "cuda", "name": "One"}, "entries": entries}
    shipped.write(path, {"format": 1, "note": "n", "environments": [part]})
    return path


@pytest.fixture
def session(monkeypatch, as_default, file):
    """The default session, with kernels of which slow has changed since the file was written."""
    slow = fakes.kernel("add"), fakes.kernel("sum")
    found = fakes.session(fakes.backend("fast", fakes.kernel("add")), fakes.backend("slow", *slow))
    as_default(found)
    monkeypatch.setattr(shipped, "files", lambda: [file])
    fakes.identified(monkeypatch)
    return found


def why(op, label, identity):
    return "" if identity == "1" else "has changed"


def test_a_changed_kernel_is_named_with_its_problems(file):
    found = shipped.stale(why, [file])
    assert [str(s) for s in found] == [
        "slow has changed: 1 of 2 problems of add",
        "slow has changed: 2 of 2 problems of sum",
    ]
    assert found[0].to_dict()["device"] == "One"


def test_pruning_keeps_what_still_counts(file):
    document = shipped.pruned(transfer.read_json(file), why)
    (part,) = document["environments"]
    assert [e["key"]["op"] for e in part["entries"]] == ["add", "add"], "a stale kernel won the others"
    assert part["entries"][1]["page"]["makes"] == {"torch": "1", "fast": "1"}
    labels = [c["label"] for c in part["entries"][1]["page"]["decision"]["candidates"]]
    assert labels == ["torch", "fast", "refused"]
    assert document["note"] == "n"
    shipped.write(file, document)
    assert transfer.read_json(file) == document
    assert len(transfer.read(file)[1]) == 2
    assert shipped.stale(why, [file]) == []


def test_a_file_has_a_line_for_each_entry(file):
    assert len(file.read_text().splitlines()) == 4 + 4


def run(*command):
    found = CliRunner().invoke(app, ["wisdom", "shipped", *command])
    return found.exit_code, found.output


def test_the_command_lists_and_removes_what_is_stale(session, file):
    status, text = run("--json")
    assert status == 1
    assert {(r["op"], r["kernel"], r["why"]) for r in json.loads(text)} == {
        ("add", "slow", "has changed"),
        ("sum", "slow", "has changed"),
        ("sum", "fast", "isn't installed"),
    }
    assert "1 of 2" in run()[1]
    assert run("--prune")[0] == 0
    status, text = run()
    assert status == 0
    assert "every kernel in cuda-one.json is as it was measured" in text


def test_doctor_names_stale_entries(session, file):
    def shown():
        return next(row for row in machine.checked() if row["name"] == "shipped")

    assert shown()["ok"], "nothing is broken: the kernels are measured again"
    assert "slow has changed: 1 of 2 problems of add" in shown()["detail"]
    assert shown()["fix"] == "nxcore wisdom shipped lists them"
    shipped.write(file, shipped.pruned(transfer.read_json(file), why))
    assert shown()["detail"] == "cuda-one.json: every installed kernel is as it was measured"
