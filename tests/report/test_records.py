"""Reading and joining: what can't be read is said and skipped, runs are never mixed."""

import pytest

from nxcore.errors import InvalidInputError
from nxcore.report.records import UNKNOWN, read
from tests.report.lines import HEAD, record, row, write

LATER = HEAD | {"date": "2026-11-22T10:00:00+00:00"}


def test_rows_of_one_problem_are_one_cell(tmp_path):
    found = read([write(tmp_path / "a.jsonl", *record())])
    assert len(found.cells) == 12
    assert {len(c.rows) for c in found.cells} == {6}
    assert found.notes == []
    assert [(c.op, c.sample) for c in found.cells[:6:2]] == [
        ("add", "small"),
        ("add", "medium"),
        ("add", "large"),
    ]


def test_the_latest_run_has_a_cell_whole(tmp_path):
    """Ratios are paired within a run: a row that only the earlier run has doesn't join the later one's."""
    later = write(tmp_path / "b.jsonl", LATER, row(), row("triton", 4.0))
    earlier = write(tmp_path / "a.jsonl", HEAD, row(), row("cuda", 3.0))
    found = read([later, earlier])
    (cell,) = found.cells
    assert [r.label for r in cell.rows] == ["torch", "triton"]
    assert (found.runs[cell.run].date, found.replaced) == (LATER["date"], 1)


def test_a_cell_that_a_resumed_run_measures_again_is_the_last_one(tmp_path):
    found = read([write(tmp_path / "a.jsonl", HEAD, row("triton", 2.0), HEAD, row("triton", 3.0))])
    assert found.cells[0].rows[0].ratio[0] == 3.0


def test_devices_are_apart_and_a_cpu_is_named_with_its_threads(tmp_path):
    cpu = HEAD | {"device": {"type": "cpu", "name": "Chip", "units": 2}}
    found = read([write(tmp_path / "a.jsonl", HEAD, row(), cpu, row())])
    assert [c.device for c in found.cells] == ["Chip, 2 threads", "Invented 9000"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "must be an object, got list"),
        ({"record": "tail"}, "record must be head, row, again or choice, got 'tail'"),
        (
            {"record": "row", "op": "add", "sample": 3, "label": "torch"},
            "a row must have sample, dtype as text",
        ),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_the_rest_is_read(tmp_path, line, why):
    path = write(tmp_path / "a.jsonl", HEAD, line, "", row())
    found = read([path])
    assert len(found.cells) == 1
    (note,) = found.notes
    assert note.startswith(f"{path}:2: {why}")


def test_a_file_of_another_kind_is_left_out_whole(tmp_path):
    """A search's log lies in the same folder: no line of it was meant as a row, so none is an error."""
    log = write(tmp_path / "search.jsonl", {"phase": "search", "epoch": 1}, {"phase": "train", "epoch": 2})
    broken = write(tmp_path / "torn.jsonl", {"phase": "search"}, "{")
    meant = write(tmp_path / "meant.jsonl", {"op": "add"})
    found = read([log, broken, meant, write(tmp_path / "a.jsonl", HEAD, row())])
    assert found.others == [str(log)]
    assert len(found.cells) == 1
    assert {note.rpartition(":")[0].partition(":")[0] for note in found.notes} == {str(broken), str(meant)}
    with pytest.raises(
        InvalidInputError, match=r"got none in [^\n]*\n  [^\n]*search\.jsonl holds no such row"
    ):
        read([log])


def test_a_row_before_any_head_has_an_unknown_device(tmp_path):
    found = read([write(tmp_path / "a.jsonl", HEAD, row()), write(tmp_path / "b.jsonl", row())])
    assert {c.device for c in found.cells} == {"Invented 9000", UNKNOWN}
    assert found.notes == [f"{tmp_path / 'b.jsonl'}:1: a row before any head; its device is unknown"]


def test_fields_of_a_wrong_kind_are_absent_and_unknown_ones_are_kept(tmp_path):
    odd = row(
        "cuda",
        2.0,
        call_us="soon",
        error=float("nan"),
        ratio=[1.0, 2.0],
        blocks=True,
        bytes=None,
        clock=1980,
        host_blocks_us=[1.0],
    )
    (cell,) = read([write(tmp_path / "a.jsonl", HEAD, odd)]).cells
    (found,) = cell.rows
    assert set(found.numbers) == {"device_us", "host_us"}
    assert found.ratio is None
    assert found.more == {"clock": 1980}
    assert "bytes" not in cell.numbers


def test_a_head_of_odd_fields_is_read(tmp_path):
    odd = {"record": "head", "device": "H200", "ceilings": [1], "versions": None, "date": 5}
    found = read([write(tmp_path / "a.jsonl", odd, row())])
    assert (found.cells[0].device, found.runs[0].date) == (UNKNOWN, "5")


def test_a_folder_is_all_its_records(tmp_path):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "a.jsonl", HEAD, row())
    write(tmp_path / "b.jsonl", HEAD, row(sample="large"))
    write(tmp_path / "c.json", "not a record")
    assert len(read([tmp_path]).cells) == 2


def test_no_such_file_is_an_error(tmp_path):
    with pytest.raises(
        InvalidInputError, match=r"RECORDS must be files or folders, got .*gone, which doesn't exist"
    ):
        read([tmp_path / "gone"])


def test_no_row_is_an_error_that_says_why(tmp_path):
    path = write(tmp_path / "a.jsonl", HEAD, "{")
    with pytest.raises(InvalidInputError, match=r"got none in .*a\.jsonl\n  .*a\.jsonl:2: not JSON"):
        read([path])
