"""A search trains, stops by its rules, and goes on from a checkpoint as if it had never stopped."""

import dataclasses
import itertools
import json
import math
import types

import pytest
import torch

from nxcore.errors import InvalidInputError
from nxcore.nas import trainer as trainers
from nxcore.nas.architecture import ArchitectureParameters
from nxcore.nas.data import Data, Split
from nxcore.nas.genotype import Genotype, drawn
from nxcore.nas.preset import PRESETS, Mutation, Preset
from nxcore.nas.trainer import Trainer

LEAST = Preset(
    C=2,
    layers=2,
    steps=1,
    multiplier=1,
    primitives=("none", "max_pool_3x3", "skip_connect", "dil_conv_3x3"),
    warmup=1,
    epochs=2,
    batch=4,
    lr=0.1,
    arch_lr=0.1,
    retrain_epochs=2,
    retrain_batch=8,
    retrain_C=2,
    retrain_layers=2,
    drop_path=0.3,
    pad=1,
    cutout=2,
    threads=1,
)


def images():
    draw = torch.Generator().manual_seed(0)

    def part(count):
        labels = torch.arange(count) % 2
        # One class is brighter above, the other below.
        x = torch.randn(count, 1, 8, 8, generator=draw)
        x[:, :, :4] += 2 * labels[:, None, None, None] - 1
        return Split(x, labels)

    return Data("stripes", ("below", "above"), part(12), part(12), part(6))


def without_time(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def same(got, want):
    """Compare states to the bit."""
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[k], want[k]) for k in want if k != "seconds")
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(map(same, got, want))
    return torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want


def state(trainer):
    return trainer.state_dict() | {"stops": trainer.state_dict()["stops"][2:]}  # but the time that it took


@pytest.mark.parametrize(
    ("cut", "order", "mode"),
    [(2, 1, "exact"), (2, 2, "exact"), (4, 1, "exact"), (2, 1, "threshold"), (2, 1, "sampled")],
    ids=["in the search", "second order", "in retraining", "decided", "drawn"],
)
def test_it_goes_on_as_if_it_had_never_stopped(cut, order, mode, tmp_path):
    preset = dataclasses.replace(LEAST, order=order, mode=mode)
    straight = Trainer(images(), preset, seed=5)
    rows = list(straight.run())
    assert [row["phase"] for row in rows] == ["warm-up", "search", "search", "retraining", "retraining"]
    first = Trainer(images(), preset, seed=5)
    for _, _ in zip(range(cut), first.run(tmp_path), strict=False):
        pass
    torch.manual_seed(99)  # a new process has drawn other numbers
    second = Trainer.restore(tmp_path / "checkpoint.pt", images())
    list(second.run(tmp_path))
    assert same(state(second), state(straight))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert without_time(lines) == without_time(json.loads(json.dumps(rows)))


GROWING = (Mutation(1, "widen", 4), Mutation(2, "deepen", 0), Mutation(2, "node"))


@pytest.mark.slow
@pytest.mark.parametrize("cut", [2, 4, 7], ids=["wider", "deeper", "in retraining"])
def test_a_search_that_grows_goes_on_from_its_checkpoint(cut, tmp_path):
    preset = dataclasses.replace(LEAST, epochs=3, mutations=GROWING)
    straight = Trainer(images(), preset, seed=5)
    rows = list(straight.run())
    assert [row["phase"] for row in rows] == [
        *("warm-up", "mutation", "search", "mutation", "mutation", "search", "search"),
        *("retraining", "retraining"),
    ]
    first = Trainer(images(), preset, seed=5)
    for _, _ in zip(range(cut), first.run(tmp_path), strict=False):
        pass
    torch.manual_seed(99)
    second = Trainer.restore(tmp_path / "checkpoint.pt", images())
    list(second.run(tmp_path))
    assert same(state(second), state(straight))


def test_a_mutation_keeps_the_function_and_the_optimizers_state():
    found = Trainer(images(), dataclasses.replace(LEAST, epochs=3, mutations=GROWING[::-1]))
    rows = [found.advance() for _ in range(6)]
    grown = [row for row in rows if row["phase"] == "mutation"]
    assert [row["grown"] for row in grown] == ["widen 4", "node", "deepen 0"]
    assert all(row["difference"] < 1e-5 for row in grown)
    sizes = [row["parameters"] for row in grown]
    assert sizes == sorted(set(sizes))
    assert (found.net.C, found.net.inserted, found.net.steps, found.arch.steps) == (4, (0,), 2, 2)
    assert len(found.optimizer.state) == sum(1 for p in found.net.parameters() if p.grad is not None)
    assert found.optimizer.param_groups[0]["params"] == list(found.net.parameters())
    found.advance()
    assert len(found.genotype.normal) == 4, "two edges a node"


