"""The study's figures, sentences and pages: each follows from the record, and changes with it."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from pathlib import Path

import pytest

from nxcore.errors import InvalidInputError
from nxcore.report import page as pages
from nxcore.report.study import facts, page
from nxcore.report.study.markdown import markdown
from nxcore.report.study.sentences import sentences
from tests.report.study_record import cell, record, row

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*/*-conv-study.json"))


def said(found, *words: str) -> str:
    """Return the one sentence with these words."""
    (sentence,) = (s for s in sentences(found) if all(word in s for word in words))
    return sentence


def test_first_is_the_fastest_strict_entrant():
    """TF32 is faster, and no rival: its results are less exact."""
    found = facts.firsts(record())
    assert {label: [c["shape"] for c in cells] for label, cells in found.items()} == {
        "nxcore": [[32, 3, 1]],
        "torch-conv2d": [[64, 5, 1]],
    }
    assert [p.tied for p in facts.places(record(), "cudnn-tf32")] == [False, False]
    assert all(p.behind < 1 for p in facts.places(record(), "cudnn-tf32"))


@pytest.mark.parametrize(("speed", "tied"), [(4.5, True), (3.93, True), (3.9, False)])
def test_tied_is_within_the_margin(speed, tied):
    (place,) = facts.places(record(cell([32, 3, 1], speed)), "nxcore")
    assert place.tied is tied
    assert place.first is (speed > 4)
    assert place.behind == pytest.approx(max(1.0, 4 / speed))


def test_a_noisy_shape_has_no_places():
    """Otherwise a loaded machine would make all entrants equal."""
    found = record()
    found["cells"][1] |= {"noise": 0.3, "margin": 0.6}
    assert [p.cell["shape"] for p in facts.places(found, "nxcore")] == [[32, 3, 1]]
    assert said(found, "nxcore is the fastest") == "nxcore is the fastest strict entrant in 1 of 1 shape."
    assert said(found, "differs from itself") == (
        "The baseline differs from itself by up to 30.0%; entrants count as tied within 2.0%, by shape; "
        "1 shape with more than 20% counts for no place."
    )
    found["cells"][0]["noise"] = 0.3
    assert not [s for s in sentences(found) if "fastest" in s or "tied" in s]


def test_places_are_by_paired_blocks():
    found = record(cell([32, 3, 1], 4.5))
    (ours,) = (r for r in found["cells"][0]["rows"] if r["label"] == "nxcore")
    (best,) = (r for r in found["cells"][0]["rows"] if r["label"] == "torch-conv2d")
    ours["total_us"], ours["blocks_us"], best["blocks_us"] = 30.0, [30.0, 60.0, 90.0], [20.0, 40.0, 45.0]
    (place,) = facts.places(found, "nxcore")
    assert place.behind == 1.5


def test_the_sentences_of_a_record():
    found = record()
    assert said(found, "fastest strict", "nxcore is") == (
        "nxcore is the fastest strict entrant in 1 of 2 shapes: 32 x 32, filter 3, padding 1."
    )
    assert said(found, "keeps the size") == (
        "nxcore's conv2d is first or tied in 1 of 1 shape with the padding that keeps the size."
    )
    assert said(found, "smaller result") == (
        "nxcore's conv2d is first or tied in 0 of 1 shape with padding 1 and a smaller result; at worst it "
        "takes 1.60 times as long as torch-conv2d, at 64 x 64, filter 5, padding 1 (it ran numba)."
    )
    assert "cudnn-tf32 9.00, torch-conv2d 4.00, nxcore 3.54, inductor-im2col 2.00" in said(
        found, "im2col in eager"
    )
    assert said(found, "The fastest other") == (
        "The fastest other strict entrant takes 0.62 to 1.25 times nxcore's, 0.88 in the geometric mean."
    )
    assert "inductor-im2col 1.5 s and 50 ms" in said(found, "first call")
    assert said(found, "starts its toolkit").endswith("empty caches: torch 2.0 s, inductor 12.0 s.")
    assert said(found, "class tf32") == (
        "Of class tf32 against float64: cudnn-tf32; the largest relative error is 4.0e-04, of cudnn-tf32."
    )
    assert "im2col 10 MB" in said(found, "memory")
    assert said(found, "differs from itself") == (
        "The baseline differs from itself by up to 1.0%; entrants count as tied within 2.0%, by shape."
    )
    assert said(found, "absent") == "jax is absent: jax is not installed; pip install jax."


def test_on_a_gpu_the_kernels_alone_are_compared_too():
    found = record()
    assert said(found, "kernels alone") == (
        "By the time of the kernels alone the fastest strict entrant is torch-conv2d in 1, nxcore in 1."
    )
    assert "in 1 of 2 shapes, and at worst takes 1.60 times as long as torch-conv2d" in said(
        found, "By that time nxcore"
    )
    assert "takes 0.62 to 1.25 times nxcore's" in said(found, "By that time the fastest other")
    first = record(cell([32, 3, 1], 5.0))
    assert said(first, "By that time nxcore").endswith("is first or tied in 1 of 1 shape.")
    assert not [s for s in sentences(record(kind="cpu")) if "kernels alone" in s]
    for r in (r for c in found["cells"] for r in c["rows"]):
        r["device_us"] = None
    assert said(found, "profiler") == "The device's time is not known: the profiler saw no kernel."


def test_what_failed_is_said():
    found = record()
    found["cells"][0]["rows"][1] = {"label": "inductor-im2col", "reason": "raised ValueError: no"}
    found["notes"] = ["jax cold: not measured: the budget of 60 s was spent"]
    assert said(found, "no time") == (
        "inductor-im2col has no time at 32 x 32, filter 3, padding 1: raised ValueError: no."
    )
    assert said(found, "budget") == "Jax cold: not measured: the budget of 60 s was spent."
    assert not facts.wrong(found)
    found["cells"][0]["rows"][1]["wrong"] = True
    assert facts.wrong(found)


def test_a_wrong_entrant_is_absent_with_its_error():
    found = record(cell([32, 3, 1], 5.0))
    reason = "wrong: its error is 1.0e-01, and ieee32 was promised"
    found["cells"][0]["rows"][-1] = {"label": "nxcore", "error": 0.1, "precision": "half", "reason": reason}
    assert said(found, "nxcore is") == f"nxcore is absent: {reason}."
    assert facts.firsts(found).keys() == {"torch-conv2d"}


def test_nothing_measured_is_said():
    found = record() | {"cells": [], "notes": ["not raced: the budget of 1 s was spent"]}
    assert sentences(found)[0] == "Nothing was measured."
    assert "Nothing was measured." in markdown(found)
    json.dumps(page.data(found), allow_nan=False)


def test_the_markdown_has_the_sentences_and_every_figure():
    text = markdown(record())
    assert all(f"- {s}" in text for s in sentences(record()))
    assert "| 32 x 32, filter 3, padding 1 | 1.00 [0.98, 1.02] | 2.00 [1.96, 2.04] |" in text
    assert "100.0, 50.0, 25.0" in text
    assert "| torch-conv2d | torch's conv2d: cuDNN or oneDNN | 1.5 s | 50 ms | 4.0e-07 | 2.5 MB |" in text
    assert "Batch 2, 4 channels to 8, float32. In turns. Measured 2026-11-23T10:00:00+00:00 in 42 s" in text


def test_the_page_loads_nothing_and_cannot_be_given_markup(monkeypatch):
    monkeypatch.setattr(pages, "_plotly", lambda: "")
    found = record()
    found["head"] = copy.deepcopy(found["head"])
    found["head"]["device"]["name"] = evil = "</script><script>alert(1)</script>"
    text = page.html(found)
    assert "alert(1)" in text
    assert evil not in text
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!#|data:)|@import|url\((?!data:)", text)
    assert "blocks_us" not in text.partition('id="data"')[2].partition("</script>")[0]


def test_a_file_that_is_no_record_is_named(tmp_path):
    for text, why in (
        ("{", "is not JSON"),
        ('{"record": "head"}', "is not a record of nxcore bench conv-study"),
    ):
        file = tmp_path / "a.json"
        file.write_text(text, "utf-8")
        with pytest.raises(InvalidInputError, match=why):
            facts.read(file)
    with pytest.raises(InvalidInputError, match="can't read the record"):
        facts.read(tmp_path / "missing.json")


def test_every_row_of_the_small_record_is_as_the_study_writes_them():
    assert {*row("im2col", 1.0)} >= {"total_us", "host_us", "device_us", "ratio", "error", "memory_bytes"}


def test_a_lead_is_over_the_fastest_other_strict_entrant():
    """By the paired blocks, as places are; TF32 isn't one of them."""
    found = facts.leads(record(), "nxcore")
    assert [(row["label"], round(ratio, 3)) for _, row, ratio in found] == [
        ("torch-conv2d", 1.25),
        ("torch-conv2d", 0.625),
    ]
    alone = cell([32, 3, 1], 5.0)
    alone["rows"] = [r for r in alone["rows"] if r["label"] == "nxcore"]
    assert facts.leads(record(alone), "nxcore") == []


