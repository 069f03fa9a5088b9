"""Batches arrive as they were sent, wherever their images lie."""

import dataclasses

import pytest
import torch

from nxcore.nas import prefetch
from nxcore.nas.data import Split
from nxcore.nas.prefetch import Feed, Ring
from nxcore.nas.trainer import Trainer
from tests.nas.test_trainer import LEAST, images
from tests.stand_ins import stand_in

torch_tensor_has = stand_in(torch.Tensor)

CPU = torch.device("cpu")
PART = Split(torch.arange(40.0).view(10, 1, 2, 2), torch.arange(10))


class Noting:
    """Stands in for CUDA's streams and events, and notes what they are asked."""

    def __init__(self):
        self.seen = []

    def event(self):
        noting = self

        class Event:
            def record(self, stream):
                noting.seen.append(("record", id(self)))

            def synchronize(self):
                noting.seen.append(("left", id(self)))

        return Event()

    def wait_event(self, event):
        self.seen.append(("wait", id(event)))


@pytest.fixture
def noting(torch_tensor_has, cuda_answers):
    found = Noting()
    cuda_answers(
        Stream=lambda device: found,
        Event=found.event,
        current_stream=lambda device: found,
        stream=lambda stream: torch.no_grad(),
    )
    torch_tensor_has(
        pin_memory=lambda self: self, record_stream=lambda self, stream: found.seen.append("recorded")
    )
    # A copy, as to another device.
    own = torch.Tensor.to
    torch_tensor_has(to=lambda self, *a, **k: own(self, *a, **k).clone())
    return found


def test_a_ring_sends_ahead_and_fills_a_buffer_once_its_copy_has_left(noting):
    got = []
    order = iter(torch.arange(10).view(5, 2))
    batches = Ring(PART, CPU, slots=2).batches(order)
    got.append(next(batches))
    assert len(list(order)) == 3, "two are under way before the first is handed out"
    order = iter(torch.arange(10).view(5, 2))
    got = list(Ring(PART, CPU, slots=2).batches(order))
    assert [batch.labels.tolist() for batch in got] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert torch.equal(torch.cat([batch.images for batch in got]), PART.images)
    left = [event for what, event in (s for s in noting.seen if s != "recorded") if what == "left"]
    assert len(set(left[-5:])) == 2, "of each buffer its own, before it is filled"
    assert noting.seen.count("recorded") == 2 * 6


def test_images_on_the_device_are_gathered_there():
    generator = torch.Generator().manual_seed(3)
    feed = Feed(CPU, CPU, generator, 3)
    assert feed.generator is generator
    assert sorted(torch.cat([b.labels for b in feed.batches(PART, 5, rank=0, world=1)]).tolist()) == [
        *range(10)
    ]


def test_images_elsewhere_have_an_order_of_their_own(noting, monkeypatch):
    feed = Feed(CPU, torch.device("cuda"), object(), 3)
    monkeypatch.setattr(prefetch, "Ring", lambda part, device: Ring(part, CPU))
    got = [b.labels for b in feed.batches(PART, 5, rank=1, world=2)]
    want = torch.randperm(10, generator=torch.Generator().manual_seed(3))[5:]
    assert torch.equal(torch.cat(got), want)


@pytest.mark.gpu
@pytest.mark.parametrize("rounds", [20])
def test_a_ring_is_right_under_load(rounds):
    """The consumer is slow and the allocator hands memory on at once: what isn't waited for would show."""
    part = Split(
        torch.arange(4096.0).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).contiguous(), torch.arange(4096)
    )
    device = torch.device("cuda")
    for _ in range(rounds):
        order = torch.randperm(4096)
        sums = []
        for batch in Ring(part, device).batches(iter(order.view(-1, 64))):
            torch.cuda._sleep(200_000)
            sums.append((batch.images.mean((1, 2, 3)) - batch.labels).abs().max())
            del batch
        assert float(torch.stack(sums).max()) == 0.0


@pytest.mark.gpu
def test_a_search_on_images_in_the_hosts_memory_goes_on_where_it_was(tmp_path):
    preset = dataclasses.replace(LEAST, epochs=1)
    first = Trainer(images(), preset, device="cuda")
    for _, _ in zip(range(2), first.run(tmp_path), strict=False):
        pass
    second = Trainer.restore(tmp_path / "checkpoint.pt", images(), device="cuda")
    rows = list(second.run())
    assert [row["phase"] for row in rows] == ["retraining", "retraining"]
    assert second._feed.generator.device.type == "cpu"
    assert not first.data.train.images.is_cuda
