"""``nxcore verify``: rows for people and for machines, exit status 1 where something is wrong."""

import json

import pytest
import torch
from typer.testing import CliRunner

from nxcore.cli import app, operators
from nxcore.spec.kernel import no
from nxcore.testing import Finding, Row
from nxcore.testing.rules import OF_A_KERNEL, OF_A_TYPE
from tests.null import fakes
from tests.null.cli.commands import command

HOW = {"dtypes": (torch.float32,), "deterministic": True}


def wrong(x, dim, keepdim):
    return torch.zeros_like(fakes.SPECS["sum"].reference(x, dim, keepdim))


@pytest.fixture(autouse=True)
def session(as_default):
    """The default session: a backend that is right in add and wrong in sum, and one that can't run."""
    found = fakes.session(
        fakes.backend("fake", fakes.kernel("add", **HOW), fakes.kernel("sum", wrong, **HOW)),
        fakes.backend("away", fakes.kernel("add", **HOW), probe=lambda: no("no GPU")),
    )
    as_default(found)
    return found


def run(*words, status=0):
    return command("verify", "--no-isolated", *words, status=status)


def test_the_table_says_who_is_right_and_who_is_wrong():
    text = run(status=1).stdout
    assert "1 verified, 1 not run, 1 wrong" in text
    assert "not run: away (1 row): no GPU" in text
    row = next(line for line in text.splitlines() if line.lstrip().startswith("sum "))
    assert row.split()[:4] == ["sum", "fake", "float32", "wrong"]


def test_steps_are_told_on_standard_error():
    assert "verify 0/1: sum fake float32" in run("sum", status=1).stderr


def test_what_is_right_ends_well():
    assert "1 verified" in run("add", "--backend", "fake", "--dtype", "float32").stdout


def test_json_is_the_rows():
    rows = json.loads(run("--json", status=1).stdout)
    assert [(r["op"], r["kernel"], r["outcome"]) for r in rows] == [
        ("add", "fake", "verified"),
        ("sum", "fake", "wrong"),
        ("add", "away", "declined"),
    ]
    assert rows[0]["microseconds"] > 0
    assert {"rule", "message", "sample"} == set(rows[1]["broken"][0])


def test_kernels_are_isolated_where_that_is_asked_for(monkeypatch):
    from nxcore import testing

    asked = {}
    monkeypatch.setattr(testing, "isolated", lambda registry, **how: asked.update(how) or [], raising=False)
    done = CliRunner().invoke(app, ["verify", "add", "--isolated", "--timeout", "7"])
    assert done.exit_code == 0
    assert "no kernel to verify" in done.stdout
    assert (asked["timeout"], asked["ops"]) == (7.0, ["add"])


def test_what_is_wrong_is_kept_from_calls_and_what_is_right_is_not(session):
    run(status=1)
    assert [(e.op, e.kernel, e.dtype, e.kind) for e in session.gate.quarantine] == [
        ("sum", "fake", "float32", "wrong")
    ]
    x = torch.ones(3, 4, device="cuda" if torch.cuda.is_available() else "cpu")  # where it was verified
    assert torch.equal(session.op("sum")(x), x.sum())
    assert "in quarantine" not in str(session.explain("add", x, x).decision["fake"].refusal)
    assert "quarantined until" in session.explain("sum", x).decision["fake"].refusal.reason


@pytest.mark.parametrize(
    ("outcome", "rules", "kind"),
    [
        ("crashed", (), "crashed"),
        ("hung", (), "crashed"),
        ("wrong", ("raises_nothing",), "raised"),
        ("wrong", ("raises_nothing", "reads_no_further"), "wrong"),
        ("wrong", ("repeats_itself", "returns_promptly"), "wrong"),
        ("wrong", ("returns_promptly", "gives_reasons"), None),
        ("declined", (), None),
    ],
)
def test_each_outcome_has_its_consequence(session, outcome, rules, kind):
    broken = tuple(Finding(rule, "why") for rule in rules)
    operators.conclude([Row("add", "fake", "float32", "cpu", outcome, reason="why", broken=broken)])
    assert [e.kind for e in session.gate.quarantine] == ([kind] if kind else [])


def test_the_manners_are_rules_that_there_are():
    assert {rule.__name__ for rule in (*OF_A_KERNEL, *OF_A_TYPE)} > operators.MANNERS
