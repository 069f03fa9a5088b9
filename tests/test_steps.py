"""The table of whole models: ``benchmarks/steps.py``."""

import copy
import io
import itertools
import json
import os
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from benchmarks import programs, steps
from benchmarks.steps import How, Turn, line
from nxcore import nas
from nxcore.nas.watch import PART
from tests.stand_ins import stand_in

steps_subprocess_has = stand_in(steps.subprocess)
steps_has = stand_in(steps)
os_has = stand_in(os)


def test_a_run_that_ends_with_its_first_step_has_a_row():
    """No processor time is known of the first step."""
    plain, first = Turn(0.02, 0.02, 10, [], first=0.3), Turn(20.0, 0.0, 1, [])
    row = line(How("net", half=False, evaluation=False), [(20.0, plain, first)])
    assert row.startswith("net")
    assert "cpu nan" in row
    assert "first 20.00 s (0.30)" in row


def test_processor_times_are_compared_where_both_are_known():
    plain, first, later = Turn(0.02, 0.02, 10, []), Turn(20.0, 0.0, 1, []), Turn(0.01, 0.005, 20, [])
    found = [(20.0, plain, first), (21.0, plain, later), (22.0, plain, later)]
    assert "cpu 4.000" in line(How("net", half=False, evaluation=False), found)


def test_no_turn_but_the_first_begins_after_the_limit(monkeypatch, steps_has, steps_subprocess_has):
    child = SimpleNamespace(
        stdin=io.StringIO(),
        stdout=SimpleNamespace(readline=lambda: json.dumps(asdict(Turn(1.0, 1.0, 1, [])))),
        send_signal=lambda _: None,
        wait=lambda: 0,
    )
    now = itertools.count()
    steps_subprocess_has(Popen=lambda *_, **__: child)
    steps_has(made=lambda _: (None, None), turn=lambda *_: Turn(1.0, 1.0, 1, []))
    monkeypatch.setattr(steps.time, "perf_counter", lambda: float(next(now)))
    how = How("darts", False, False)
    assert len(list(steps.turns(how, 60.0, "", limit=3.0))) == 3
    child.stdin = io.StringIO()
    assert len(list(steps.turns(how, 60.0, "", limit=0.0))) == 1


def test_a_row_says_when_it_was_fast_and_what_was_compiled_until_then():
    plain, report = Turn(1.0, 1.0, 5, []), []
    first = Turn(3.0, 0.0, 1, report, {"compilations": 2, "races": 5})
    slow, fast = (Turn(s, s, 5, report, {"compilations": 3, "races": 7}) for s in (0.7, 0.5))
    found = [(3.0, plain, first), (8.0, plain, slow), *((9.0 + n, plain, fast) for n in range(8))]
    assert steps.reached(found) == 8.0
    row = line(How("net", half=False, evaluation=False), found)
    assert "worst 2.000  reached  8.0 s" in row
    assert row.endswith("3/3 compilations, 7/7 races")


def row_of(slow_at: int) -> str:
    """Return the row of turns of a second, one of three; a plain step takes 1.25 times as long."""
    plain, at, found = Turn(0.25, 0.2, 5, []), 0.0, []
    for n in range(20):
        own = Turn(0.6 if n == slow_at else 0.2, 0.2, 5, [])
        at += own.seconds * own.steps
        found.append((at, plain, own))
    return line(How("net", half=False, evaluation=False), found)


def test_a_window_is_judged_by_the_time_of_all_its_steps_after_the_first_seconds():
    assert "worst 1.250" in row_of(slow_at=-1)
    assert "good   0 s  worst 1.250" in row_of(slow_at=3)
    # Three turns take five seconds, and as many plain steps 15 times 0.25 s.
    assert "good  19 s  worst 0.750" in row_of(slow_at=14)


