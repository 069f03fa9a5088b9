"""Cells, rows and records of a benchmark, on invented machines."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nxcore.bench import engine, entrants, head
from nxcore.bench.cells import Cell, Wanted, cells
from nxcore.bench.compare import compare, differences
from nxcore.bench.engine import Bench
from nxcore.bench.entrants import Guest
from nxcore.bench.record import RecordWriter, read, rows
from nxcore.bench.row import Row, verdict
from nxcore.bench.summary import summary
from nxcore.choose.contenders import AGAIN
from nxcore.errors import InvalidInputError, UnknownBackendError
from nxcore.measure import ceilings as limits
from nxcore.measure.ceilings import Ceilings
from nxcore.measure.decision import Interval
from nxcore.spec.kernel import no, simulated
from tests.null import fakes
from tests.stand_ins import stand_in
from tests.strict import strict

limits_has = stand_in(limits)
engine_has = stand_in(engine)

CPU = torch.device("cpu")
SLOW_DEVICE = Ceilings(t0_us=0.1, bandwidths=((1, 1e12), (1 << 26, 1e11), (1 << 28, 1e11)), flops=1e14)
SPEC = fakes.SPECS["add"]


@pytest.fixture(autouse=True)
def ceilings(monkeypatch, limits_has):
    """A device whose best is known; the real one's is measured once a process, by the real clock."""
    for module in (engine, head):
        monkeypatch.setattr(module, "ceilings", lambda device: SLOW_DEVICE)
    limits_has(ceilings_now=lambda device: SLOW_DEVICE)


def cell(sample: str = "small", dtype: torch.dtype = torch.float32, op: str = "add") -> Cell:
    spec = fakes.SPECS[op]
    return Cell(spec, next(s for s in spec.samples if s.name == sample), dtype, CPU)


def raced(monkeypatch, times: dict[str, float], **how) -> dict[str, Row]:
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", times)
    here = replace(cell(), spec=session.registry.spec("add"))
    return {row.label: row for row in Bench(session, CPU, fakes.QUICK, **how).measure(here)}


