"""What one process measured, the next one knows; what changed is measured again, and nothing else is."""

import json

import pytest
import torch

from nxcore.measure.timing import Timing
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.kernel import no, simulated
from nxcore.spec.problem import Problem
from nxcore.store import wisdom
from nxcore.store.files import Store
from nxcore.trust import gate
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.null.processes import ADD, Machine, X
from tests.table import for_each


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_the_next_process_knows_and_measures_nothing(machine):
    first = machine.chosen(fast=50, slow=200)
    assert first.chosen == "fast"
    again = machine.chosen(fast=50, slow=200)
    assert machine.raced == []
    assert (again.chosen, again.rule, again.reason, again.noise) == (
        first.chosen,
        first.rule,
        first.reason,
        first.noise,
    )
    assert [(c.label, c.timing) for c in again.candidates] == [(c.label, c.timing) for c in first.candidates]


def test_what_it_knows_serves_calls(machine):
    machine.chosen(fast=50)
    assert torch.equal(machine.process(fast=50).op("add")(X, X), 2 * X)
    assert machine.raced == []


def test_another_problem_is_measured(machine):
    machine.chosen(fast=50)
    session = machine.process(fast=50)
    session.op("add")(X[:2], X[:2])
    session.op("add")(X.t(), X.t())
    session.op("add")(X.half(), X.half())
    assert len(machine.raced) == 3


def test_a_new_plugin_is_measured_alone_against_torch(machine):
    machine.chosen(fast=50, slow=200)
    found = machine.chosen(fast=50, slow=200, faster=25)
    assert machine.raced == [["faster", "torch"]]
    assert found.chosen == "faster"
    assert found["fast"].timing is not None
    machine.chosen(fast=50, slow=200, faster=25)
    assert machine.raced == [], "and known from then on"


def test_an_upgraded_plugin_is_measured_alone_again(machine):
    machine.chosen(fast=50, other=70)
    machine.makes["fast"] = "2"
    found = machine.chosen(fast=80, other=70)
    assert machine.raced == [["fast", "torch"]]
    assert found.chosen == "other"


def test_the_ratio_counts_and_not_the_time_of_day(machine):
    """The machine is at half its speed when the second plugin is measured."""
    machine.chosen(torch=100, fast=50)
    found = machine.chosen(torch=200, fast=100, faster=80)
    assert found.chosen == "faster"
    assert found["faster"].timing.median_us == pytest.approx(40, rel=1e-3)


def test_a_plugin_that_is_gone_leaves_the_choice_to_the_others(machine):
    machine.chosen(fast=50, other=70)
    found = machine.chosen(other=70)
    assert machine.raced == []
    assert found.chosen == "other"
    assert machine.chosen().chosen == "torch"


def test_a_kernel_that_declines_now_leaves_the_choice_to_the_others(machine):
    machine.chosen(fast=50, other=70)
    machine.accepts["fast"] = lambda p: no("out of order")
    found = machine.chosen(fast=50, other=70)
    assert machine.raced == []
    assert (found.chosen, found["fast"].refusal.reason) == ("other", "out of order")


def test_of_those_that_were_timed_only_the_chosen_is_asked_again(machine):
    machine.chosen(fast=50, slow=200)
    asked = []
    machine.accepts = {n: lambda p, n=n: asked.append(n) or fakes.YES for n in ("fast", "slow")}
    assert machine.chosen(fast=50, slow=200).chosen == "fast"
    assert asked == ["fast"]


def test_a_simulated_kernel_is_not_asked_again(machine, monkeypatch):
    probes = {"slow": simulated("by a simulator")}
    made = fakes.backend

    def backend(label, *kernels):
        return made(label, *kernels, probe=lambda: probes.get(label, fakes.YES))

    monkeypatch.setattr(fakes, "backend", backend)
    assert machine.chosen(fast=50, slow=20)["slow"].simulated
    asked = []
    machine.accepts["slow"] = lambda p: asked.append(p) or fakes.YES
    assert machine.chosen(fast=50, slow=20)["slow"].simulated
    assert asked == []
    del probes["slow"]  # and is measured once it is none
    assert machine.chosen(fast=50, slow=20).chosen == "slow"


def test_a_kernel_that_declined_and_takes_it_now_is_measured(machine):
    machine.accepts["fast"] = lambda p: no("out of order")
    machine.chosen(fast=50, other=70)
    del machine.accepts["fast"]
    assert machine.chosen(fast=50, other=70).chosen == "fast"
    assert machine.raced == [["fast", "torch"]]


def test_a_kernel_in_quarantine_is_not_carried_over(machine):
    machine.chosen(fast=50, other=70)
    session = machine.process(fast=50, other=70)
    backend, kernel = next((b, k) for b, k in session.registry.kernels("add") if b.name == "fast")
    session.gate.quarantine.add(session.gate.suspect(backend, kernel, X.device, X.dtype), "wrong", "zeros")
    assert session.explain("add", X, X).decision.chosen == "other"
    assert machine.raced == []


def test_what_chance_had_a_part_in_is_not_kept(machine):
    def hungry(x, y, alpha, out):
        if x.shape == X.shape:
            raise torch.OutOfMemoryError("full")
        return ADD(x, y, alpha, out)

    session = machine.process(fast=50)
    session.registry.add_backend(
        fakes.backend("hungry", fakes.kernel("add", hungry)), fakes.Source("hungry", "nxcore-hungry 1.0")
    )
    session.op("add")(X, X)
    assert list(session.wisdom.pages(X.device)) == []


