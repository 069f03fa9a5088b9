"""Measuring in first calls is silent while it is short, and says what it does where it takes long."""

from nxcore.observe.bar import EVERY_S, LONG_S, Measuring


def measuring(capsys):
    """Return what is tested, and a function that measures for some seconds and returns what is written."""
    now = [0.0]
    found = Measuring(lambda: now[0])

    def measured(op, seconds):
        with found.of(op):
            now[0] += seconds
        return capsys.readouterr().err

    return found, measured


def test_a_line_is_written_once_measuring_has_taken_long_and_not_for_each_problem(capsys):
    _, measured = measuring(capsys)
    assert measured("add", LONG_S - 1) == ""
    assert measured("sum", 1.0) == "", "that was short"
    line = measured("entropy", 3.0)
    assert line == "nxcore: measures entropy; 2 problems so far in 5 s. `nxcore tune` does that ahead\n"
    assert measured("entropy", EVERY_S - 3.0) == "", "a moment after the last line"
    assert "4 problems so far in 15 s" in measured("matmul", 1.0)


def test_a_problem_that_fails_counts_too(capsys):
    now = [0.0]
    found = Measuring(lambda: now[0])
    try:
        with found.of("add"):
            now[0] += LONG_S
            raise ValueError
    except ValueError:
        pass
    with found.of("sum"):
        pass
    assert "1 problem so far in 5 s" in capsys.readouterr().err


def test_where_the_number_is_known_it_is_said_with_the_time_that_is_left(capsys, monkeypatch):
    shown, (found, measured) = [], measuring(capsys)
    with found.expected(5, lambda *step: shown.append(step)):
        assert measured("add", LONG_S) == ""
        assert measured("sum", EVERY_S) == "nxcore: measures sum, 2 of 5\n"
        assert measured("sum", 3.0) == "nxcore: measures sum, 3 of 5\n"
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        assert measured("entropy", 3.0) == "", "a bar shows it"
    assert shown == [("measures entropy, about 12 s", 3, 5)]
    measured("add", EVERY_S)
    assert len(shown) == 1, "the number isn't known any more"