def test_a_row_tells_what_came_before_the_first_answer(monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr(entrants, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    found = raced(monkeypatch, {"torch": 20, "better": 10})
    assert found["better"].compile_s == 1
    assert found["torch"].compile_s is None


def test_every_kernel_has_a_row_and_so_have_torch_again_and_the_choice(monkeypatch):
    found = raced(monkeypatch, {"torch": 20, "better": 10, "worse": 30, "same": 20.1})
    assert {label: row.verdict for label, row in found.items()} == {
        "torch": "BASE",
        "better": "FAST",
        "worse": "SLOW",
        "same": "SAME",
        AGAIN: "BASE",
        "nxcore": "FAST",
    }
    better = found["better"]
    assert better.ratio == pytest.approx((2, 2, 2), rel=1e-3)
    assert better.p < 0.01
    assert better.device_us == pytest.approx(10, rel=1e-3)
    assert better.error < 1e-7
    assert better.precision == "ieee32"
    assert better.bytes == 3 * 4 * 1024
    assert better.gb_per_s == pytest.approx(1.2, abs=0.1)
    assert better.share_of_floor == pytest.approx(better.floor_us / 10, rel=1e-2)
    assert len(better.device_blocks_us) == better.blocks == 12
    assert better.host_blocks_us == (), "the CPU's clock sees both"
    assert better.call_blocks_us == better.device_blocks_us
    assert found[AGAIN].record == "again"
    assert found[AGAIN].ratio[0] == pytest.approx(1, rel=1e-3)


def test_the_choice_is_the_rules_and_tells_what_a_call_costs(monkeypatch):
    choice = raced(monkeypatch, {"torch": 20, "better": 10})["nxcore"]
    assert (choice.record, choice.chosen, choice.regret) == ("choice", "better", 0)
    assert choice.dispatch_us > 0
    assert choice.ratio_called[0] == pytest.approx(20 / (10 + choice.dispatch_us), rel=1e-2)
    stays = raced(monkeypatch, {"torch": 20, "hardly": 19.8})["nxcore"]
    assert (stays.verdict, stays.chosen) == ("SAME", "torch")
    assert stays.regret == pytest.approx(0.01, abs=1e-3)


def test_torchs_best_is_the_baseline(monkeypatch):
    found = raced(monkeypatch, {"torch": 20, "torch-idiom": 8, "mine": 10})
    assert found["torch"].ratio[0] == pytest.approx(0.4, rel=1e-2)
    assert found["mine"].verdict == "SLOW"
    assert found["nxcore"].chosen == "torch-idiom"


def test_a_time_that_cannot_be_is_an_error(monkeypatch):
    slow = replace(SLOW_DEVICE, flops=1e6)
    for module, name in ((engine, "ceilings"), (limits, "ceilings_now")):
        monkeypatch.setattr(module, name, lambda device: slow)
    found = raced(monkeypatch, {"torch": 2000, "impossible": 300})
    assert found["impossible"].verdict == "BELOW_FLOOR"
    assert found["torch"].verdict == "BASE"


def test_ceilings_that_a_busy_machine_had_kept_low_are_measured_again(monkeypatch, engine_has):
    engine_has(ceilings=lambda device: replace(SLOW_DEVICE, flops=1e6))
    found = raced(monkeypatch, {"torch": 2000, "better": 300})
    assert found["better"].verdict == "FAST"
    assert found["better"].floor_us == pytest.approx(SLOW_DEVICE.t0_us, abs=0.2)


def test_where_torch_beats_the_ceilings_they_are_unsure_and_its_time_is_the_floor(
    monkeypatch, engine_has, limits_has
):
    slow, tries = replace(SLOW_DEVICE, flops=1e6), []
    engine_has(ceilings=lambda device: slow)
    limits_has(ceilings_now=lambda device: tries.append(1) or slow)
    found = raced(monkeypatch, {"torch": 600, "better": 300})
    assert len(tries) == limits.TRIES
    assert (found["torch"].verdict, found["better"].verdict) == ("BASE", "FAST")
    assert found["torch"].floor_unsure
    assert found["torch"].share_of_floor == pytest.approx(1, rel=1e-3)
    assert "floor_unsure" not in raced(monkeypatch, {"torch": 2000, "better": 1900})["torch"].to_dict()


def test_a_result_may_stay_in_the_cache_and_few_inputs_too():
    x = torch.zeros(1000)
    memory, fast = 4000 / 1e11, 4000 / 1e12
    assert engine._moving_s(SLOW_DEVICE, 8000, [(x,)] * 50, 40_000) == pytest.approx(memory + fast)
    assert engine._moving_s(SLOW_DEVICE, 8000, [(x,)] * 49, 40_000) == pytest.approx(2 * fast)


def test_what_does_not_run_is_a_row_with_its_reason():
    def raising(*args):
        raise RuntimeError("no luck")

    session = fakes.session(
        fakes.backend("zeros", fakes.kernel("add", lambda x, y, alpha, out: torch.add(x, y) * 0)),
        fakes.backend("away", fakes.kernel("add"), probe=lambda: no("no GPU")),
        fakes.backend("shown", fakes.kernel("add"), probe=lambda: simulated("an interpreter")),
        replace(fakes.backend("asked", fakes.kernel("add")), on_request="it compiles"),
    )
    guests = [
        Guest("mine", raising),
        Guest("peer", None, "not installed"),
        Guest("nought", lambda x, y, *_: x),
    ]
    found = {row.label: row for row in Bench(session, CPU, fakes.QUICK).measure(cell(), guests)}
    said = {label: (row.verdict, row.reason) for label, row in found.items()}
    assert said["zeros"][0] == "WRONG"
    assert said["away"] == ("DECLINED", "no GPU")
    assert said["shown"] == ("DECLINED", "simulated, so never timed: an interpreter")
    assert said["asked"][1].startswith("only on request: it compiles")
    assert said["mine"][0] == "DECLINED"
    assert "RuntimeError: no luck" in said["mine"][1]
    assert said["peer"] == ("DECLINED", "not installed")
    assert said["nought"][0] == "WRONG"
    assert found["nxcore"].chosen == "torch"
    assert "device_us" not in found["away"].to_dict()


def test_a_kernel_that_raises_in_the_race_leaves_it_to_the_others():
    mood = fakes.Moody()

    def later(*args):
        if mood.calls > 1:
            mood.error = ValueError("worn out")
        return mood(*args)

    found = {
        r.label: r for r in Bench(fakes.session(), CPU, fakes.QUICK).measure(cell(), [Guest("mine", later)])
    }
    assert found["mine"].verdict == "DECLINED"
    assert "worn out" in found["mine"].reason
    assert found["torch"].verdict == "BASE"


def test_a_cell_that_fails_as_a_whole_is_one_row(raced_by):
    raced_by(fakes.raising(torch.OutOfMemoryError("none left")))
    (row,) = Bench(fakes.session(), CPU, fakes.QUICK).measure(cell())
    assert (row.label, row.verdict) == ("torch", "DECLINED")
    assert row.reason.startswith("not measured: OutOfMemoryError: none left")


def test_backends_and_peers_are_asked_for_by_name(monkeypatch):
    session = fakes.session(
        replace(fakes.backend("inductor", fakes.kernel("add")), on_request="it compiles"),
        fakes.backend("other"),
    )
    assert Bench(session, CPU, backends=["other"]).labels(cell()) == ["torch", "other"]
    found = {row.label: row for row in Bench(session, CPU, fakes.QUICK, peers=["inductor"]).measure(cell())}
    assert found["inductor"].call_us > 0
    assert found["nxcore"].chosen != "inductor", "who waits to be asked is not chosen"
    with pytest.raises(UnknownBackendError, match="did you mean 'other'"):
        Bench(session, CPU, backends=["othr"])
    with pytest.raises(UnknownBackendError, match="did you mean 'inductor'"):
        Bench(session, CPU, peers=["inductr"])


def names(**filters) -> list[str]:
    return [str(c) for c in cells(fakes.registry(), CPU, Wanted(**filters))]


def test_cells_are_real_workloads_and_pass_every_filter():
    everything = names()
    assert "add small float32" in everything
    assert not [n for n in everything if n.startswith("add very_large")], "the huge ones only where named"
    assert names(ops=("add",), dtypes=("float16",), sizes=("small",)) == [
        "add small_65536 float16",
        "add small_262144 float16",
    ]
    assert names(ops=("add",), dtypes=("float32",), sizes=("bias", "xlarge")) == [
        "add xlarge_67108864 float32",
        "add bias float32",
    ]
    assert names(ops=("sum",), dtypes=("float32",), sizes=("large",)) == [
        "sum large_inner float32",
        "sum large_outer float32",
    ]
    assert names(ops=("add",), dtypes=("float32",), sizes=("huge",)) == ["add very_large float32"]
    assert names(ops=("add",), dtypes=("float32",), samples=("prime",)) == ["add prime float32"]
    backward = {n.split()[0] for n in names(backward=True)}
    assert backward
    assert all(op.endswith("_backward") for op in backward)
    assert {n.split()[0] for n in names(forward=True)} | backward == {n.split()[0] for n in everything}
    assert names(forward=True, backward=True) == everything
    for what in ("sample", "size", "dtype"):
        with pytest.raises(InvalidInputError, match=f"unknown {what} 'smal'"):
            names(**{f"{what}s": ("smal",)})


@pytest.mark.parametrize(
    ("ratio", "noise", "said"),
    [
        ((0.9, 0.88, 0.95), 0.0, "SLOW"),
        ((0.9, 0.88, 0.95), 0.05, "AMBG"),
        ((1.0, 0.99, 1.01), 0.0, "SAME"),
        ((1.0, 0.9, 1.1), 0.0, "AMBG"),
        ((0.95, 0.92, 0.98), 0.05, "SAME"),
        ((0.6, 0.5, 0.7), 1.5, "AMBG"),
    ],
)
def test_a_verdict_is_the_intervals(ratio, noise, said):
    assert verdict(Interval(*ratio), noise) == said


def test_a_record_goes_on_where_it_was_broken_off(tmp_path):
    bench = Bench(fakes.session(), CPU, fakes.QUICK)
    path = tmp_path / "deep" / "record.jsonl"
    first = RecordWriter(path, bench.head)
    assert first.done == {}
    first.write(bench.measure(cell()))
    whole = path.read_text()
    assert strict(whole.splitlines()[0])["effort"]["spin_s"] is None, "no bound; JSON has no infinity"
    path.write_text(whole + '{"record": "row", "op": "su')
    second = RecordWriter(path, bench.head)
    assert list(second.done) == [("add", "small", "float32")]
    assert path.read_text() == whole, "one head, and no line that was broken off"
    assert {r["label"] for r in second.done["add", "small", "float32"]} == {"torch", AGAIN, "nxcore"}
    other = RecordWriter(path, Bench(fakes.session(), CPU, fakes.QUICK, peers=["torch"]).head)
    assert other.done == {}, "another question"
    assert [line["record"] for line in read(path)].count("head") == 2
    assert len(rows(read(path))) == 3


def test_every_committed_record_is_read():
    """Records of all ages: what a line must have hasn't grown."""
    results = Path(__file__).parents[3] / "benchmarks" / "results"
    paths = [path for path in results.rglob("*.jsonl") if '"record": "head"' in path.read_text("utf-8")]
    assert len(paths) > 5
    assert sum(len(read(path)) for path in paths) > 4000


def test_what_is_no_record_is_an_error(tmp_path):
    with pytest.raises(InvalidInputError, match="can't read the record"):
        read(tmp_path / "none.jsonl")
    path = tmp_path / "other.jsonl"
    path.write_text('{"a": 1}\n{"record": "head"}\n')
    with pytest.raises(InvalidInputError, match="line 1, is not a line of a record"):
        read(path)


def test_a_head_says_what_rows_are_worth_something_under():
    found = Bench(fakes.session(fakes.backend("away", probe=lambda: no("no GPU"))), CPU, fakes.QUICK).head
    json.dumps(found)
    assert found["absent"] == {"away": "no GPU"}
    assert found["versions"]["torch"] == str(torch.__version__)
    assert "ruff" not in found["versions"]
    assert found["clocks"] == {"unknown": "CPU clocks are not read"}
    assert re.fullmatch(r"[0-9a-f]{16}", found["fingerprint"])


def line(sample: str, ratio: tuple[float, float, float] | None, said: str = "SAME", **more):
    row = {
        "record": "row",
        "op": "add",
        "sample": sample,
        "dtype": "float32",
        "label": "mine",
        "verdict": said,
    }
    return row | ({"ratio": list(ratio)} if ratio else {}) | more


def test_a_summary_hides_neither_the_worst_nor_the_count():
    found = [line(f"s{i}", (r, r, r)) for i, r in enumerate([0.5, 0.99, 2.0, 4.0])]
    found.append(line("s9", None, "DECLINED"))
    (mine,) = summary(found)
    assert mine["cells"] == 4
    assert mine["mean"] == pytest.approx((0.5 * 0.99 * 2 * 4) ** 0.25, abs=1e-3)
    assert (mine["p5"], mine["worst"], mine["slower"], mine["slow"]) == (0.5, 0.5, 2, 1)
    assert mine["verdicts"] == {"SAME": 4, "DECLINED": 1}
    assert summary([line("s", None, "DECLINED")])[0]["mean"] is None


def record(*lines, device: str = "one", torch_version: str = "2.13"):
    return [{"record": "head", "device": {"name": device}, "versions": {"torch": torch_version}}, *lines]


def test_records_are_compared_by_their_ratios_to_torch():
    old = record(*(line(f"s{i}", (2.0, 1.98, 2.02)) for i in range(5)), line("gone", (1, 1, 1)))
    new = record(
        line("s0", (1.0, 0.99, 1.01)),
        line("s1", (4.0, 3.9, 4.1)),
        line("s2", (2.01, 1.99, 2.03)),
        line("s3", (1.5, 1.0, 2.5)),
        line("s4", None, "WRONG", reason="wrong: by far"),
        line("new", (1, 1, 1)),
    )
    found = {r["sample"]: r for r in compare(old, new)}
    assert {s: r["verdict"] for s, r in found.items()} == {
        "s0": "SLOW",
        "s1": "FAST",
        "s2": "SAME",
        "s3": "AMBG",
        "s4": "WRONG",
        "gone": "GONE",
        "new": "NEW",
    }
    assert found["s0"]["change"] == pytest.approx((0.5, 0.99 / 2.02, 1.01 / 1.98), abs=1e-3)
    assert compare(old, new, margin=1.5)[0]["verdict"] == "AMBG"
    noisy = [r | {"noise": 0.6} for r in new[1:2]]
    assert compare(old[:2], record(*noisy))[0]["verdict"] == "AMBG"
    assert differences(old, record(torch_version="2.14")) == ["torch: 2.13 before, 2.14 now"]
    with pytest.raises(InvalidInputError, match="both records must be of one device, got one and two"):
        compare(old, record(device="two"))
