"""torch.compile of each reference: only on request, one function a problem, compiled once."""

import sys
import warnings
from dataclasses import replace

import pytest
import torch

from nxcore.errors import UnsupportedProblemError
from nxcore.registry import inductor
from nxcore.spec.kernel import no
from tests import fresh
from tests.null import fakes
from tests.null.calls import problem
from tests.stand_ins import stand_in

torch_has = stand_in(torch)
inductor_has = stand_in(inductor)

X, Y = torch.arange(12.0).view(3, 4), torch.ones(4)
SECONDS = "compiling takes seconds"


def refusal(op, *args, **kwargs):
    verdict = inductor.accepts(problem(op, *args, **kwargs))
    assert not verdict
    return verdict.reason


@pytest.fixture
def compiles(torch_has):
    """A compiler that compiles nothing; returns what it was given."""
    seen = []

    def compiler(function, **options):
        seen.append((function, options))
        return function

    torch_has(compile=compiler)
    return seen


@pytest.fixture
def machine(inductor_has):
    """A machine where everything can be compiled."""
    inductor_has(_machine=lambda kind: inductor.YES)


class TestRequest:
    """A backend that takes part only where it is asked for."""

    def session(self, **how):
        counter = fakes.Counter(fakes.SPECS["add"].reference)
        slow = replace(fakes.backend("slow", fakes.kernel("add", counter)), on_request=SECONDS)
        return fakes.session(slow, **how), counter

    def test_a_choice_leaves_it_out_and_says_why(self):
        session, counter = self.session()
        found = session.explain("add", X, Y).decision
        assert found["slow"].refusal.reason == f"only on request: {SECONDS}; request it by backend='slow'"
        assert found.chosen == "torch"
        assert counter.count == 0, "it was neither verified nor measured"

    def test_backend_asks_for_it(self):
        session, counter = self.session()
        assert torch.equal(session.op("add", backend="slow")(X, Y), X + Y)
        assert counter.count

    def test_use_asks_for_it(self):
        session, _ = self.session()
        with session.use("slow"):
            assert session.explain("add", X, Y).decision.chosen == "slow"
        assert session.explain("add", X, Y).decision.chosen == "torch"

    def test_another_preference_does_not(self):
        session, counter = self.session()
        with session.use("torch"):
            assert session.explain("add", X, Y).decision["slow"].refusal.reason.startswith("only on request")
        with session.use("torch", "slow"):
            assert (
                session.explain("add", X, Y).decision["slow"].refusal.reason
                == "not considered: 'torch' is preferred"
            )
        assert counter.count == 0

    def test_it_is_no_reason_to_differentiate_by_kernels(self):
        slow = replace(fakes.backend("slow", fakes.kernel("add_backward")), on_request=SECONDS)
        tuner = fakes.session(slow).tuner
        asked = problem("add_backward", X, (3, 4), (4,))
        assert tuner.accepting(asked) == []
        assert tuner.accepting(asked, ("slow",)) == ["slow"]

    def test_backends_show_it(self):
        session, _ = self.session()
        status = session.backends()["slow"]
        assert (status.status, status.reason) == ("ready", f"only on request: {SECONDS}")


