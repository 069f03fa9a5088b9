"""Which calls need a compiler: nothing is compiled to find out."""

import contextlib
import json

import torch

from nxcore.offline import compilers
from nxcore.plugin import simulated
from nxcore.spec.compiling import compiling
from nxcore.spec.problem import Problem
from nxcore.spec.tally import tally
from nxcore.store.problems import moved
from nxcore.store.wisdom import key
from tests.null import fakes

X = torch.ones(4, 3)


def problem(op="add", x=X):
    spec = fakes.SPECS[op]
    return Problem.of(spec, spec.bind(x, x) if op == "add" else spec.bind(x))


def planner(*missing):
    """Return a planner that must compile for tensors of these shapes."""

    def plan(of):
        if of.tensors[0].shape in missing:
            compiling(f"code for {of.op}")
        return of.spec.reference

    return plan


def session(*missing, announces=True, **how):
    kernel = fakes.kernel("add", planner=planner(*missing), announces=announces)
    found = fakes.session(fakes.backend("mine", kernel, **how))
    found.gate.samples = lambda backend, kernel, problem: []
    return found


def states(of, *problems):
    return [(c.kernel, c.origin, c.state, c.what) for c in compilers.calls(of, problems)]


def test_an_unknown_call_names_every_kernel_that_may_take_part():
    before = tally().compilations
    assert states(session(), problem()) == [("mine", "unknown", "on disk", "")]
    assert states(session((4, 3)), problem()) == [("mine", "unknown", "compiles", "code for add")]
    assert states(session((4, 3)), problem(x=torch.ones(5))) == [("mine", "unknown", "on disk", "")]
    assert states(session((4, 3)), problem("sum")) == [], "torch's own needs none"
    assert tally().compilations == before


def test_what_verifies_a_kernel_counts_too():
    spec = fakes.SPECS["add"]
    sample = spec.tagged("smoke")[0]
    shape = Problem.of(spec, sample.build(spec, "cpu", torch.float32)).tensors[0].shape
    of = session(shape)
    of.gate.samples = lambda backend, kernel, problem: [sample.name]
    assert states(of, problem()) == [("mine", "unknown", "compiles", "code for add")]


def test_what_a_plugin_doesnt_tell_is_unknown():
    why = "its plugin doesn't report what is on disk"
    assert states(session(announces=False), problem()) == [("mine", "unknown", "unknown", why)]
    of = session()
    kernel = of.registry.backend("mine").kernels[0]
    object.__setattr__(kernel, "planner", fakes.raising(OSError("no compiler")))
    (found,) = states(of, problem())
    assert found[2] == "fails"
    assert found[3].startswith("OSError: no compiler")


def test_a_simulated_kernel_is_left_out():
    assert states(session((4, 3), probe=lambda: simulated("an emulator")), problem()) == []


def test_winners_on_record_are_asked_and_changed_kernels_are_not(monkeypatch):
    fakes.identified(monkeypatch, "1")
    of = fakes.scripted(fakes.Clock(), monkeypatch, "add", {"torch": 100, "fast": 50, "slow": 200})
    with of.policy("measure"):
        of.op("add")(X, X)
    (known,) = compilers.on_record(of, torch.device("cpu"))
    assert known.to_dict() == problem().to_dict()
    assert states(of, known) == [("fast", "recorded", "unknown", compilers.UNTOLD)]
    fakes.identified(monkeypatch, "2")
    assert states(of, known) == []


def test_a_trace_is_read(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(key(problem()) | {"count": 2}) + "\n")
    assert compilers.of_trace(fakes.session(), path) == [problem()]


def test_a_gpu_s_code_is_asked_of_its_backend(monkeypatch, cuda_answers):
    asked = []

    def ahead(kernel, problem, capability):
        asked.append((problem.op, capability))
        compiling("an image")

    cuda_answers(get_device_capability=lambda device: (9, 0))
    monkeypatch.setattr("nxcore.choose.ahead.current", lambda device: contextlib.nullcontext())
    backend = fakes.replace(fakes.backend("gpu", fakes.kernel("add")), ahead=ahead)
    there = moved(problem(), torch.device("cuda"))
    assert compilers.missing(backend, backend.kernels[0], [there]) == ("compiles", "an image")
    assert asked == [("add", (9, 0))]
    unasked = fakes.replace(backend, ahead=None)
    assert compilers.missing(unasked, backend.kernels[0], [there]) == ("unknown", compilers.UNTOLD)