def test_each_phase_moves_what_it_should():
    found = Trainer(images(), LEAST)
    logits, weights = found.arch.logits.detach().clone(), found.net.classifier.weight.detach().clone()
    found.advance()
    assert torch.equal(found.arch.logits, logits), "warm-up: weights alone"
    assert not torch.equal(found.net.classifier.weight, weights)
    row = found.advance()
    assert row["phase"] == "search"
    assert not torch.equal(found.arch.logits, logits)
    assert row["genotype"] == found.arch.genotype()._asdict() == found.genotype._asdict()
    assert found.advance()["stopped"] == "epochs"
    logits = found.arch.logits.detach().clone()
    row = found.advance()
    assert row["phase"] == "retraining"
    assert 0 <= row["held_out_accuracy"] <= 1
    assert torch.equal(found.arch.logits, logits)


def test_what_runs_is_decided_once_an_epoch_and_kept(tmp_path):
    found = Trainer(images(), dataclasses.replace(LEAST, mode="threshold"))
    with torch.no_grad():
        found.arch.logits[..., 0] = -10
    found.advance()
    assert not found.net.kept[:, 0].any()
    found.save(tmp_path / "checkpoint.pt")
    again = Trainer.restore(tmp_path / "checkpoint.pt", images())
    assert torch.equal(again.net.kept, found.net.kept)


def test_the_learning_rate_follows_a_cosine():
    found = Trainer(images(), LEAST)
    got = [row["lr"] for row in found.run()]
    want = [0.1, *(0.001 + 0.099 * (1 + math.cos(math.pi * e / 3)) / 2 for e in (1, 2)), 0.025, 0.0125]
    assert got == pytest.approx(want)


def test_what_is_learned_is_seen_in_the_held_out_images():
    preset = dataclasses.replace(
        LEAST, retrain_epochs=12, retrain_C=4, retrain_lr=0.1, drop_path=0.0, cutout=0
    )
    rows = list(Trainer(images(), preset, seed=1).run())
    assert rows[-1]["held_out_accuracy"] == 1.0


def test_it_stops_before_skip_connections_take_over():
    found = Trainer(images(), dataclasses.replace(LEAST, warmup=0, epochs=9, skips=1, retrain_epochs=0))

    def favoured(name: str) -> None:
        with torch.no_grad():
            found.arch.logits.zero_()[..., LEAST.primitives.index(name)] = 9.0

    favoured("dil_conv_3x3")
    first = found.advance()
    favoured("skip_connect")
    last = found.advance()
    assert (first.get("stopped"), last["stopped"], found.phase) == (None, "skips", "done")
    assert (
        [name for name, _ in last["genotype"]["normal"]]
        == ["dil_conv_3x3"] * 2
        == [name for name, _ in found.genotype.reduce]
    )


def test_it_stops_where_its_rules_say(monkeypatch):
    never_better = dataclasses.replace(LEAST, warmup=0, epochs=9, patience=2, retrain_epochs=0)
    found = Trainer(images(), never_better)
    found._best = 0.0
    rows = list(found.run())
    assert [row.get("stopped") for row in rows] == [None, "patience"]
    now = iter(range(0, 1000, 5))
    # The trainer's alone: a learning thread may look at the clock too.
    monkeypatch.setattr(trainers, "time", types.SimpleNamespace(perf_counter=lambda: next(now)))
    rows = list(Trainer(images(), dataclasses.replace(LEAST, epochs=9, budget_s=18, retrain_epochs=9)).run())
    assert [row.get("stopped") for row in rows] == [None, "budget", None, "budget"]
    # Five seconds an epoch: retraining has 8, from 10 to 18.
    assert rows[3]["lr"] == pytest.approx(0.025 * (1 + math.cos(math.pi * 5 / 8)) / 2)


@pytest.mark.gpu
@pytest.mark.parametrize("order", [1, 2])
def test_on_a_gpu_it_goes_on_where_it_was(order, tmp_path):
    preset = dataclasses.replace(LEAST, order=order)
    first = Trainer(images().to("cuda"), preset)
    for _, _ in zip(range(2), first.run(tmp_path), strict=False):
        pass
    second = Trainer.restore(tmp_path / "checkpoint.pt", images().to("cuda"))
    assert same(state(second), state(first))
    rows = list(second.run(tmp_path))
    assert [row["phase"] for row in rows] == ["search", "retraining", "retraining"]
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert second.arch_optimizer.param_groups[0]["fused"]
    assert second.net.classifier.weight.is_cuda


def test_it_trains_on_as_many_threads_as_it_is_told(monkeypatch):
    before, seen = torch.get_num_threads(), []
    searched = Trainer._searched
    monkeypatch.setattr(
        Trainer, "_searched", lambda *a, **k: (seen.append(torch.get_num_threads()), searched(*a, **k))[1]
    )
    Trainer(images(), LEAST).advance()
    assert seen == [1]
    assert torch.get_num_threads() == before