def test_without_a_source_nothing_is_kept(tmp_path):
    session = Session(
        Settings(cache=tmp_path, policy="measure"), fakes.registry(fakes.backend("fake")), fakes.QUICK
    )
    session.op("add")(X, X)
    assert list(session.wisdom.pages(X.device)) == []


def test_another_number_of_threads_is_another_environment(machine):
    machine.chosen(fast=50)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        machine.chosen(fast=50)
    finally:
        torch.set_num_threads(threads)
    assert len(machine.raced) == 1


def test_a_strict_backend_and_a_preference_measure_and_keep_nothing(machine):
    session = machine.process(fast=50)
    session.op("add", backend="fast")(X, X)
    with session.use("fast"):
        session.op("add")(X, X)
    assert list(session.wisdom.pages(X.device)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"decision": None},
        {"decision": {"chosen": "nobody"}},
        {"captured": {"chosen": "nobody", "rule": "measured", "reason": ""}},
        {"makes": []},
        {"date": "today"},
        {"late": [3]},
        {"again": {"device_us": [], "host_us": []}},
    ],
    ids=str,
)
def test_a_page_that_makes_no_sense_is_measured_again(machine, change):
    machine.chosen(fast=50)
    problem = Problem.of(SPECS["add"], (X, X, 1, None))
    store = Store(machine.folder)
    folder = f"{wisdom.digest(wisdom.environment(X.device))}/entries"
    document = store.read(folder, wisdom.key(problem))
    if "captured" in change:
        change = {"decision": document["decision"] | change}
    store.write(folder, wisdom.key(problem), document | change)
    assert machine.chosen(fast=50).chosen == "fast"
    assert len(machine.raced) == 1


def test_an_environment_is_written_with_its_first_page_and_again_if_it_is_gone(machine, monkeypatch):
    session, written, write = machine.process(fast=50), [], Store.write
    note = lambda self, kind, *of: written.append(kind) or write(self, kind, *of)  # noqa: E731  a stand-in
    monkeypatch.setattr(Store, "write", note)
    for size in (3, 5):
        session.explain("add", torch.randn(size), torch.randn(size))
    assert written.count("environments") == 1
    assert len([kind for kind in written if kind.endswith("/entries")]) == 2
    ((of, _),) = session.wisdom.store.items("environments")
    session.wisdom.store.remove("environments", of)
    session.explain("add", torch.randn(7), torch.randn(7))
    assert written.count("environments") == 2


def test_the_folder_tells_its_environment(machine):
    machine.chosen(fast=50)
    ((_, facts),) = Store(machine.folder).items("environments")
    assert facts == wisdom.environment(X.device)


def test_a_timing_keeps_its_ratio_to_the_one_beside_it():
    then, now = Timing((100.0, 200.0), (1.0, 1.0)), Timing((50.0, 50.0, 50.0), (1.0, 1.0, 1.0))
    paced = Timing((25.0, 25.0, 25.0), (5.0, 5.0, 5.0)).paced(then, now)
    assert paced == Timing((50.0, 100.0), (10.0, 20.0))
    then, now = Timing((4.0,), (10.0,)), Timing((2.0,), (10.0,))
    assert Timing((1.0,), (20.0,)).paced(then, now) == Timing((2.0,), (20.0,)), "of a CUDA graph's too"


def test_verdicts_are_asked_of_the_gate_all_the_same(machine, monkeypatch):
    machine.chosen(fast=50)
    asked = []
    verify = gate.Gate.verify
    monkeypatch.setattr(
        gate.Gate, "verify", lambda self, b, k, p: asked.append(b.label(k)) or verify(self, b, k, p)
    )
    machine.chosen(fast=50)
    assert asked == ["fast"]


@for_each("op", sorted(SPECS))
def test_every_problem_can_be_filed(op, tmp_path):
    """Whatever an operator's parameters are, such as a memory format: a file holds plain data."""
    for sample in SPECS[op].samples:
        if not sample.tags & {"bench", "huge"}:
            problem = Problem.of(SPECS[op], sample.build(SPECS[op], "cpu", torch.float32))
            assert json.loads(json.dumps(wisdom.key(problem))) == wisdom.key(problem)


def test_the_next_process_still_tells_of_those_that_must_be_asked_for(machine):
    def explained(**us):
        found = machine.process(asked=("slow",), **us).explain("add", X, X).decision
        return {c.label: str(c.refusal or "").partition(":")[0] for c in found.candidates}

    first = explained(fast=50, slow=10)
    assert first == {"torch": "", "fast": "", "slow": "only on request"}
    assert explained(fast=50, slow=10) == first
    assert machine.raced == []
    assert explained(fast=50, slow=10, new=70) == first | {"new": ""}
    assert explained(fast=50, new=70) == {"torch": "", "fast": "", "new": ""}, "it isn't installed any more"


def test_figures_are_filed_under_the_threads_that_were_there_before_a_kernel_was_loaded(machine):
    threads = torch.get_num_threads()

    def meddling(problem):
        torch.set_num_threads(threads + 1)
        return fakes.YES

    machine.accepts["fast"] = meddling
    try:
        machine.chosen(fast=50)
        torch.set_num_threads(threads)
        machine.accepts.clear()
        machine.chosen(fast=50)
    finally:
        torch.set_num_threads(threads)
    assert machine.raced == []
