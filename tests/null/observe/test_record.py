"""What calls met is written down, and can be met again."""

import json
import sys

import pytest
import torch

import nxcore
from nxcore.errors import InvalidInputError
from nxcore.expression.grammar import parsed
from nxcore.expression.operator import specs
from nxcore.observe.counted import Counted
from nxcore.offline import ahead, status
from nxcore.registry import made
from nxcore.spec.problem import Problem
from nxcore.store import problems
from nxcore.store.lock import Lock
from nxcore.store.wisdom import digest, key
from tests.null import fakes
from tests.null.cli.commands import command
from tests.null.fakes import SPECS
from tests.table import for_each

SAMPLES = [(op, s.name) for op, spec in SPECS.items() for s in spec.samples if not s.tags & {"bench", "huge"}]
X = torch.arange(12.0).view(3, 4)


def lines(path):
    return [line for _, line in problems.read(path)]


@for_each("op", SPECS)
def test_every_problem_comes_back_from_its_line_and_its_arguments_are_like_it(op):
    spec, found = SPECS[op], 0
    for name in (name for of, name in SAMPLES if of == op):
        for dtype in (torch.float32, torch.bfloat16):
            problem = Problem.of(spec, fakes.build(op, name, dtype))
            again = problems.described(spec, json.loads(json.dumps(key(problem))))
            assert again == problem, name
            args = problems.arguments(again)
            assert Problem.of(spec, args) == problem, name
            spec.check(*args)
            found += 1
    assert found >= 6


def test_numbers_are_of_mixed_sign_and_unit_variance():
    problem = Problem.of(SPECS["add"], fakes.build("add", "prime", torch.float16))
    x, y, _, _ = problems.arguments(problem)
    for t in (x.float(), y.float()):
        assert abs(t.mean()) < 0.1
        assert abs(t.std() - 1) < 0.1
    assert not torch.equal(x, y)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float64], ids=str
)
def test_other_types_have_other_numbers(dtype):
    (x,) = problems.arguments(Problem.of(fakes.twice(), (torch.zeros(100, dtype=dtype),)))
    assert x.dtype is dtype
    assert len(set(x.tolist())) > 1


def test_an_out_that_is_an_input_is_one_again():
    problem = Problem.of(SPECS["add"], (X, X.clone(), 1, X), aliased=True)
    args = problems.arguments(problem)
    assert args[3] is args[0]


def test_offsets_are_such_as_a_forward_pass_returns():
    spec = SPECS["max_pool2d_backward"]
    like = Problem.of(spec, fakes.build(spec.name, "formats_differ"))
    grad, offsets, *rest = problems.arguments(like)
    x = torch.randn(rest[0])
    _, real = SPECS["max_pool2d_with_offsets"].reference(x, *rest[1:])
    assert offsets.dtype is real.dtype
    assert offsets.max() < 9
    assert offsets[0, 0, 0, 0] in (4, 5, 7, 8), "the first window's other taps lie outside the image"
    total = spec.reference(grad, offsets, *rest).double().sum()
    assert total.item() == pytest.approx(grad.double().sum().item(), rel=1e-3), "no gradient is lost"


def test_distinct_problems_are_written_with_how_often_they_were_met(tmp_path):
    session = fakes.session(fakes.backend())
    add = session.op("add")
    add(X, X)  # before, so that it is in the table
    with session.record(tmp_path / "met.jsonl"):
        add(X, X)
        for _ in range(3):
            add(X.t(), X.t(), alpha=2.5)
        session.op("sum")(X)
    add(X[:2], X[:2])
    found = lines(tmp_path / "met.jsonl")
    assert [(line["op"], line["count"]) for line in found] == [("add", 3), ("add", 1), ("sum", 1)]
    assert found[0]["x"] == {"shape": [4, 3], "strides": [1, 4], "dtype": "float32"}
    assert found[0]["alpha"] == "float"


def test_gradients_and_what_runs_for_them_are_met(tmp_path):
    session = fakes.session(fakes.backend())
    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    with session.record(tmp_path / "met"):
        session.op("max_pool2d", backend="fake")(x, 2).sum().backward()
    assert {line["op"] for line in lines(tmp_path / "met")} == {
        "max_pool2d_with_offsets",
        "max_pool2d_backward",
    }


