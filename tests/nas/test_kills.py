"""A search that is killed at any point goes on, and ends with the same bits as one that never was."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from nxcore.nas import checkpoint
from nxcore.nas.trainer import Trainer
from tests.nas.test_trainer import LEAST, images, same, state, without_time
from tests.stand_ins import stand_in

trainer_has, checkpoint_has = stand_in(Trainer), stand_in(checkpoint)

PRESET = dataclasses.replace(LEAST, remedy="partial", C=4, steps=2, multiplier=2, retrain_average=0.9)


class Killed(BaseException):
    """The process is gone."""


def going(folder, preset):
    """Go on with a search, or begin it; return it once it is done."""
    file = folder / checkpoint.CHECKPOINT
    torch.manual_seed(random.randrange(1000))
    trainer = Trainer.restore(file, images()) if file.exists() else Trainer(images(), preset, seed=3)
    list(trainer.run(folder))
    return trainer


def test_a_search_that_is_killed_at_random_points_ends_with_the_same_bits(
    tmp_path, trainer_has, checkpoint_has
):
    """Twenty kills: within an epoch, or while a checkpoint is written."""
    straight = Trainer(images(), PRESET, seed=3)
    rows = list(straight.run())
    learn, write, left, points = Trainer._learn, torch.save, [0], random.Random(20)

    def point():
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    def learning(*args):
        point()
        return learn(*args)

    def writing(held, path):
        write(held, path)
        point()  # written beside, and not in place yet

    trainer_has(_learn=learning)
    checkpoint_has(torch=type(sys)("torch"))
    vars(checkpoint.torch).update(vars(torch) | {"save": writing})
    kills = 0
    while kills < 20:
        folder, found = tmp_path / str(kills), None
        while found is None:
            left[0] = points.randint(1, 6)
            try:
                found = going(folder, PRESET)
            except Killed:
                kills += 1
        assert same(state(found), state(straight))
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert without_time(lines) == without_time(json.loads(json.dumps(rows)))


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_with_the_same_bits(tmp_path):
    pytest.importorskip("sklearn", reason="an extra")
    once, again = tmp_path / "once", tmp_path / "again"
    words = ("--epochs", "2", "--retrain-epochs", "1", "--set", "C=4", "--set", "batch=500", "--json")
    alone = os.environ | {"OMP_NUM_THREADS": "1"}

    def process(*more):
        asked = [sys.executable, "-m", "nxcore", "search", *more]
        return subprocess.Popen(asked, env=alone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    assert process(*words, "-o", str(once)).wait(300) == 0
    running = process(*words, "-o", str(again))
    until = time.monotonic() + 120
    while not (again / "checkpoint.pt").exists() and time.monotonic() < until:
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert process("--resume", str(again), "--json").wait(300) == 0
    results = [
        without_time(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))
        for folder in (once, again)
    ]
    assert same(*results)
