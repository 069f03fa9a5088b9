"""Turns: several trainings share a device; a step of each in turn, on a stream of its own on a GPU."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from nxcore.graphs.recorder import CudaRecorder, recording
from nxcore.nas.step import threads

Row = TypeVar("Row")


def in_turn(
    trainings: Iterable[Callable[[], Iterator[Row]]], device: torch.device, at_once: int
) -> Iterator[Row]:
    """Yield what trainings yield, so many ``at_once``, a step of each in turn; another begins when one ends.

    A training is a function that returns its steps. On a CPU, each computes what it does alone, to the bit.
    """
    waiting = iter(trainings)
    each = [(row for begin in waiting for row in begin()) for _ in range(at_once)]
    lanes = [_lane(steps, device) if at_once > 1 else steps for steps in each]
    while lanes:
        for lane in list(lanes):
            try:
                yield next(lane)
            except StopIteration:
                lanes.remove(lane)


def _lane(steps: Iterator[Row], device: torch.device) -> Iterator[Row]:
    """Yield steps that have torch's random state and number of threads for themselves.

    Graphs of one recorder wait for each other, so a lane on a GPU has its own.
    """
    stream, recorder = None, None
    if device.type == "cuda":
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))  # what is there already
        recorder = CudaRecorder(stream.device)  # it has an index, as a tensor's device has
    random, count = torch.get_rng_state(), torch.get_num_threads()
    while True:
        with torch.random.fork_rng([]), threads(count), torch.cuda.stream(stream), recording(recorder):
            torch.set_rng_state(random)
            try:
                row = next(steps)
            except StopIteration:
                return
            random, count = torch.get_rng_state(), torch.get_num_threads()
        yield row
