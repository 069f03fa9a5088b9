"""Ranks choose alike; keys carry the device of the tensors, whatever the current one is."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nxcore
from nxcore import session as sessions
from nxcore.cli.tune import together
from nxcore.distributed import Offer, agreed
from nxcore.errors import InvalidInputError
from nxcore.measure import race
from nxcore.measure.decision import Candidate, decide
from nxcore.spec import device
from nxcore.spec.problem import Problem
from nxcore.store.lock import Lock
from nxcore.store.pages import Page
from nxcore.store.wisdom import digest, environment, key
from nxcore.trust import fingerprint
from tests.null import fakes
from tests.null.fakes import SPECS

ROOT = Path(__file__).parents[2]
X = torch.arange(12.0).view(3, 4)
HERE = digest({"name": "here"})


def filed(n):
    return key(Problem.of(SPECS["add"], (torch.zeros(n), torch.zeros(n), 1, None)))


def offer(chosen, *, date=1.0, able=("torch", "fast"), here=HERE, locked=None):
    """Return an offer of a rank that chose a kernel for additions of so many elements."""
    pages = {}
    for n, label in chosen.items():
        us = {"torch": 20.0, "fast": 10.0 if label == "fast" else 40.0}
        candidates = [Candidate(k, k, timing=fakes.timing([t] * 12)) for k, t in us.items()]
        document = Page(decide(candidates), candidates[0].timing, {}, date=date).to_dict()
        pages[here, digest(filed(n))] = filed(n), document
    return Offer({here: {"name": "here"}}, pages, (HERE,), {"add": frozenset(able)}, locked or {})


def locked(*offers):
    lock = agreed(offers)[2]
    return {n: lock.label(filed(n)) for n in (1, 2, 3) if lock.label(filed(n))}


def test_the_first_ranks_choice_counts_whatever_is_later():
    assert locked(offer({1: "torch"}), offer({1: "fast"}, date=9.0)) == {1: "torch"}
    assert locked(offer({1: "fast"}), offer({1: "torch"}, date=9.0)) == {1: "fast"}


def test_what_the_first_rank_does_not_know_comes_from_the_latest():
    ranks = offer({}), offer({1: "fast"}), offer({1: "torch", 2: "fast"}, date=9.0)
    assert locked(*ranks) == {1: "torch", 2: "fast"}


def test_a_kernel_that_some_rank_lacks_serves_nowhere():
    assert locked(offer({1: "fast"}), offer({}, able=("torch",))) == {1: "torch"}


def test_figures_of_another_device_choose_nothing():
    assert locked(offer({1: "fast"}, here=digest({"name": "elsewhere"}))) == {}


def test_what_the_first_rank_had_locked_stays():
    assert locked(offer({1: "fast"}, locked={digest(filed(1)): "torch"})) == {1: "torch"}


def test_without_a_process_group_it_says_what_to_call():
    with pytest.raises(InvalidInputError, match=r"call torch\.distributed\.init_process_group first"):
        nxcore.distributed.agree()
    with pytest.raises(InvalidInputError, match="otherwise must be one of"):
        nxcore.distributed.agree(otherwise="never")


def test_what_is_held_to_a_lock_forgets_what_it_decided(monkeypatch):
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", {"torch": 100, "fast": 50})
    add = session.op("add")
    assert session.explain("add", X, X).decision.chosen == "fast"
    add(X, X)
    session.hold(Lock({digest(key(Problem.of(SPECS["add"], (X, X, 1, None)))): "torch"}), "frozen")
    with fakes.counting_resolves(add) as resolved:
        add(X, X)
        add(X[:2], X[:2])
    assert resolved == ["torch", "torch"]
    assert session.explain("add", X, X).decision.rule == "locked"
    assert session.explain("add", X[:2], X[:2]).decision.rule == "prior"


def test_what_was_learnt_before_ranks_agreed_comes_too_late():
    session = fakes.session(fakes.backend())
    problem = Problem.of(session.registry.spec("add"), (X, X, 1, None))
    choice = session.tuner.stay(problem, None, "some reason")
    before = session.chooser.lock
    session.hold(Lock({}), "frozen")
    exploring = replace(choice, decision=replace(choice.decision, rule="exploring"))
    for lock, kept in ((before, exploring), (session.chooser.lock, choice)):
        session.chooser.choices[(problem,)] = exploring
        session.chooser._learnt((problem,), lock, choice)
        assert session.chooser.choices[(problem,)] == kept


def test_what_ranks_found_is_in_the_order_of_the_cells():
    found = [{"rows": [0, 2, 4], "left": 0, "stopped": ""}, {"rows": [1, 3], "left": 1, "stopped": "budget"}]
    assert together(found) == {"rows": [0, 1, 2, 3, 4], "left": 1, "stopped": "budget"}


# ---- two ranks

LINKED = """
import sys
import pytest, torch
from torch import distributed
import nxcore
from nxcore import session
from tests.null import fakes

rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
patch = pytest.MonkeyPatch()
fakes.identified(patch)
session._default = fakes.scripted(
    fakes.Clock(), patch, "add", {"torch": 100, "fast": 50 if rank == 0 else 200}
)
both, second, new = torch.zeros(3), torch.zeros(4), torch.zeros(5)
before = nxcore.explain("add", both, both).decision.chosen
if rank == 1:
    nxcore.op("add")(second, second)
