"""``nxcore doctor``: which calls of a program would need a compiler."""

import json

import pytest
import torch

from nxcore.offline import compilers
from tests.null import fakes
from tests.null.cli.commands import command

X = torch.ones(3)


@pytest.fixture
def trace(as_default, tmp_path):
    """The problem of one call, in a session with one kernel for it."""
    as_default(found := fakes.session(fakes.backend("fake", fakes.kernel("add"))))
    with found.record(path := tmp_path / "trace.jsonl"):
        found.op("add")(X, X)
    return path


def run(*words):
    return command("doctor", *words).output


def row(*words):
    return next(r for r in json.loads(run(*words, "--json")) if r["name"] == "compilers")


def told(monkeypatch, state, what=""):
    monkeypatch.setattr(compilers, "missing", lambda *_: (state, what))


def test_calls_of_a_trace_are_told_with_what_is_compiled_for_them(trace, monkeypatch):
    told(monkeypatch, "compiles", "add_kernel(float, float)")
    found = row("--from-trace", trace)
    assert found["ok"], "to compile is no fault"
    assert found["detail"].startswith("1 calls of trace.jsonl for ")
    assert found["detail"].endswith("; 1 kernels to compile")
    assert [(call["op"], call["kernel"]) for call in found["calls"]] == [("add", "fake")]
    text = run("--from-trace", trace)
    assert "what is compiled first" in text
    assert "add_kernel" in text
    assert "float, float" not in text
    assert f"nxcore tune --from-trace {trace} compiles ahead of time" in text


def test_what_isnt_known_is_told_and_what_is_on_disk_isnt(trace, monkeypatch):
    told(monkeypatch, "unknown", "nobody knows")
    assert row("--from-trace", trace)["detail"].endswith("; 1 unknown; none needs a compiler")
    assert "unknown: nobody knows" in run("--from-trace", trace)
    told(monkeypatch, "fails", "CompileError: no nvcc")
    assert row("--from-trace", trace)["detail"].endswith("; 1 that can't be compiled")
    assert "fails: CompileError: no nvcc" in run("--from-trace", trace)
    told(monkeypatch, "on disk")
    assert "what is compiled first" not in run("--from-trace", trace)


def test_without_a_trace_it_is_of_the_calls_on_record(trace, monkeypatch, cuda_answers):
    asked = []
    monkeypatch.setattr(compilers, "on_record", lambda session, device: asked.append(device.type) or [])
    cuda_answers(is_available=lambda: False)
    found = row()
    assert asked == ["cpu"]
    assert found["detail"].startswith("0 calls on record for ")
    assert found["detail"].endswith("; none needs a compiler")


def test_calls_of_devices_that_arent_here_are_counted(trace, cuda_answers):
    trace.write_text(trace.read_text().replace('"cpu"', '"cuda"'))
    cuda_answers(is_available=lambda: False)
    found = row("--from-trace", trace)
    here = "0 calls of trace.jsonl for no device of this machine"
    assert found["detail"] == f"{here}; 1 calls of other devices; none needs a compiler"
    assert found["calls"] == []
