"""The numbers: choice, regret, spread, intervals, break-even; each against a value worked out by hand."""

from dataclasses import replace

import pytest

from nxcore.bench.row import Row
from nxcore.bench.summary import summary
from nxcore.report.figures import NXCORE, joined, spread
from nxcore.report.markdown import markdown
from nxcore.report.records import read
from tests.report.lines import HEAD, choice, record, row, write


def data(tmp_path, *lines):
    return joined(read([write(tmp_path / "a.jsonl", HEAD, *lines)]))


def cell(tmp_path, *lines):
    (found,) = data(tmp_path, *lines)["cells"]
    return found


def test_the_spread_is_geometric_mean_percentile_minimum_and_count():
    found = spread([0.5, 1.0, 2.0, 8.0])
    assert found["mean"] == pytest.approx(8 ** (1 / 4))
    assert found["p5"] == 0.5
    assert (found["minimum"], found["slower"], found["cells"]) == (0.5, 1, 4)
    assert spread([]) is None
    assert spread([float(i) for i in range(1, 41)])["p5"] == 2.0


def test_a_clear_winner_is_chosen_and_the_regret_is_to_the_best_of_all(tmp_path):
    found = cell(tmp_path, row(), row("triton", 2.0), row("cuda", 4.0), row("jax", 5.0), row("numba", None))
    assert (found["chosen"], found["chosen_us"], found["ratio"][0]) == ("cuda", 25.0, 4.0)
    # jax is there for comparison: it is never chosen, but it is the best that was measured
    assert found["regret"] == {
        "nxcore": 1.25,
        "torch": 5.0,
        "triton": 2.5,
        "cuda": 1.25,
        "jax": 1.0,
        "numba": 5.0,  # declines, so torch serves
    }


def test_of_ties_the_smaller_error_is_chosen(tmp_path):
    found = cell(tmp_path, row(), row("triton", 2.0, error=2e-7), row("cuda", 1.99, error=1e-7))
    assert found["chosen"] == "cuda"


def test_nobody_clear_leaves_torch_at_its_best(tmp_path):
    best = row("torch-in-place", 1.25, ratio=[1.0, 1.0, 1.0], verdict="BASE")
    found = cell(tmp_path, row(ratio=[0.8, 0.7, 0.9]), best, row("triton", 3.0, verdict="AMBG"))
    assert (found["torch"], found["chosen"], found["ratio"]) == (
        "torch-in-place",
        "torch-in-place",
        (1.0, 1.0, 1.0),
    )


def test_a_recorded_choice_is_the_choice(tmp_path):
    """The record knows the rule's p-values; what a call costs through nxcore is a policy of its own."""
    again = row("torch again", 1.01, record="again")
    found = data(tmp_path, row(), row("triton", 2.0), row("cuda", 2.5), again, choice("triton", 2.0, 1.6))
    (only,) = found["cells"]
    assert (only["chosen"], only["ratio"][0], only["regret"]["nxcore"]) == ("triton", 2.0, 1.25)
    assert (only["called_us"], only["ratio_called"][0]) == (62.5, 1.6)
    assert [r["label"] for r in only["rows"]] == ["torch", "triton", "cuda"]
    means = {s["policy"]: s["mean"] for s in found["devices"][0]["summary"]}
    assert means["nxcore"] == pytest.approx(2.0)
    assert means["nxcore, called"] == pytest.approx(1.6)


def test_a_choice_of_what_cannot_be_trusted_is_none(tmp_path):
    found = cell(tmp_path, row(), row("triton", 9.0, verdict="BELOW_FLOOR"), choice("triton", 9.0, 8.0))
    assert found["chosen"] == "torch"


@pytest.mark.parametrize("verdict", ["WRONG", "BELOW_FLOOR"])
def test_what_cannot_be_trusted_counts_nowhere(tmp_path, verdict):
    found = data(tmp_path, row(), row("triton", 9.0, verdict=verdict, reason="off"))
    (only,) = found["cells"]
    assert (only["chosen"], only["regret"]["nxcore"]) == ("torch", 1.0)
    (device,) = found["devices"]
    assert device["failures"] == [{"cell": 0, "label": "triton", "verdict": verdict, "reason": "off"}]
    assert [s["policy"] for s in device["summary"]] == ["nxcore"]
    assert [s["failed"] for s in device["support"] if s["label"] == "triton"] == [1]


def test_the_interval_of_the_ratio_is_carried_over_to_the_time(tmp_path):
    found = cell(tmp_path, row(), row("triton", 2.0, ratio=[2.0, 1.6, 2.5]))
    assert found["rows"][1]["interval_us"] == [40.0, 62.5]


def test_calls_until_compiling_has_paid(tmp_path):
    found = cell(tmp_path, row(), row("triton", 2.0, compile_s=1.0), row("cuda", 0.5, compile_s=1.0))
    assert [r.get("break_even") for r in found["rows"]] == [None, 20_000, "never"]


