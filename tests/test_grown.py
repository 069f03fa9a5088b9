"""``benchmarks/grown.py``: what a search that grows ends as, and a race of the least."""

import dataclasses
import re

import nxcore
from benchmarks import grown
from nxcore import nas
from tests.nas.test_trainer import LEAST, images

GROWS = (nas.Mutation(1, "widen", 4), nas.Mutation(2, "node"), nas.Mutation(2, "deepen", 0))
PRESET = dataclasses.replace(LEAST, warmup=0, epochs=3, retrain_epochs=0, mutations=GROWS)


def test_what_it_ends_as_begins_with_its_sizes_and_takes_as_long():
    with nxcore.policy("frozen"):
        ends = nas.Trainer(images(), PRESET)
        list(ends.run())
        begins = nas.Trainer(images(), dataclasses.replace(grown.ended(PRESET), epochs=9))
        begins.advance()
        run = grown.raced(images(), PRESET, 1, "cpu")
    sizes = [[p.shape for p in trainer.net.parameters()] for trainer in (ends, begins)]
    assert sizes[0] == sizes[1]
    assert begins.history[0]["phase"] == "mutation", "a cell is put in before the first step"
    first, second = (run[name] for name in grown.COLOURS)
    assert first["weights"] == second["weights"]
    assert second["rows"][-1]["spent_s"] >= first["seconds"] > second["rows"][-2]["spent_s"]
    html = grown.chart([run])
    assert re.findall("grown|from scratch", html) == ["grown", "from scratch"]