class TestMachine:
    def test_making_the_backend_imports_no_compiler(self):
        code = "import sys; from nxcore.registry.discovery import discover; discover().statuses(); "
        code += "sys.exit(any(m.startswith(('torch._inductor', 'triton')) for m in sys.modules))"
        assert fresh.run("-c", code).returncode == 0

    def test_no_compiler(self, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler --std=c++17")
        verdict = inductor.probe_cpu()
        assert verdict.reason == "needs a compiler, but there is no no-such-compiler"
        assert verdict.hint == "install g++, or set CXX"

    def test_no_headers(self, monkeypatch):
        monkeypatch.setenv("CXX", sys.executable)  # some program that is there
        monkeypatch.setattr(inductor.sysconfig, "get_path", lambda name: "/nowhere")
        verdict = inductor.probe_cpu()
        assert verdict.reason == "needs Python's headers, but /nowhere/Python.h doesn't exist"

    def test_no_device(self, cuda_answers):
        cuda_answers(is_available=lambda: False)
        assert inductor.probe_cuda().reason == "torch sees no CUDA device"

    def test_triton_is_its_compiler_for_cuda(self, monkeypatch, inductor_has, cuda_answers):
        cuda_answers(is_available=lambda: True)
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        inductor_has(version=lambda name: "3.7.1")
        assert "TRITON_INTERPRET=1" in inductor.probe_cuda().reason

        def missing(name):
            raise inductor.PackageNotFoundError(name)

        inductor_has(version=missing)
        assert inductor.probe_cuda().reason == "triton is not installed"

    def test_one_device_is_enough(self, inductor_has):
        inductor_has(probe_cpu=lambda: no("no g++"), probe_cuda=lambda: no("no device"))
        assert inductor.probe().reason == "no g++"
        inductor_has(probe_cuda=lambda: inductor.YES)
        assert inductor.probe()


class TestRefusals:
    def test_the_machines_answer_comes_first(self, inductor_has):
        inductor_has(_machine=lambda kind: no(f"no compiler for {kind}"))
        assert refusal("add", X, Y) == "no compiler for cpu"

    @pytest.mark.usefixtures("machine")
    def test_reasons(self):
        assert refusal("add", X, Y, out=torch.empty(3, 4)) == "can't write into out: returns a new tensor"
        assert refusal("add", X, 1.5) == "needs a tensor for y, got a number (float)"
        assert refusal("add", X, X.to(torch.complex64)) == "needs real tensors, got a complex one"
        assert refusal("sum_backward", Y, (3, 4), 0) == "a view: there is nothing to run"
        assert inductor.accepts(problem("add", X, Y))


@pytest.mark.usefixtures("machine")
class TestPlan:
    def test_each_problem_has_a_function_and_a_code_object_of_its_own(self, compiles):
        calls = [inductor.plan(problem("add", X, Y)) for _ in range(3)]
        assert len({id(call.compiled.__code__) for call in calls}) == 3
        assert all(options == {"fullgraph": True, "dynamic": False} for _, options in compiles)

    def test_it_is_called_with_tensors_alone(self, compiles, monkeypatch):
        call, seen = inductor.plan(problem("add", X, Y, alpha=2.0)), []
        inner = call.compiled
        call.compiled = lambda *leaves: seen.append((leaves, torch.is_grad_enabled())) or inner(*leaves)
        x = X.clone().requires_grad_()
        with torch.enable_grad():
            out = call(x, x[0], 3.5, None)
        assert torch.equal(out, X + 3.5 * X[0])
        ((leaves, grad),) = seen
        assert [type(t) for t in leaves] == [torch.Tensor] * 3
        assert leaves[0] is not x
        assert not leaves[0].requires_grad
        assert not grad
        assert leaves[2].dtype is torch.float32, "float64 would be specialised on"

    @pytest.mark.parametrize("stacked", [False, True])
    def test_sequences_are_flattened(self, compiles, stacked):
        xs = torch.randn(3, 5)
        given = xs if stacked else tuple(xs)
        logits = torch.randn(3)
        call = inductor.plan(problem("softmax_sum", given, logits))
        torch.testing.assert_close(call(given, logits), torch.softmax(logits, 0) @ xs)

    def test_a_tensor_given_twice_is_no_special_case(self, compiles):
        call, seen = inductor.plan(problem("add", X, X)), []
        call.compiled = lambda *leaves: seen.append(leaves)
        call(X, X, 1, None)
        assert seen[0][0] is not seen[0][1], "dynamo would compile for one tensor in two places"


needs_compiler = pytest.mark.skipif(
    not inductor.probe_cpu(), reason=f"can't compile here: {inductor.probe_cpu().reason}"
)


@pytest.mark.slow
@needs_compiler
def test_one_compilation_serves_every_number_and_problems_know_no_limit():
    from torch._dynamo.utils import counters

    counters.clear()
    call = inductor.plan(problem("add", X, Y, alpha=2.0))
    for alpha in (2.0, 1.0, 0.0, -1.5, torch.inf):
        torch.testing.assert_close(call(X, Y, alpha, None), torch.add(X, Y, alpha=alpha), equal_nan=True)
    assert counters["stats"]["unique_graphs"] == 1
    with torch._dynamo.config.patch(recompile_limit=1):
        for n in (2, 3, 4):
            x = torch.randn(n, 3)
            torch.testing.assert_close(inductor.plan(problem("sum", x, 0))(x, 0, False), x.sum(0))
    assert counters["stats"]["unique_graphs"] == 4


@pytest.mark.slow
@needs_compiler
def test_asked_for_by_name():
    add = fakes.session(inductor.backend(fakes.SPECS.values())).op("add", backend="inductor")
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    add(x, y, alpha=2.0).sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 4))
    assert torch.equal(y.grad, torch.full((4,), 6.0))
    with pytest.raises(UnsupportedProblemError, match=r"needs float32 .* got int64"):
        add(X.long(), Y.long())


def test_advice_of_the_compiler_is_no_warning_to_a_caller(torch_has):
    def compiler(function, **options):
        def compiled(*leaves):
            where = {"filename": "compile_fx.py", "lineno": 1}
            warnings.warn_explicit("cores", UserWarning, module="torch._inductor.compile_fx", **where)
            warnings.warn_explicit("mine", UserWarning, module="my_function", **where)
            return function(*leaves)

        return compiled

    torch_has(compile=compiler)
    call = inductor.plan(problem("add", X, X))
    with pytest.warns(UserWarning, match="mine") as seen:
        torch.testing.assert_close(call(*fakes.SPECS["add"].bind(X, X)), 2 * X)
    assert [str(w.message) for w in seen] == ["mine"]
