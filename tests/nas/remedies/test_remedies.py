"""Each remedy against a transcription of its paper's code in plain torch, and searches with each."""

import copy
import dataclasses
import json
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

import nxcore
from nxcore import nas
from nxcore.errors import InvalidInputError
from nxcore.nas.cells import Cell
from nxcore.nas.genotype import edges
from nxcore.nas.remedies.known import REMEDIES, made
from nxcore.nas.remedies.remedy import Remedy, Weighed
from nxcore.nn.exchange import PATCHED
from tests.nas.test_trainer import LEAST, images, same, state
from tests.table import for_each

SMALL = {"C": 8, "num_classes": 3, "layers": 3, "steps": 3, "multiplier": 2}


def network(name):
    """Return a remedy's network, a plain copy, an architecture with some spread, and images."""
    torch.manual_seed(0)
    net = REMEDIES[name].network(**SMALL).double()
    arch = REMEDIES[name].architecture(SMALL["steps"], multiplier=SMALL["multiplier"]).double()
    with torch.no_grad():
        arch.logits.mul_(1000)
    plain = copy.deepcopy(net)
    nas.unpatch(plain)
    return net, plain, arch, torch.randn(2, 3, 16, 16).double()


def outcome(call, net, arch):
    """Return scores, and the gradients of weights and architecture."""
    scores = call()
    loss = functional.cross_entropy(scores, torch.tensor([0, 2]))
    return [scores, *torch.autograd.grad(loss, [arch.logits, *net.parameters()], allow_unused=True)]


def through(plain, x, cell):
    s0 = s1 = plain.stem(x)
    for each in plain.cells:
        s0, s1 = s1, cell(each, s0, s1)
    return plain.classifier(plain.global_pooling(s1).flatten(1))


def of_mixed(plain, arch, x, mixed, weights_of):
    """Return the scores of a network by the code of DARTS, with another mixed operation."""

    def cell(self, s0, s1):
        weights, weights2 = weights_of(arch.logits[int(self.reduction)])
        states, offset = [self.preprocess0(s0), self.preprocess1(s1)], 0
        for _ in range(SMALL["steps"]):
            node = sum(
                weights2[offset + j] * mixed(self._ops[offset + j]._ops, h, weights[offset + j])
                for j, h in enumerate(states)
            )
            offset += len(states)
            states.append(node)
        return torch.cat(states[-SMALL["multiplier"] :], dim=1)

    return through(plain, x, cell)


def test_skip_decay_is_that_of_the_papers_code():
    net, plain, arch, x = network("skip_decay")
    for done in (0.0, 0.3, 1.0):
        REMEDIES["skip_decay"].anneal(None, net, done)

        def mixed(ops, x, weights, rate=1 - done):
            *own, auxiliary = ops
            res = sum(w * op(x) for w, op in zip(weights, own, strict=True))
            return res + auxiliary(x) * rate

        def weights_of(logits):
            return functional.softmax(logits, -1), torch.ones(len(logits))

        want = outcome(lambda m=mixed: of_mixed(plain, arch, x, m, weights_of), plain, arch)
        torch.testing.assert_close(outcome(lambda: net(x, *arch()), net, arch), want)
    torch.testing.assert_close(net.state_dict(), plain.state_dict())


