"""``benchmarks/retrace.py``: shipped figures are kept where a rewritten kernel launches the same."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLANNER = "plugins/cuda/src/nxcore_cuda/softmax_sum.py"
COMPILER = "plugins/cupy/src/nxcore_cupy/compile.py"


@pytest.fixture(scope="module")
def retrace():
    found = importlib.util.spec_from_file_location("retrace", ROOT / "benchmarks" / "retrace.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def document(**makes):
    return {"environments": [{"entries": [{"key": {"op": "add"}, "page": {"makes": makes}}]}]}


def test_an_entry_takes_the_new_identity_where_the_traces_agree(retrace):
    then = [{"same": ("1", "t"), "other": ("1", "t"), "untouched": ("1", "t")}]
    now = [{"same": ("2", "t"), "other": ("2", "u"), "untouched": ("1", "t"), "new": ("1", "t")}]
    makes = {"same": "1", "other": "1", "untouched": "1", "gone": "1"}
    now[0].pop("new")
    found, counts = retrace.rewritten(document(**makes), then, now)
    assert found == document(same="2", other="1", untouched="1", gone="1")
    assert counts == {("same", "add", "kept"): 1, ("other", "add", "stale"): 1}


def test_an_entry_that_was_stale_before_stays_so(retrace):
    found, counts = retrace.rewritten(document(old="0"), [{"old": ("1", "t")}], [{"old": ("2", "t")}])
    assert found == document(old="0")
    assert counts == {("old", "add", "stale"): 1}


def test_a_pair_is_traced_as_its_two_calls(retrace):
    forward, backward = {"op": "max_pool2d", "x": 1}, {"op": "max_pool2d_backward", "grad": 2}
    makes = {"max_pool2d_with_offsets: cuda": "1", "max_pool2d_backward: torch": "2"}
    key = {"op": "max_pool2d with gradient", "forward": forward, "backward": backward}
    assert list(retrace.calls({"key": key, "page": {"makes": makes}})) == [
        ("max_pool2d_backward: torch", "max_pool2d_backward", "torch", backward),
        ("max_pool2d_with_offsets: cuda", "max_pool2d_with_offsets", "cuda", forward),
    ]
    plain = {"key": forward, "page": {"makes": {"cuda": "1"}}}
    assert list(retrace.calls(plain)) == [("cuda", "max_pool2d", "cuda", forward)]


@pytest.mark.slow
def test_a_trace_differs_where_the_launch_does_and_only_there(retrace, tmp_path):
    record = json.loads((ROOT / "nxcore/store/shipped/cuda-h200.json").read_text())
    part = record["environments"][0]
    part["entries"] = [next(e for e in part["entries"] if e["key"]["op"] == "softmax_sum")]
    file = tmp_path / "cuda-one.json"
    file.write_text(json.dumps({"format": 1, "environments": [part]}))
    for folder in ("nxcore", "plugins"):
        ignored = shutil.ignore_patterns("__pycache__", "images", "build", "*.so")
        shutil.copytree(ROOT / folder, tmp_path / "tree" / folder, ignore=ignored)

    def traces(path="", was="", now=""):
        place = tmp_path / "tree" / path
        text = place.read_text() if path else ""
        if path:
            assert was in text
            place.write_text(text.replace(was, now))
        (found,) = retrace.run(tmp_path / "tree", [file])[file.name]
        if path:
            place.write_text(text)
        return found

    before = traces()
    assert {"torch", "torch-einsum", "cuda", "cupy", "triton"} <= set(before)

    renamed = traces(PLANNER, "_flat(", "_evenly(")
    assert renamed["cuda"][0] != before["cuda"][0], "another identity"
    assert [label for label in before if renamed[label][1] != before[label][1]] == []

    wider = traces(PLANNER, "max(chosen.threads, THREADS)", "max(chosen.threads, 1024)")
    assert [label for label in before if wider[label][1] != before[label][1]] == ["cuda", "cupy"]

    flags = traces(COMPILER, '"-std=c++17"', '"-std=c++20"')
    assert [label for label in before if flags[label][1] != before[label][1]] == ["cupy"]
