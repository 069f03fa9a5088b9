"""Both ways are joined by Python or by the extension: what a measured pair says on the other path."""

from nxcore.graphs.graphed import deciding
from nxcore.spec import launched
from tests.null import fakes
from tests.null.call.crossing import learning, races, step
from tests.table import for_each


@for_each(
    ("us", "first", "races_later"),
    [(13, "python", 0), (13, "compiled", 1), (70, "python", 1), (70, "compiled", 0)],
)
def test_a_pair_counts_for_the_other_path_where_its_cost_can_not_change_it(
    us, first, races_later, joining, monkeypatch, tmp_path
):
    """Python joins both ways at a higher cost than the extension: who loses with it loses without it."""
    fakes.identified(monkeypatch)

    def races_on(path):
        monkeypatch.setattr(launched, "_runs", [lambda call, again: call] if path == "compiled" else [])
        session, _ = learning(0.7, 0.7, "measure", tmp_path)
        joining(us, session.chooser.learner.clock)
        seen = races(monkeypatch)
        crossed = [step(session, dense=True) for _ in range(3)]
        assert crossed[-1] == (us == 13)
        return len([labels for labels in seen if "fast + fast" in labels])

    other = {"python": "compiled", "compiled": "python"}[first]
    found = [races_on(path) for path in (first, first, other, other, first)]
    assert found == [1, 0, races_later, 0, 0], "each path has a record of its own"


def test_before_a_capture_problems_are_measured_and_pairs_are_not(joining, monkeypatch):
    session, runs = learning(0.7, 0.7)
    joining(13, session.chooser.learner.clock)
    seen = races(monkeypatch)
    with deciding():
        for _ in range(3):
            step(session, dense=True)
    assert {"forward", "backward"} <= {*runs}
    assert seen
    assert not [labels for labels in seen if "fast + fast" in labels]
