"""nxcore.profile: who served how many calls, how long they took, how much memory they held."""

import json
import time

import pytest
import torch

import nxcore
from nxcore.observe.profiling import PREFIX, _peaks
from tests.null import fakes

X = torch.ones(1000)


def rows(profile) -> dict[tuple[str, str], object]:
    return {(row.name, row.kernel): row for row in profile.rows}


def test_calls_are_counted_by_operator_and_kernel():
    session = fakes.session(fakes.backend())
    with session.use("fake"):
        session.op("add")(X, X)
        with session.profile() as profile:
            for _ in range(3):
                session.op("add")(X, X)
            session.op("sum", backend="torch")(X)
    found = rows(profile)
    assert {key: row.count for key, row in found.items()} == {("add", "fake"): 3, ("sum", "torch"): 1}
    for row in found.values():
        assert row.total_us == pytest.approx(row.mean_us * row.count)
        assert row.total_us > 0 == row.device_us


def test_a_gradient_of_the_block_is_counted():
    session = fakes.session(fakes.backend())
    xs, logits = [torch.randn(5, requires_grad=True) for _ in range(2)], torch.randn(2, requires_grad=True)
    with session.use("fake"), session.profile() as profile:
        session.op("softmax_sum")(xs, logits).sum().backward()
    found = rows(profile)
    assert found["softmax_sum", "fake"].count == found["softmax_sum_backward", "fake"].count == 1


def test_time_and_memory_are_those_of_the_calls():
    def slow(*args):
        time.sleep(0.02)
        held = torch.empty(2**20)
        del held
        return fakes.SPECS["add"].reference(*args)

    session = fakes.session(fakes.backend("slow", fakes.kernel("add", slow)))
    with session.use("slow"):
        session.op("add")(X, X)
        with session.profile() as profile:
            for _ in range(2):
                session.op("add")(X, X)
    (row,) = profile.rows
    assert row.mean_us >= 20e3
    assert 2**22 <= row.peak_bytes < 2**22 + 2**16


def test_what_a_first_call_measures_is_not_counted(monkeypatch):
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", {"torch": 20, "better": 10})
    with session.profile() as profile:
        session.op("add")(X, X)
    assert {key: row.count for key, row in rows(profile).items()} == {("add", "better"): 1}


def test_after_the_block_calls_have_no_region():
    session = fakes.session(fakes.backend())
    op = session.op("add")
    with session.use("fake"):
        with session.profile():
            op(X, X)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as after:
            op(X, X)
    assert not any(event.key.startswith(PREFIX) for event in after.key_averages())


def test_a_function_of_ones_own_is_a_row():
    @nxcore.profile_op("edge")
    def edge(x: torch.Tensor) -> torch.Tensor:
        """Double."""
        return x * 2

    session = fakes.session(fakes.backend())
    assert edge.__doc__ == "Double."
    with session.profile() as profile:
        edge(X)
        edge(X)
    assert rows(profile)["edge", ""].count == 2


def test_it_is_recorded_beside(tmp_path):
    session = fakes.session(fakes.backend())
    with session.record(tmp_path / "problems.jsonl"), session.profile() as profile, session.use("fake"):
        session.op("add")(X, X)
    assert profile.rows[0].count == 1
    assert json.loads((tmp_path / "problems.jsonl").read_text())["count"] == 1


def test_the_table_the_json_and_the_trace(tmp_path):
    session = fakes.session(fakes.backend())
    with session.use("fake"), session.profile() as profile:
        session.op("add")(X, X)
    head, line = str(profile).splitlines()
    assert head.split() == [
        "name",
        "kernel",
        "calls",
        "mean",
        "us",
        "total",
        "ms",
        "device",
        "ms",
        "peak",
        "MiB",
    ]
    assert line.split()[:3] == ["add", "fake", "1"]
    (row,) = profile.to_dict()["rows"]
    assert row["name"] == "add"
    profile.export_chrome_trace(tmp_path / "trace.json")
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert "nxcore::add [fake]" in names


def test_rows_wait_for_the_end():
    session = fakes.session(fakes.backend())
    with (
        session.profile() as profile,
        pytest.raises(RuntimeError, match="only after its with block has ended"),
    ):
        _ = profile.rows


@pytest.mark.gpu
def test_what_ran_on_the_device_is_counted():
    """The host's row of a region knows it for some launches, the device's row for all."""
    xs, logits = [torch.randn(9, 999, device="cuda", requires_grad=True) for _ in range(3)], torch.zeros(3)
    logits = logits.cuda().requires_grad_()
    with nxcore.use("cuda"):
        nxcore.op("softmax_sum")(xs, logits).sum().backward()
        with nxcore.profile() as profile:
            nxcore.op("softmax_sum")(xs, logits).sum().backward()
    found = rows(profile)
    assert found["softmax_sum", "cuda"].device_us > 0 < found["softmax_sum_backward", "cuda"].device_us


class Event:
    def __init__(self, name, thread, start, length=0, size=0, device="DeviceType.CPU"):
        self.all = name, thread, start, length, size, device

    name = property(lambda self: lambda: self.all[0])
    start_thread_id = property(lambda self: lambda: self.all[1])
    start_ns = property(lambda self: lambda: self.all[2])
    duration_ns = property(lambda self: lambda: self.all[3])
    nbytes = property(lambda self: lambda: self.all[4])
    device_type = property(lambda self: lambda: self.all[5])
    device_index = property(lambda self: lambda: 0)


def test_a_peak_is_of_one_call_one_thread_and_one_device():
    call = PREFIX + "add [fake]"
    cuda = "DeviceType.CUDA"
    events = [
        Event(call, 1, 0, 10),
        Event("[memory]", 1, 1, size=5),
        Event("[memory]", 1, 2, size=4, device=cuda),
        Event("[memory]", 2, 3, size=100),  # another thread's
        Event("[memory]", 1, 4, size=-5),
        Event("[memory]", 1, 5, size=6),
        Event("[memory]", 1, 20, size=50),  # after it
        Event(call, 1, 30, 10, device=cuda),  # what ran on the device on its behalf
        Event(call, 1, 60, 10),
        Event("[memory]", 1, 61, size=-50),
        Event("[memory]", 1, 62, size=8),
    ]
    assert _peaks(events) == {call: 6}
