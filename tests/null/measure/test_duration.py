"""Times are written in one way, in a decision's reason too."""

import pytest

from nxcore.measure.decision import decide
from nxcore.measure.timing import duration
from tests.null.measure.test_decision import one


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.96, "1.0 us"), (63.94, "63.9 us"), (61_150, "61.15 ms"), (63_940, "63.94 ms"), (2.5e6, "2.50 s")],
)
def test_times_are_written_in_one_way(us, text):
    assert duration(us) == text
    if us > 1:
        reason = decide([one("torch", 2 * us, noise=0), one("a", us, noise=0)]).reason
        assert f"{text} against torch's " in reason
