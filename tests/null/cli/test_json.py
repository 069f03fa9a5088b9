"""Every command and flag that ``--help`` shows, once; what ``--json`` prints is read as standard JSON."""

import json
import math

import pytest
import typer
from typer.testing import CliRunner

from nxcore import session as sessions
from nxcore.cli import app, operators
from nxcore.spec.kernel import Check, no
from tests.null import fakes
from tests.pages.blocks import ROOT
from tests.strict import strict
from tests.table import for_each

TRACED = '{"op": "add", "count": 2, "devices": ["cpu", "cpu"], "needs_grad": false, "aliased": false, '
TRACED += '"x": {"dtype": "float32", "shape": [4], "strides": [1]}, '
TRACED += '"y": {"dtype": "float32", "shape": [4], "strides": [1]}, "alpha": "int", "out": null}\n'
MODEL = "import torch\n\ndef make():\n    return torch.nn.MaxPool2d(2), torch.randn(1, 1, 4, 4)\n"

PRINTING = [
    "backends",
    "ops",
    "ops add",
    "doctor --from-trace traced.jsonl",
    "explain add --sample small --dtype float32 --device cpu --backend fake",
    "explain add --shape 8,4",
    "explain --from-trace traced.jsonl --steps 2",
    "explain --from-trace traced.jsonl:1",
    "explain --model model_of_ours:make",
    "verify add --backend fake --dtype float32 --no-isolated --timeout 60",
    "tune add --sample small --dtype float32 --device cpu --budget 5 --again",
    "tune --from-trace traced.jsonl",
    "bench add --fast --sample small --dtype float32 --backend fake --device cpu --record record.jsonl",
    "bench add --fast --size small --forward --budget 0 --peer fake",
    "bench add --fast --sample small --summary",
    "bench --compare record.jsonl record.jsonl --margin 0.1",
    "report record.jsonl",
    "wisdom show add",
    "wisdom shipped",
    "quarantine list",
    "quarantine clear add --kernel fake",
    "cache show",
    "cache clear cuda",
]
OTHERS = [
    "wisdom export wisdom.json",
    "wisdom import wisdom.json",
    "wisdom merge wisdom.json wisdom.json --output merged.json",
    "wisdom lock lock.json --device cpu",
    "wisdom prune --days 1 --others",
    "report record.jsonl --output report.md",
]
ELSEWHERE = {
    "audit": "tests/null/cli/test_referee.py",
    "demo": "tests/test_demo.py",
    "search": "tests/nas/test_search_command.py",
    "ops --stub": "tests/types/test_calls.py",
    "tune --tiles": "tests/null/offline/test_tiles.py",
    "tune --most": "tests/null/offline/test_tiles.py",
    "bench --backward": "tests/null/cli/test_bench_command.py",
    "wisdom shipped --prune": "tests/null/offline/test_shipped.py",
}
"""What needs more than a fake session: a test of its own."""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return what each command printed, all in one folder and with one session."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "traced.jsonl").write_text(TRACED, encoding="utf-8")
    (folder / "model_of_ours.py").write_text(MODEL, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.path", [str(folder), *__import__("sys").path])
        found = fakes.session(
            fakes.backend("fake", fakes.kernel("add")),
            fakes.backend("away", fakes.kernel("add"), probe=lambda: no("no GPU", hint="buy one")),
        )
        found.registry.checks.append(Check("odd", True, f"{math.inf}"))
        patch.setattr(sessions, "_default", found)
        runner, printed = CliRunner(), {}
        for command in (*PRINTING, *OTHERS):
            words = command.split() + ["--json"] * (command in PRINTING)
            printed[command] = runner.invoke(app, words)
        yield printed


@for_each("command", PRINTING)
def test_json_is_standard(command, done):
    got = done[command]
    assert got.exit_code in (0, 1), (got.output, got.exception)
    assert isinstance(got.exception, SystemExit | None), got.exception
    strict(got.stdout)


@pytest.mark.parametrize("command", OTHERS)
def test_what_prints_no_json_ends_well(command, done):
    assert done[command].exit_code == 0, (done[command].output, done[command].exception)


def leaves(command, path=()):
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


def test_every_command_and_flag_is_exercised():
    asked = {}
    for command in (*PRINTING, *OTHERS):
        words = command.split()
        name = next(n for n, _ in LEAVES if words[: len(n.split())] == n.split())
        asked.setdefault(name, set()).update(w for w in words if w.startswith("--"))
        asked[name] |= {"--json"} if command in PRINTING else set()
    missing = []
    for name, command in LEAVES:
        if name in ELSEWHERE:
            continue
        for param in command.params:
            flags = {*param.opts, *param.secondary_opts}
            if not any(flag.startswith("--") for flag in flags) or f"{name} {param.opts[0]}" in ELSEWHERE:
                continue
            if not flags & asked.get(name, set()):
                missing.append(f"{name} {param.opts[0]}")
    assert missing == []


LEAVES = sorted(leaves(typer.main.get_command(app)), key=lambda leaf: -len(leaf[0].split()))


def test_what_is_exercised_elsewhere_is_there():
    lacking = []
    for what, test in ELSEWHERE.items():
        flag = what.split()[-1]
        if not (ROOT / test).exists() or flag not in (ROOT / test).read_text(encoding="utf-8"):
            lacking.append(f"{what}: {test}")
    assert lacking == []


def test_one_operator_is_shown(done):
    found = json.loads(done["ops add"].stdout)
    assert found["signature"].startswith("(x, y")
    assert "Parameters" in found["description"]
    assert [k["label"] for k in found["kernels"] if not k["ready"]] == ["away"]
    assert "no GPU" in {k["reason"] for k in found["kernels"]}
    assert found["page"] == f"{operators.PAGES}/performance/add.md"
    assert "small" in found["samples"]
    assert {"float32"} <= {*found["dtypes"]}


def test_the_pages_of_operators_are_there():
    from nxcore.ops import nxcore_ops

    pages = {path.stem for path in (ROOT / "docs" / "performance").glob("*.md")}
    assert {spec.name for spec in nxcore_ops()} & pages == operators.MEASURED
