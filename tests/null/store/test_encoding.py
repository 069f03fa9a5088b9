"""JSON that every reader takes."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from nxcore.measure.race import Effort
from nxcore.store.encoding import encoded
from tests.strict import strict

ROOT = Path(__file__).parents[3]


class Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (
            {"a": math.inf, "b": [1, -math.inf, {"c": (math.nan, 2.5)}]},
            {"a": None, "b": [1, None, {"c": [None, 2.5]}]},
        ),
        ([True, None, "Infinity", 10**400], [True, None, "Infinity", 10**400]),
        ({1: math.nan}, {"1": None}),
        (math.nan, None),
    ],
)
def test_a_number_that_json_lacks_is_null(data, wanted):
    assert strict(encoded(data)) == wanted


def test_what_is_not_plain_goes_through_default_also_beside_infinity():
    assert strict(encoded([Odd(), math.inf], default=str)) == ["odd", None]
    assert strict(encoded({"a": Odd()}, default=lambda _: [math.nan])) == {"a": [None]}
    with pytest.raises(TypeError, match="Odd"):
        encoded([Odd(), math.inf])


def test_the_layout_is_that_of_json():
    data = {"b": [1, 2], "a": None}
    for layout in ({"indent": 2}, {"sort_keys": True}, {"separators": (",", ":")}, {}):
        assert encoded(data, **layout) == json.dumps(data, **layout)
        assert encoded(data | {"c": math.inf}, **layout) == json.dumps(data | {"c": None}, **layout)


def test_a_strict_reader_refuses_what_python_reads():
    for text in ('{"a": Infinity}', "[NaN]", "-Infinity", "{'a': 1}", '{"a": 1} x'):
        with pytest.raises(ValueError, match=r"not JSON|Expecting|Extra"):
            strict(text)


def test_an_effort_without_a_bound_is_plain():
    from dataclasses import asdict

    assert strict(encoded(asdict(Effort((1,), 1.0, 1.0))))["spin_s"] is None


def test_all_json_that_is_committed_or_shipped_is_strict():
    """Records that others read, and measurements that a package brings."""
    files = [*ROOT.glob("benchmarks/results/**/*.json*"), *ROOT.glob("nxcore/store/shipped/*.json")]
    assert len(files) > 50
    lacking = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        if "Infinity" in text or "NaN" in text:
            try:
                [strict(line) for line in ([text] if file.suffix == ".json" else text.splitlines())]
            except ValueError as error:
                lacking.append(f"{file.name}: {error}")
    assert not lacking


def test_no_other_encoder_is_used():
    """Ruff's rule knows every way to import one; this file has one that it finds."""
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--stdin-filename",
            "nxcore/new.py",
            "--select",
            "TID251",
            "-",
        ],
        input="import json\nfrom json import dump as d\n\nprint(json.dumps(1), d)\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if "No module named ruff" in found.stderr:
        pytest.skip("ruff is of the extra `lint`")
    assert found.stdout.count("TID251") == 2, found.stdout + found.stderr