def test_a_recording_leaves_to_torch_what_torch_serves_and_counts_it(tmp_path):
    """Over the bridge, or by a reference in place of torch's own layers, it would cost many times more."""
    session = fakes.session()  # torch alone
    x, w = (torch.randn(1, 2, 6, 6), torch.randn(2, 1, 3, 3, requires_grad=True))
    norm = session.op("batch_norm")
    with session.record(tmp_path / "met"), session.policy("auto"):
        for _ in range(12):
            out = session.op("depthwise_conv2d")(x, w)
            out.sum().backward()
            assert norm.by_kernel(x, None, None, 1e-5) is None
    assert "Join" not in type(out.grad_fn).__name__
    found = {line["op"]: line["count"] for line in lines(tmp_path / "met")}
    gradient = {"depthwise_conv2d_backward": 12}  # another device may have a kernel for it
    assert found == {"depthwise_conv2d": 12, "batch_norm": 12} | gradient


@pytest.mark.parametrize("steps", [2, 40])
def test_a_gradient_counts_as_often_as_its_forward_call_whoever_computes_it(tmp_path, steps):
    session = fakes.session(fakes.backend())
    x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 1, 3, 3, requires_grad=True)
    with session.record(tmp_path / "met"), session.policy("auto"):
        for _ in range(steps):
            session.op("depthwise_conv2d")(x, w).square().sum().backward()
    found = {line["op"]: line["count"] for line in lines(tmp_path / "met")}
    assert found == {"depthwise_conv2d": steps, "depthwise_conv2d_backward": steps}


def test_what_a_recording_does_to_a_call_is_one_more(tmp_path):
    """The plan is found as fast as ever, and a counter goes up: no lock, no dictionary, nothing by name."""
    session = fakes.session(fakes.backend())
    add = session.op("add")
    with session.record(tmp_path / "met"):
        add(X, X)
        add(X, X)
        (plan,) = [entry[-1] for entry in next(iter(add.near.values()))]
        assert isinstance(plan, Counted)
        called: list[str] = []
        sys.setprofile(
            lambda frame, event, arg: called.append(frame.f_code.co_name) if event == "call" else 0
        )
        try:
            plan(X, X, 1, None)
        finally:
            sys.setprofile(None)
        assert called[0] == "__call__"
        assert "observing" not in called
        assert len(called) <= 3, called


def test_a_count_can_be_read_while_it_goes_on():
    counted = Counted(lambda: None)
    for expected in range(4):
        assert counted.count == counted.count == expected
        counted()


def test_what_was_met_is_written_although_the_block_raised(tmp_path):
    session = fakes.session(fakes.backend())

    def block():
        with session.record(tmp_path / "met"):
            session.op("add")(X, X)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert [line["op"] for line in lines(tmp_path / "met")] == ["add"]


def test_where_nothing_can_be_written_no_call_is_made(tmp_path):
    session = fakes.session(fakes.backend())
    with pytest.raises(FileNotFoundError), session.record(tmp_path / "no" / "folder"):
        pytest.fail("the block must not run")


@pytest.fixture
def default(as_default):
    found = fakes.session(fakes.backend())
    as_default(found)
    return found


def run(*words):
    done = command("tune", *words, "--json")
    return json.loads(done.stdout)["rows"]


def test_tune_replays_a_trace_and_the_calls_know(default, tmp_path, monkeypatch):
    fakes.identified(monkeypatch)
    path = tmp_path / "met"
    args = fakes.build("max_pool2d_backward", "formats_differ")
    with nxcore.record(path), nxcore.policy("frozen"):
        nxcore.op("add")(X.t(), X.t())
        nxcore.op("max_pool2d_backward")(*args)
    rows = run("--from-trace", str(path))
    assert sorted((r["op"], r["name"]) for r in rows) == [("add", "met 1"), ("max_pool2d_backward", "met 2")]
    assert {r["status"] for r in rows} == {"measured"}
    for op, met in (("add", (X.t(), X.t(), 1, None)), ("max_pool2d_backward", args)):
        assert default.wisdom.read(Problem.of(SPECS[op], met)) is not None
    assert [r["op"] for r in run("add", "--from-trace", str(path))] == ["add"]