def channel_shuffle(x, groups):
    batchsize, num_channels, height, width = x.size()
    x = x.view(batchsize, groups, num_channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(batchsize, -1, height, width)


def test_partial_is_that_of_the_papers_code():
    net, plain, arch, x = network("partial")

    def mixed(ops, x, weights, k=4):
        dim_2 = x.shape[1]
        xtemp, xtemp2 = x[:, : dim_2 // k], x[:, dim_2 // k :]
        temp1 = sum(w * op(xtemp) for w, op in zip(weights, ops, strict=True))
        if temp1.shape[2] == x.shape[2]:
            ans = torch.cat([temp1, xtemp2], dim=1)
        else:
            ans = torch.cat([temp1, nn.MaxPool2d(2, 2)(xtemp2)], dim=1)
        return channel_shuffle(ans, k)

    def weights_of(logits):
        betas, n, start = logits[:, -1], 3, 2
        weights2 = functional.softmax(betas[0:2], dim=-1)
        for _ in range(SMALL["steps"] - 1):
            end = start + n
            weights2 = torch.cat([weights2, functional.softmax(betas[start:end], dim=-1)])
            start, n = end, n + 1
        return functional.softmax(logits[:, :-1], -1), weights2

    want = outcome(lambda: of_mixed(plain, arch, x, mixed, weights_of), plain, arch)
    torch.testing.assert_close(outcome(lambda: net(x, *arch()), net, arch), want)
    torch.testing.assert_close(net.state_dict(), plain.state_dict())

    gene, n, start = [], 2, 0
    weights, weights2 = (t.detach() for t in weights_of(arch.logits[0]))
    for i in range(SMALL["steps"]):
        table = (weights * weights2[:, None])[start : start + n].tolist()
        best = [max(range(1, 8), key=lambda k, row=row: row[k]) for row in table]  # none is the first
        ranked = sorted(range(i + 2), key=lambda e, t=table, b=best: -t[e][b[e]])[:2]
        gene += [(nas.PRIMITIVES[best[e]], e) for e in ranked]
        start, n = start + n, n + 1
    assert list(arch.genotype().normal) == gene
    assert arch.entropies().shape == arch.logits.shape[:2]


def test_gumbel_draws_by_the_papers_formula_once_for_a_kind_of_cell():
    net, plain, arch, x = network("gumbel")
    REMEDIES["gumbel"].anneal(None, net, 0.0)
    assert net.tau.item() == 5
    REMEDIES["gumbel"].anneal(None, net, 1.0)
    assert net.tau.item() == pytest.approx(0.1)
    REMEDIES["gumbel"].anneal(None, net, 0.5)
    net.tau = net.tau.double()
    torch.manual_seed(5)
    noise = [-torch.empty(9, 8, dtype=torch.float64).exponential_().log() for _ in range(2)]
    drawn = [functional.softmax((a + g) / net.tau, -1) for a, g in zip(arch.logits, noise, strict=True)]

    def cell(self, s0, s1):
        return Cell.blended(self, s0, s1, drawn[self.reduction])

    want = outcome(lambda: through(plain, x, cell), plain, arch)
    torch.manual_seed(5)
    torch.testing.assert_close(outcome(lambda: net(x, *arch()), net, arch), want)


def preset(name, **more):
    sizes = {"C": 4, "steps": 3, "multiplier": 2, "retrain_epochs": 1, "drop_path": 0.0}
    return dataclasses.replace(LEAST, remedy=name, **(sizes | more))


def project(net, weights, queue, names, order):
    """Return the genes of a kind of cell, by the code of DARTS-PT; the first weights are its own."""
    own, other, reversed_ = weights
    flags = {}

    def infer(changed):
        given = (other, changed) if reversed_ else (changed, other)
        with torch.no_grad():
            scores = torch.cat([net.weighed(x, *given) for x, _ in queue])
        labels = torch.cat([y for _, y in queue])
        hits = (scores.argmax(1) == labels).sum().item() / len(labels)
        loss = sum(
            functional.cross_entropy(s, y) for s, y in zip(scores.split(4), labels.split(4), strict=True)
        )
        return hits, -loss.item() / len(queue)

    for eid in torch.randperm(len(own), generator=order).tolist():
        best, extreme = None, None
        for opid, name in enumerate(names):
            masked = own.clone()
            masked[eid] = masked[eid] * torch.ones(len(names)).index_fill(0, torch.tensor([opid]), 0.0)
            found = infer(masked)
            if name != "none" and (extreme is None or found < extreme):
                best, extreme = opid, found
        flags[eid] = best
        own[eid] = 0.0
        own[eid, best] = 1.0
    genes = {}
    nodes = edges(3)
    for node in torch.randperm(3, generator=order).tolist():
        eids = list(nodes[node])
        while len(eids) > 2:
            drops = {}
            for eid in eids:
                masked = own.clone()
                masked[eid].fill_(0)
                drops[eid] = infer(masked)
            eids.remove(max(eids, key=drops.get))
        genes[node] = [(names[flags[eid]], eid - nodes[node][0]) for eid in eids]
    return tuple(gene for node in range(3) for gene in genes[node])


def test_perturbation_selects_as_the_papers_code():
    trainer = nas.Trainer(images(), preset("perturbation", retrain_epochs=0), seed=2)
    for _ in range(2):
        trainer.advance()
    net = trainer.net
    with torch.no_grad():
        trainer.arch.logits.mul_(300)
        normal, reduce = ((net.weights(rows)) for rows in trainer.arch.logits)
    plain = copy.deepcopy(net)
    nas.unpatch(plain)
    queue = list(zip(*(t.split(4) for t in trainer.data.validation), strict=True))
    order, names = torch.Generator().manual_seed(2), trainer.arch.primitives
    normal, other = normal.clone(), reduce.clone()
    genes = project(plain, (normal, other, False), queue, names, order)
    genes_of_reduction = project(plain, (other, normal, True), queue, names, order)
    found = trainer.remedy.selected(trainer)
    assert (found.normal, found.reduce) == (genes, genes_of_reduction)


@pytest.mark.parametrize("name", REMEDIES)
def test_a_search_ends_in_a_genotype_and_goes_on_from_its_checkpoint(name, tmp_path):
    asked = preset(name, epochs=3)
    straight = nas.Trainer(images(), asked, seed=5)
    rows = list(straight.run())
    assert rows[-1]["phase"] == "retraining"
    assert len(straight.genotype.normal) == len(straight.genotype.reduce) == 6
    assert {gene for gene, _ in straight.genotype.normal} <= {*asked.primitives} - {"none"}
    assert rows[-1]["genotype"] == straight.genotype._asdict()
    cut = random.Random(name).randrange(1, len(rows))
    first = nas.Trainer(images(), asked, seed=5)
    for _, _ in zip(range(cut), first.run(tmp_path), strict=False):
        pass
    torch.manual_seed(99)
    second = nas.Trainer.restore(tmp_path / "checkpoint.pt", images())
    list(second.run(tmp_path))
    assert same(state(second), state(straight)), f"cut after {cut} epochs"
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["genotype"] == json.loads(json.dumps(rows[-1]["genotype"]))


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedys_cells_are_fused(name):
    net = REMEDIES[name].network(**SMALL)
    assert all(hasattr(type(cell), PATCHED) for cell in net.cells)
    assert all(hasattr(type(mixed), PATCHED) for cell in net.cells for mixed in cell._ops)


def test_early_stop_is_at_two_skip_connections():
    trainer = nas.Trainer(images(), preset("early_stop", epochs=9, warmup=0, retrain_epochs=0))
    names = trainer.arch.primitives
    for skips, stopped in ((2, None), (3, "skips")):
        with torch.no_grad():
            trainer.arch.logits.zero_()[..., names.index("dil_conv_3x3")] = 9.0
            for row in range(skips):  # of the first two nodes
                trainer.arch.logits[:, row, names.index("skip_connect")] = 20.0
        assert trainer.advance().get("stopped") == stopped
    assert trainer.genotype.skips() == 2


@for_each(
    ("given", "message"),
    [
        ({"remedy": "skipdecay"}, "remedy must be one of .* got 'skipdecay'; did you mean 'skip_decay'"),
        ({"remedy": "partial", "mode": "top_k"}, "remedy 'partial' needs mode 'exact' .* got mode 'top_k'"),
        (
            {"remedy": "gumbel", "mutations": (nas.Mutation(1, "node"),)},
            "remedy 'gumbel' needs .* a network that doesn't grow, got mutations",
        ),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(InvalidInputError, match=message):
        made(nas.Preset(**given))


def test_none_is_the_search_of_the_paper():
    assert type(made(nas.Preset())) is Remedy
    assert type(made(nas.Preset(remedy="early_stop", mode="top_k")).network) is type
    net = Weighed(**SMALL)
    other = nas.SearchNetwork(**SMALL)
    other.load_state_dict(net.state_dict())
    arch = nas.ArchitectureParameters(3, multiplier=2)
    x = torch.randn(2, 3, 8, 8)
    with nxcore.policy("frozen"):
        torch.testing.assert_close(net(x, *arch()), other(x, *arch()))