count = nxcore.distributed.agree()
told = [nxcore.explain("add", x, x).decision for x in (both, second, new)]
nxcore.op("add")(new, new)
print(before, count, *(f"{d.chosen}:{d.rule}" for d in told))
distributed.destroy_process_group()
"""


def together_run(*commands, **env):
    """Run commands at the same time; return what each wrote."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | env
    running = [
        subprocess.Popen(
            [sys.executable, *words],
            env=env | more,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for words, more in commands
    ]
    done = [p.communicate(timeout=300) for p in running]
    assert [p.returncode for p in running] == [0] * len(running), [err[-2000:] for _, err in done]
    return [out for out, _ in done]


def test_two_ranks_agree_on_the_firsts_choices(tmp_path):
    commands = [(["-c", LINKED, str(rank), str(tmp_path)], {}) for rank in (0, 1)]
    first, second = together_run(*commands, NXCORE_CACHE="0")
    same = "2 fast:locked torch:locked torch:prior\n"
    assert (first, second) == (f"fast {same}", f"torch {same}")


def tuned_by_two(folder, *words):
    """Return the rows of a tuning by two ranks that share a cache."""
    words = ["-m", "nxcore", "tune", "softmax_sum_backward", "--dtype", "float32", "--json", *words]
    words += ["--sample", "stride_zero_grad", "--sample", "only_logits", "--sample", "only_one_candidate"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    shared = {"NXCORE_CACHE": str(folder), "NXCORE_BACKENDS": ""}
    (printed,) = together_run((torchrun + words, {}), **shared)
    found = json.loads(printed)  # of one rank: two documents would be an error
    assert (found["left"], found["stopped"]) == (0, "")
    assert [(r["name"], r["status"]) for r in found["rows"]] == [
        ("stride_zero_grad float32", "measured"),
        ("only_logits float32", "measured"),
        ("only_one_candidate float32", "measured"),
    ]
    assert len(list(folder.glob("v1/*/entries/*.json"))) == 3
    return found["rows"]


@pytest.mark.slow
def test_ranks_share_the_tuning_and_the_first_prints(tmp_path):
    rows = tuned_by_two(tmp_path, "--device", "cpu")
    assert {r["problem"]["device"] for r in rows} == {"cpu"}


@pytest.mark.gpu
def test_each_rank_tunes_on_a_gpu_of_its_own(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    rows = tuned_by_two(tmp_path)
    assert [r["problem"]["device"] for r in rows] == ["cuda:0", "cuda:1", "cuda:0"]


# ---- the device of the tensors


@pytest.fixture
def two(monkeypatch, cuda_answers):
    """Two CUDA devices, as facts alone; the first is the current one."""
    facts = [device.Device("cuda", name, "9.0", 132, 1, 1) for name in ("first", "second")]
    monkeypatch.setattr(device, "_cuda", lambda index: facts[index])
    cuda_answers(current_device=lambda: 0)
    monkeypatch.setattr(fingerprint, "_driver", lambda: 13000)


def on(index):
    problem = Problem.of(SPECS["add"], (X, X, 1, None))
    where = torch.device("cuda", index)
    return fakes.replace(
        problem,
        args=tuple(fakes.replace(a, device=where) if i < 2 else a for i, a in enumerate(problem.args)),
    )


def test_wisdom_is_filed_by_the_device_of_the_tensors(two):
    session = fakes.session(fakes.backend())
    assert environment(on(1).device)["name"] == "second"
    page = Page(decide([Candidate("torch", "torch", timing=fakes.timing([1.0] * 12))]), None, {})
    session.wisdom.write(on(1), page)
    assert session.wisdom.read(on(1)) is not None
    assert session.wisdom.read(on(0)) is None
    assert on(0) != on(1)


def test_a_verdict_is_of_the_device_of_the_tensors(two):
    session = fakes.session(fakes.backend("fake", fakes.kernel("add")))
    own = session.registry.backends["fake"]
    names = [
        session.gate.suspect(own, own.kernels[0], on(i).device, torch.float32).device["name"] for i in (0, 1)
    ]
    assert names == ["first", "second"]


def test_a_race_is_run_on_the_device_of_the_tensors(cuda_answers):
    """Events and streams are the current device's: on another one they would see nothing of the work."""
    entered = []

    class Entered:
        def __init__(self, where):
            entered.append(where)

        def __enter__(self):
            raise StopIteration

        def __exit__(self, *why):
            pytest.fail("nothing was entered")

    cuda_answers(device=Entered)
    with pytest.raises(StopIteration):
        race.race({"a": lambda: None}, torch.device("cuda", 1))
    assert entered == [torch.device("cuda", 1)]
    assert race.race({"a": lambda: None}, torch.device("cpu"), effort=fakes.QUICK)
    assert len(entered) == 1


@pytest.mark.gpu
def test_on_a_second_gpu_calls_are_measured_there(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.randn(1 << 22, device="cuda:1")
    with torch.cuda.device(0):
        found = sessions.Session(nxcore.session.Settings(cache=tmp_path)).explain("add", x, x)
        device_us = found.decision["torch"].timing.device_median_us
    with torch.cuda.device(1):
        there = sessions.Session(nxcore.session.Settings(cache=None)).explain("add", x, x)
    assert found.problem.device == torch.device("cuda", 1)
    assert device_us == pytest.approx(there.decision["torch"].timing.device_median_us, rel=0.2)