def test_a_checkpoint_is_of_its_data_and_format(tmp_path):
    found = Trainer(images(), LEAST)
    found.save(tmp_path / "here.pt")
    other = dataclasses.replace(images(), name="dots")
    with pytest.raises(InvalidInputError, match=r"data must be that of .*here.pt, .*stripes.*, got .*dots"):
        Trainer.restore(tmp_path / "here.pt", other)
    state = torch.load(tmp_path / "here.pt", weights_only=True)
    torch.save(state | {"cuda": torch.zeros(16, dtype=torch.uint8)}, tmp_path / "there.pt")
    with pytest.raises(InvalidInputError, match=r"device must have type 'cuda', as in .*, got 'cpu'"):
        Trainer.restore(tmp_path / "there.pt", images())
    torch.save({"format": 0}, tmp_path / "old.pt")
    with pytest.raises(InvalidInputError, match=r"old.pt must have format 2, got 0"):
        Trainer.restore(tmp_path / "old.pt", images())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"order": 3}, "order must be 1 or 2, got 3"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"mutations": [{"epoch": 1, "kind": "wide"}]}, "kind must be one of widen, .* got 'wide'"),
    ],
)
def test_what_a_preset_refuses(given, message):
    with pytest.raises(InvalidInputError, match=message):
        Preset(**given)


def test_the_papers_preset_is_the_papers():
    p = PRESETS["darts"]
    assert (p.C, p.layers, p.steps, p.batch, p.epochs) == (16, 8, 4, 64, 50)
    assert (p.retrain_C, p.retrain_layers, p.retrain_epochs, p.retrain_batch) == (36, 20, 600, 96)


def test_a_given_genotype_is_trained_without_a_search_and_goes_on(tmp_path):
    genotype = drawn(LEAST.primitives, LEAST.steps, LEAST.multiplier, torch.Generator().manual_seed(1))
    straight = Trainer(images(), LEAST)
    straight.train(genotype)
    rows = list(straight.run())
    assert [row["phase"] for row in rows] == ["retraining"] * LEAST.retrain_epochs
    assert all(Genotype(**row["genotype"]) == genotype for row in rows)
    halted = Trainer(images(), LEAST)
    halted.train(genotype)
    halted.advance()
    halted.save(tmp_path / "checkpoint.pt")
    resumed = Trainer.restore(tmp_path / "checkpoint.pt", images())
    list(resumed.run())
    assert same(without_time(resumed.history), without_time(rows)), "to the bit"


def test_held_out_images_are_evaluated_each_few_epochs_and_where_it_may_end(monkeypatch):
    own = {"held_out_every": 3, "retrain_epochs": 8}

    def evaluated(budget_s):
        clock = itertools.count()  # an epoch takes a second
        monkeypatch.setattr(trainers.time, "perf_counter", lambda: float(next(clock)))
        trainer = Trainer(images(), dataclasses.replace(LEAST, **own, budget_s=budget_s))
        trainer.train(trainer.genotype)
        return [row["epoch"] for row in trainer.run() if "held_out_accuracy" in row]

    assert evaluated(math.inf) == [1, 3, 6, 8], "how long the first one takes isn't known"
    assert evaluated(5.0) == [1, 3, 4, 5]


def test_a_given_genotype_has_the_whole_budget():
    trainer = Trainer(images(), dataclasses.replace(LEAST, budget_s=1000.0))
    trainer.train(trainer.genotype)
    trainer.spent_s = 600.0  # over half of it, where a search ends
    assert "stopped" not in trainer.advance()


def test_a_random_genotype_reads_distinct_states_by_any_operation_but_none():
    draw = torch.Generator().manual_seed(0)
    genotypes = [drawn(PRESETS["darts"].primitives, 4, 4, draw) for _ in range(50)]
    assert {name for g in genotypes for name, _ in g.normal} == {*PRESETS["darts"].primitives} - {"none"}
    for genotype in genotypes:
        assert genotype.normal_concat == genotype.reduce_concat == (2, 3, 4, 5)
        for cell in (genotype.normal, genotype.reduce):
            for node in range(4):
                (_, first), (_, second) = cell[2 * node : 2 * node + 2]
                assert first != second
                assert max(first, second) < node + 2
    assert len(set(genotypes)) == 50


def test_a_row_leaves_no_node_of_the_logits(monkeypatch):
    """A node on the default stream would end the capture of the architecture's pass, on another stream."""
    asked = []
    entropy = ArchitectureParameters.entropy
    monkeypatch.setattr(
        ArchitectureParameters, "entropy", lambda arch: asked.append(torch.is_grad_enabled()) or entropy(arch)
    )
    row = Trainer(images(), LEAST).advance()
    assert row["entropy"] > 0
    assert asked == [False]
