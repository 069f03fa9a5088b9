"""A refusal is data: a code for programs, words for readers, and no program that reads the words."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

import nxcore
from nxcore.choose.contenders import passing
from nxcore.measure.decision import Candidate
from nxcore.spec.kernel import YES, Code, Refusal, no
from nxcore.store import pages
from tests.null import fakes
from tests.table import for_each

X = torch.ones(3, 4)
SOURCES = [p for p in Path(nxcore.__file__).parent.rglob("*.py") if "testing" not in p.parts]
READS = re.compile(
    r"""(refusal|reason|why)(\.reason)?\.(startswith|endswith|find|index|partition|split|removeprefix)\(
    |["'][^"']*["']\s+(not\s+)?in\s+\S*(refusal|reason)\b
    |["']reason["']\]\.(startswith|endswith|partition|split)\(""",
    re.VERBOSE,
)


@for_each("path", SOURCES, ids=lambda p: p.relative_to(SOURCES[0].parent.parent).as_posix())
def test_no_program_reads_a_reason(path):
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if READS.search(line)]
    assert not [line for line in found if ".reason.splitlines" not in line and 'if "sample "' not in line]


@pytest.mark.parametrize(
    "line",
    [
        'c.refusal.startswith("wrong")',
        '"(wrong)" in c.refusal',
        'row["reason"].startswith("wrong")',
        'entry.candidate.refusal.reason.partition(":")',
    ],
)
def test_what_reads_one_is_found(line):
    assert READS.search(line)


def test_a_verdict_is_a_refusal_or_none():
    assert YES.refusal is None
    assert no("too wide").refusal == Refusal(Code.OTHER, "too wide")
    assert no("too wide", hint="cut it", code=Code.SIZE).refusal == Refusal(Code.SIZE, "too wide", "cut it")
    assert no("").refusal == Refusal(Code.OTHER, "declined without a reason")
    assert f"{no('too wide').refusal}" == "too wide"


def test_codes_go_from_accepts_to_the_record():
    kernel = fakes.kernel("add", accepts=lambda p: no("too wide", code=Code.SIZE))
    other = fakes.kernel("add", accepts=lambda p: 1 / 0)
    session = fakes.session(
        fakes.backend("fake", kernel),
        fakes.backend("other", other),
        fakes.backend("away", fakes.kernel("add"), probe=lambda: no("no device", hint="buy one")),
    )
    found = session.explain("add", X, X).decision
    codes = {c.label: c.refusal.code for c in found.candidates if c.refusal}
    assert codes == {"fake": Code.SIZE, "other": Code.BROKEN, "away": Code.MACHINE}
    assert found["away"].refusal.hint == "buy one"
    told = {c["label"]: (c["code"], c["refusal"]) for c in found.to_dict()["candidates"]}
    assert told["torch"] == ("", "")
    assert told["fake"] == ("size", "too wide")


def test_what_is_passing_is_told_by_the_code_alone():
    assert passing(Refusal(Code.MEMORY, "whatever"))
    assert passing(Refusal(Code.RAISED, "whatever"))
    assert not passing(Refusal(Code.QUARANTINED, "raised on three problems"))
    assert not passing(None)


@for_each("code", list(Code))
def test_a_record_keeps_a_refusal(code):
    kept = Candidate("fake", "fake", Refusal(code, "words")).to_dict()
    assert pages._candidate(kept) == Candidate("fake", "fake", Refusal(code, "words"))


def test_records_of_other_versions_stay_readable():
    kept = Candidate("fake", "fake", Refusal(Code.SIZE, "words")).to_dict()
    older = {name: value for name, value in kept.items() if name != "code"}
    assert pages._candidate(older).refusal == Refusal(Code.OTHER, "words")
    assert pages._candidate(kept | {"code": "of tomorrow"}).refusal == Refusal(Code.OTHER, "words")
    timed = dataclasses.replace(Candidate("fake", "fake"), error=0.5).to_dict()
    assert pages._candidate({n: v for n, v in timed.items() if n != "code"}).refusal is None