def test_a_problem_of_another_device_is_left_out_unless_it_is_moved(default, tmp_path):
    line = key(Problem.of(SPECS["add"], (X, X, 1, None))) | {"devices": ["cuda", "cuda"], "count": 1}
    (tmp_path / "met").write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert run("--from-trace", str(tmp_path / "met"), "--device", "cpu")[0]["problem"]["device"] == "cpu"
    if not torch.cuda.is_available():
        (row,) = run("--from-trace", str(tmp_path / "met"))
        assert row["status"] == "left out"


@pytest.mark.parametrize("index", [0, 1])
def test_a_moved_problem_leaves_a_number_on_the_cpu(index):
    cuda, one = torch.device("cuda", 0), Problem.of(SPECS["add"], (X, torch.ones(()), 1, None))
    mixed = fakes.replace(
        one, args=tuple(fakes.replace(a, device=cuda) if i == index else a for i, a in enumerate(one.args))
    )
    other = problems.moved(mixed, torch.device("cuda", 1))
    assert [str(t.device) for t in other.tensors] == ["cuda:1" if i == index else "cpu" for i in (0, 1)]
    assert problems.moved(mixed, torch.device("cpu")) == one
    assert [t.device.type for t in problems.moved(one, cuda).tensors] == ["cuda", "cuda"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "line 1 isn't JSON"),
        ("[]", "line 1 isn't a problem: it has no op"),
        ('{"op": "add"}', "add: a problem can't be made of"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(default, tmp_path, text, match):
    (tmp_path / "met").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=match):
        run("--from-trace", str(tmp_path / "met"))


@pytest.mark.parametrize(
    "change",
    [
        {"x": {"shape": [3], "strides": [1, 1], "dtype": "float32"}},
        {"x": {"shape": [-3], "strides": [1], "dtype": "float32"}},
        {"x": {"shape": [3], "strides": [1], "dtype": "load"}},
        {"x": None},
        {"alpha": "list"},
        {"devices": []},
        {"devices": ["nowhere", "cpu"]},
    ],
    ids=str,
)
def test_a_line_that_makes_no_sense_is_refused(change):
    line = key(Problem.of(SPECS["add"], (X, X, 1, None)))
    assert problems.described(SPECS["add"], line)
    with pytest.raises(InvalidInputError, match="add: a problem can't be made of"):
        problems.described(SPECS["add"], line | change)


def test_a_recording_of_an_expression_is_read_where_nobody_made_it(tmp_path):
    path, session = tmp_path / "problems.jsonl", fakes.session()
    operator = session.op(made.define(session.registry, parsed("relu(x) * y", {}), "drawn").name)
    x = torch.randn(3, 4, requires_grad=True)
    with session.record(path):
        operator(x, torch.randn(4)).sum().backward()
    assert sorted(line["op"] for line in lines(path)) == ["drawn", "drawn_backward"]
    elsewhere = fakes.session()
    cells = ahead.of_trace(elsewhere.registry, path)
    assert [cell.spec.name for cell in cells] == ["drawn_backward", "drawn"]
    assert elsewhere.registry.spec("drawn").expression == operator.spec.expression
    found = status.of_trace(fakes.session(), path)
    assert {row.problem.op for row in found.rows} == {"drawn", "drawn_backward"}
    rows = list(ahead.tuned(elsewhere, cells, effort=fakes.QUICK))
    assert {row.status for row in rows} <= {"measured", "inconclusive", "no race"}


def test_a_lock_holds_for_an_expression(tmp_path):
    text, x = "relu(x) * y", torch.randn(5)
    chosen = Problem.of(specs(parsed(text, {}), "drawn")[0], (x, x, None))
    session = fakes.session()
    made.define(session.registry, parsed(text, {}), "drawn")
    session.hold(Lock({digest(key(chosen)): "torch"}), "frozen")
    decision = session.explain("drawn", x, x).decision
    assert decision.chosen == "torch"
    assert "lock" in decision.reason