def test_the_page_has_all_machines_beside_each_other():
    text = (ROOT / "docs" / "performance" / "conv2d.md").read_text(encoding="utf-8")
    (heads,) = (
        line for line in text.splitlines() if line.startswith("| shape | AMD EPYC, 2 cores: a call |")
    )
    assert heads.count("H100") == heads.count("H200") == 2
    assert (
        "| 32 x 32, filter 7, padding 1 | 1.91 torch-conv2d | 1.40 cudnn-tf32 | 1.02 inductor-im2col |"
        in text
    )


def test_the_documentation_says_what_the_records_say():
    spec = importlib.util.spec_from_file_location("study", ROOT / "docs" / "study.py")
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    text = drawing.PAGE.read_text(encoding="utf-8")
    assert drawing.redrawn(text) == text, "run python docs/study.py"
    assert {path.parent.name for path in RESULTS} <= set(drawing.MACHINES)
    for path in {path.parent.name: path for path in RESULTS}.values():  # the latest of each machine
        assert all(sentence in text for sentence in sentences(facts.read(path)))


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_the_committed_records_make_pages(path):
    found = facts.read(path)
    assert not facts.wrong(found)
    left = next((note for note in found["notes"] if note.startswith("not raced: ")), "")
    sides = {cell["shape"][0] for cell in found["cells"]}
    wanted = 15 if left or len(sides) > 1 else 5  # a run of one side asks for its five shapes
    assert len(found["cells"]) + left.count("filter") == wanted, "each shape was raced, or is named"
    assert f"- {sentences(found)[0]}" in markdown(found)
    json.dumps(page.data(found), allow_nan=False)
