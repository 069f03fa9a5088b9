"""What records ask of a wheel: the winners of both regimes, with the samples that verify them."""

import json

import pytest
import torch

from nxcore.offline import release
from nxcore.spec.problem import Problem
from nxcore.store.wisdom import key
from nxcore.trust.samples import sampled
from tests.null import fakes
from tests.null.fakes import SPECS

FACTS = {"type": "cuda", "name": "One", "capability": "9.0", "units": 132, "memory": 1 << 30, "l2": 1 << 20}


def entry(op, chosen, captured=None):
    spec = SPECS[op]
    problem = Problem.of(spec, spec.tagged("smoke")[0].build(spec, "cpu", torch.float32))
    of = key(problem)
    of["devices"] = ["cuda"] * len(of["devices"])
    decision = {"chosen": chosen, "captured": {"chosen": captured} if captured else None}
    return {"key": of, "page": {"decision": decision}}


@pytest.fixture
def asked(tmp_path):
    def found(*entries, facts=FACTS, kernels=()):
        path = tmp_path / "cuda-one.json"
        path.write_text(json.dumps({"environments": [{"facts": facts, "entries": list(entries)}]}))
        return list(release.wanted(fakes.backend("mine", *kernels), [path]))

    return found


def test_winners_are_asked_for_and_others_are_not(asked):
    found = asked(entry("add", "mine"), entry("sum", "torch", "mine"), entry("entropy", "torch"))
    assert {a.kernel.op for a in found} == {"add", "sum"}
    assert {t.device.type for a in found for t in a.problem.tensors} == {"cuda"}
    assert {a.capability for a in found} == {(9, 0)}
    assert found[0].facts["shared_memory_per_block_optin"] == 232448


def test_the_samples_that_verify_a_kernel_are_asked_for_once(asked):
    spec, registry = SPECS["add"], fakes.registry()
    found = asked(entry("add", "mine"), entry("add", "mine"))
    problem = Problem.of(spec, spec.tagged("smoke")[0].build(spec, "cpu", torch.float32))
    assert len(found) == len(sampled(found[0].kernel, problem, registry)), "the problem is that of a sample"
    assert len({a.problem for a in found}) == len(found)


def test_of_a_composed_kernel_each_part_is_asked_for(asked):
    spec = SPECS["sep_conv2d_batch_norm"]
    halves = [fakes.kernel(op) for op in spec.parts.ops]
    found = asked(entry(spec.name, "mine"), kernels=halves)
    assert {a.kernel.op for a in found} == set(spec.parts.ops)
    assert all(a.problem.op == a.kernel.op for a in found)


def named(problem):
    """Name the samples that verify a part for calls like ``problem``, as a plugin does."""
    return ("one_plane",)


def test_so_are_the_samples_on_which_one_part_alone_is_verified(asked):
    spec = SPECS["sep_conv2d_batch_norm"]
    first, second = spec.parts.ops
    halves = [fakes.kernel(first, verified_for=f"{__name__}:named"), fakes.kernel(second)]
    without = asked(entry(spec.name, "mine"), kernels=[fakes.kernel(op) for op in (first, second)])
    found = asked(entry(spec.name, "mine"), kernels=halves)
    more = {a.problem for a in found} - {a.problem for a in without}
    sample = next(s for s in SPECS[first].samples if s.name == "one_plane")
    assert more == {release.of_sample(fakes.registry(), first, sample.name, torch.float32)}


def test_other_devices_pairs_and_unknown_operators_ask_for_nothing(asked):
    strange, pair = entry("add", "mine"), entry("add", "mine")
    strange["key"] = {"op": "of another version"}
    pair["key"] = {"op": "add with gradient"}
    assert asked(strange, pair) == []
    assert asked(entry("add", "mine"), facts=FACTS | {"type": "cpu"}) == []


@pytest.mark.parametrize(("capability", "shared"), [("8.0", 166912), ("8.6", 101376), ("12.0", 101376)])
def test_a_block_s_memory_is_known_by_capability(capability, shared):
    found = release.properties(FACTS | {"capability": capability})
    assert f"{found['major']}.{found['minor']}" == capability
    assert found["shared_memory_per_block_optin"] == shared
