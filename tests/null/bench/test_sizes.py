"""Size classes: what is reached of the measured bandwidth, the eight tests of a run, and its speed-ups."""

import pytest

from nxcore.bench import checks, sizes
from nxcore.measure.ceilings import Ceilings


def chosen(sample: str, label: str, us: float, **more) -> list[dict]:
    cell = {"op": "add", "sample": sample, "dtype": "float32"}
    row = cell | {"record": "row", "label": label, "device_us": us, "host_us": 1.0, "bytes": 10**6}
    choice = cell | {"record": "choice", "label": "nxcore", "chosen": label, "ratio": (1.0, 1.0, 1.0)}
    return [row | {"verdict": "FAST"}, choice | {"verdict": "FAST"} | more]


@pytest.mark.parametrize(("us", "met"), [(20, "aim"), (60, "minimum"), (100, "minimum"), (101, "missed")])
def test_a_size_class_is_met_by_the_share_of_the_measured_bandwidth(us, met):
    rows = [*chosen("large_16777216", "triton", us), *chosen("bias", "triton", us)]
    (found,) = sizes.reached(rows, ("large",), Ceilings(0.1, ((1, 1e11),), 1e14))
    assert (found.size, found.label, found.met) == ("large", "triton", met)
    assert found.share == pytest.approx(10 / us, rel=1e-3)


def test_a_run_has_eight_tests_and_the_speed_ups_of_its_choices():
    rows = [*chosen("a", "triton", 1.0, ratio=(4.0, 3.9, 4.1)), *chosen("b", "torch", 1.0)]
    rows += chosen("c", "triton", 1.0, ratio=(0.25, 0.24, 0.26))
    rows.append(rows[0] | {"label": "cuda", "verdict": "WRONG"})
    rows += chosen("large_16777216", "triton", 101)
    found = [*sizes.reached(rows, ("large",), Ceilings(0.1, ((1, 1e11),), 1e14))]
    tests = checks.checks(rows, found)
    assert {t["test"]: (t["failed"], t["cells"]) for t in tests if t["cells"]} == {
        "right": (1, 5),
        "possible": (0, 5),
        "large": (1, 1),
        "not slower": (1, 4),
    }
    assert (len(tests), checks.success(tests)) == (8, 0.25)
    assert sizes.speedups(rows) == {"cells": 4, "mean": 1.0, "max": 4.0, "min": 0.25}
    assert sizes.speedups([])["mean"] is None
