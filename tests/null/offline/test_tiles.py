"""The tiles of a kernel: each held to the truth, timed beside the one that the planner takes."""

import functools
import json
import sys
import types

import pytest
import torch
from typer.testing import CliRunner

from nxcore.cli import app
from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.measure import ceilings as limits
from nxcore.measure import race
from nxcore.measure.cold import rotating, rotation
from nxcore.offline.tiles import swept
from nxcore.spec.kernel import Kernel, no, simulated
from tests.null import fakes
from tests.null.cli.commands import command
from tests.null.fakes import SPECS

ADD = SPECS["add"].reference
ARGS = fakes.build("add", "prime")
MODULE = "kernels_with_tiles"


@pytest.fixture
def tiled(monkeypatch, raced_by):
    """A kernel whose tiles take so many microseconds; 13 is wrong, and 99 more than there is room for."""
    clock = fakes.Clock()
    raced_by(functools.partial(race.race, clock=clock))
    ceilings = limits.Ceilings(t0_us=1.0, bandwidths=((0, 1e11),), flops=1e12)
    monkeypatch.setattr(limits, "ceilings", lambda device: ceilings)
    module = types.ModuleType(MODULE)

    def plan(problem, tile=None):
        if tile == 99:
            raise RuntimeError("no room")
        call = (lambda *args: torch.zeros_like(args[0])) if tile == 13 else ADD
        return clock.costing(tile or 40, call)

    module.plan, module.sweep = plan, lambda problem: iter((20, 13, 60, 99, 40))
    monkeypatch.setitem(sys.modules, MODULE, module)
    kernel = Kernel(
        "add", f"{MODULE}:plan", lambda p: no("halves") if p.dtype is torch.float16 else fakes.YES
    )
    return fakes.backend("tiled", kernel), kernel


def test_tiles_stand_in_order_behind_the_chosen_one(tiled):
    rows = swept(SPECS["add"], *tiled, ARGS)
    assert [(r.tile, round(r.device_us)) for r in rows if r.device_us] == [
        ("chosen", 40),
        ("20", 20),
        ("40", 40),
        ("60", 60),
    ]
    assert rows[1].ratio == pytest.approx((2.0, 2.0, 2.0), rel=1e-2)
    assert rows[0].share == pytest.approx(rows[1].share / 2, rel=1e-2)


def test_a_tile_that_is_wrong_or_raises_is_told_and_not_timed(tiled):
    found = {r.tile: r.reason for r in swept(SPECS["add"], *tiled, ARGS)}
    assert found["13"].startswith("wrong: elementwise error is")
    assert found["99"] == "RuntimeError: no room"


def test_no_more_tiles_than_asked_for(tiled):
    assert [r.tile for r in swept(SPECS["add"], *tiled, ARGS, most=1)] == ["chosen", "20"]


def test_a_kernel_without_tiles_says_so(tiled, monkeypatch):
    monkeypatch.delattr(sys.modules[MODULE], "sweep")
    with pytest.raises(InvalidInputError, match="tiled has no tiles for 'add'"):
        swept(SPECS["add"], *tiled, ARGS)


def test_a_call_that_is_declined_says_why(tiled):
    with pytest.raises(UnsupportedProblemError, match="halves"):
        swept(SPECS["add"], *tiled, fakes.build("add", "prime", torch.float16))


def test_the_command_prints_a_table_and_json(tiled, as_default):
    as_default(fakes.session(tiled[0]))

    def run(*words, status):
        return command("tune", "add", "--sample", "prime", "--device", "cpu", *words, status=status).stdout

    text = run("--tiles", "tiled", status=1)
    assert text.index("chosen") < text.index("20.0 us") < text.index("60.0 us")
    (entry,) = json.loads(run("--tiles", "tiled", "--json", "--most", "1", status=0))
    assert (entry["sample"], len(entry["rows"])) == ("prime float32", 2)
    (entry,) = json.loads(run("--tiles", "tiled", "--dtype", "float16", "--json", status=0))
    assert "halves" in entry["reason"]
    with pytest.raises(InvalidInputError, match="did you mean 'tiled'"):
        run("--tiles", "tild", status=2)
    with pytest.raises(InvalidInputError, match="did you mean 'prime'"):
        run("--tiles", "tiled", "--sample", "prim", status=2)


@pytest.mark.parametrize("verdict", [no("no GPU"), simulated("in an interpreter")], ids=lambda v: v.reason)
def test_what_can_not_run_here_is_not_timed(tiled, as_default, verdict):
    found = fakes.session(fakes.backend("tiled", tiled[1], probe=lambda: verdict))
    as_default(found)
    done = CliRunner().invoke(app, ["tune", "add", "--tiles", "tiled", "--device", "cpu"])
    assert str(done.exception) == f"tiled can't be timed here: {verdict.reason}"


def test_a_rotation_is_of_other_memory_and_the_same_numbers():
    x = torch.randn(1000)
    sets = rotation((x, (x, x), 3), cache=8 * 1000 * 4)
    assert len(sets) == 14
    assert len({id(args[0]) for args in sets}) == 14
    assert all(torch.equal(args[0], x) and args[2] == 3 for args in sets)
    seen = []
    calls = rotating(dict.fromkeys("ab", lambda x, y, z: seen.append(x.data_ptr())), sets)
    for _ in range(7):
        calls["a"]()
        calls["b"]()
    assert len(set(seen)) == 14, "nobody finds in the cache what another one left there"
    calls["a"]()
    assert seen[-1] == seen[0]


def test_a_rotation_has_an_end():
    assert len(rotation((torch.zeros(1),), cache=1 << 30)) == 200
    assert len(rotation((torch.zeros(1000),), cache=0)) == 1