def test_what_follows_from_bytes_and_operations_is_filled_in(tmp_path):
    found = cell(tmp_path, row(), row("triton", 2.0, tflop_per_s=2.0))
    triton = found["rows"][1]
    assert triton["gb_per_s"] == pytest.approx(12_288 / 25 * 1e-3, abs=0.05)
    assert triton["share_of_floor"] == pytest.approx(2 / 25)
    assert triton["intensity"] == pytest.approx(2.0 * 25e6 / 12_288)
    assert "intensity" not in found["rows"][0]


def test_a_cell_of_almost_nothing_is_shown(tmp_path):
    bare = {"record": "row", "op": "add", "sample": "s", "dtype": "float32", "label": "triton"}
    found = cell(tmp_path, bare)
    assert (found["torch"], found["chosen"], found["ratio"], found["regret"]) == (None, None, None, {})


def test_a_backend_without_a_row_is_absent_as_the_head_says(tmp_path):
    head = HEAD | {"absent": {"cupy": "no CUDA", "triton": "elsewhere"}}
    (device,) = joined(read([write(tmp_path / "a.jsonl", head, row(), row("triton", 2.0))]))["devices"]
    assert (device["name"], device["absent"]) == ("Invented 9000", {"cupy": {"no CUDA": 0}})


def test_a_device_says_what_never_ran_on_it_and_why(tmp_path):
    found = joined(read([write(tmp_path / "a.jsonl", *record())]))
    (device,) = found["devices"]
    assert device["absent"] == {"numba": {"needs CPU tensors, got cuda <b>here</b>": 12}}
    assert device["versions"] == {"torch": ["2.11.0"], "triton": ["3.6.0"]}
    summary = {s["policy"]: s for s in device["summary"]}
    assert summary["triton"]["slower"] == 4
    assert (summary["nxcore"]["minimum"], summary["nxcore"]["cells"]) == (1.0, 12)


def test_a_record_is_summed_up_as_nxcore_bench_does(tmp_path):
    def rows(op, triton):
        common = {"op": op, "sample": "small", "dtype": "float32"}
        taken = Row(record="choice", label=NXCORE, verdict="FAST", chosen="triton", **common)
        return [
            Row(record="row", label="torch", verdict="BASE", call_us=9.0, ratio=(1.0, 1.0, 1.0), **common),
            Row(
                record="row",
                label="triton",
                verdict="FAST",
                call_us=9 / triton,
                ratio=(triton,) * 3,
                **common,
            ),
            Row(record="again", label="torch again", verdict="BASE", ratio=(1.01, 1.0, 1.02), **common),
            replace(taken, ratio=(triton,) * 3, ratio_called=(triton * 0.8,) * 3),
        ]

    lines = [r.to_dict() for r in [*rows("add", 1.2), *rows("sum", 3.0)]]
    theirs = {line["label"]: line for line in summary(lines)}
    for ours in data(tmp_path, *lines)["devices"][0]["summary"]:
        line = theirs[ours["policy"]]
        assert ours["mean"] == pytest.approx(line["mean"], abs=1e-4)
        found = (ours["cells"], ours["p5"], ours["minimum"], ours["slower"])
        assert found == (line["cells"], line["p5"], line["worst"], line["slower"])


def test_every_cell_that_torch_keeps_is_counted_whichever_of_its_ways_is_chosen(tmp_path):
    """The rule left it to the reference, though an idiom had the better median; and to that idiom."""
    best = row("torch-in-place", 1.25, ratio=[1.0, 1.0, 1.0], verdict="BASE")
    slower = row(ratio=[0.8, 0.7, 1.1])
    reference = cell(tmp_path, slower, best, choice("torch", 0.8, 0.7))
    assert (reference["torch"], reference["chosen"], reference["left_to_torch"]) == (
        "torch-in-place",
        "torch",
        True,
    )
    assert cell(tmp_path, slower, best, choice("torch-in-place", 1.0, 0.9))["left_to_torch"]
    assert not cell(tmp_path, slower, best, row("cuda", 4.0), choice("cuda", 4.0, 3.0))["left_to_torch"]


def test_where_torch_beats_the_floor_the_ceilings_are_unsure(tmp_path):
    """As a record of before has it: of torch there can be no error of the measurement."""
    found = data(tmp_path, row(verdict="BELOW_FLOOR"), row("cuda", 2.0))
    (device,) = found["devices"]
    assert device["failures"] == []
    assert device["unsure"] == "torch exceeded them in 1 rows"
    assert found["cells"][0]["chosen"] == "cuda"
    text = markdown(found)
    assert (
        "Uncertain ceilings, since other work ran during their measurement: torch exceeded them in 1 rows."
        in text
    )
    assert "0 of 1 cells are left to torch" in text
    assert data(tmp_path, row(), row("cuda", 2.0))["devices"][0]["unsure"] == ""


def test_ceilings_whose_blocks_differ_are_unsure(tmp_path):
    busy = HEAD | {"ceilings": HEAD["ceilings"] | {"noise": 0.45}}
    found = joined(read([write(tmp_path / "a.jsonl", busy, row())]))
    assert found["devices"][0]["unsure"] == "blocks differed by 45%"