def test_plain_turns_begin_late_and_those_before_are_in_no_ratio(steps_has, steps_subprocess_has):
    turns, signals = iter([1.0, 4.0, 3.0, 3.0, 3.0]), []
    answer = json.dumps(asdict(Turn(1.0, 1.0, 1, [])))
    child = SimpleNamespace(
        stdin=io.StringIO(),
        stdout=SimpleNamespace(readline=lambda: answer),
        send_signal=signals.append,
        wait=lambda: 0,
    )
    environments = []
    steps_subprocess_has(Popen=lambda *_, env, **__: environments.append(env["NXCORE_POLICY"]) or child)
    steps_has(made=lambda _: (None, None), turn=lambda *_: Turn(next(turns), 1.0, 1, []))
    steps.plain_of.cache_clear()
    how = How("net", half=False, evaluation=False, policy="measure")
    found = list(steps.turns(how, 5.0, "", beside=3.0))
    assert environments == ["measure"]
    assert [(p.seconds, p.apart) for _, p, _ in found] == [(4.0, True)] * 2 + [(3.0, False)] * 3
    assert [p.first for _, p, _ in found] == [1.0] * 5
    assert len(signals) == 6
    assert "3.000 [3.000, 3.000]" in line(how, found)


def test_what_was_measured_and_explained_is_asked_of_the_process(steps_has, steps_subprocess_has, tmp_path):
    asked, child = [], SimpleNamespace(stdin=io.StringIO(), send_signal=lambda _: None, wait=lambda: 0)
    child.stdin.close = lambda: None
    answers = iter([asdict(Turn(1.0, 1.0, 1, [])), ["a table", "torch: a problem"]])
    child.stdout = SimpleNamespace(readline=lambda: json.dumps(next(answers)))
    steps_subprocess_has(Popen=lambda given, **_: asked.extend(given) or child)
    steps_has(made=lambda _: (None, None), turn=lambda *_: Turn(1.0, 1.0, 1, []))
    shown = []
    how, more = How("darts", False, False, same=True), {"folder": tmp_path, "shipped": tmp_path / "record"}
    assert len(list(steps.turns(how, 1.0, "", explained=shown.append, **more))) == 1
    assert shown == ["a table", "torch: a problem"]
    assert asked[asked.index("--export") + 1] == str(tmp_path)
    assert asked[asked.index("--shipped") + 1] == str(tmp_path / "record")
    assert "--same" in asked
    assert child.stdin.getvalue().endswith("explain\n")


def test_a_process_names_the_problems_that_it_measured():
    entry = {"key": {"op": "add", "alpha": 2}, "page": {"decision": {"chosen": "cuda"}}}
    assert steps.problems({"environments": [{"entries": [entry]}]}) == ['cuda: {"alpha": 2, "op": "add"}']


def test_a_search_network_of_stacked_outputs_is_left_as_it_is():
    torch.manual_seed(0)
    network, x = steps.stacked(), torch.randn(2, 3, 8, 8)
    plain = copy.deepcopy(network)
    nas.patch(network, watch=False)
    for _ in range(2):  # lists of operations are taken at their second call
        torch.testing.assert_close(network(x), plain(x))
    assert not any(PART in vars(module) for module in network.modules())


def test_a_row_of_another_librarys_model_has_its_late_steps_and_its_slowest_five_seconds():
    marks = [0.1 * n for n in range(101)]
    marks += [marks[-1] + 0.05 * n for n in range(1, 301)]
    row = programs._row("unet", "plain", marks, torch.device("cpu"), [])
    assert row.ms == pytest.approx(50)
    assert row.worst == pytest.approx(50)
    assert row.ready == pytest.approx(10), "steps took twice as long until then"


def test_what_returns_an_image_has_a_loss_of_each_pixel():
    model, loss_of = programs.images(lambda: programs.UNet(4), 1, 32)(torch.device("cpu"))
    loss_of(model).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_lane_keeps_to_the_gpus_and_cores_that_were_given(monkeypatch, os_has):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    kept = []
    os_has(sched_getaffinity=lambda _: {1, 2, 3, 8}, sched_setaffinity=lambda _, cores: kept.append(cores))
    programs.lane(SimpleNamespace(get=lambda: 1), 2)
    assert (os.environ["CUDA_VISIBLE_DEVICES"], kept) == ("6", [[3, 8]])
