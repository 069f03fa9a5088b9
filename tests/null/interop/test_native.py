"""The compiled path: when it is used, what it hands to Python, what it keeps alive, and what it frees."""

import gc
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad

import nxcore
from nxcore.errors import InvalidInputError
from nxcore.interop import native
from nxcore.ops.rms_norm import SPEC as RMS_NORM
from nxcore.session import default
from nxcore.settings import Settings
from nxcore.spec.origin import installing
from tests.null import fakes
from tests.stand_ins import stand_in

native_has = stand_in(native)

EXTENSION = native.found().extension

if EXTENSION is None:
    pytest.skip(f"nxcore-native: {native.found().detail}", allow_module_level=True)

COMPILED = pytest.mark.parametrize("path", ["compiled"], indirect=True)
X = torch.arange(12.0).view(3, 4)


@pytest.fixture
def op():
    """Return an addition that a fake kernel serves."""
    return fakes.session(fakes.backend()).op("add")


def far(op, monkeypatch):
    """Return the list of the calls that the compiled path hands to Python from now on."""
    seen, before = [], type(op).far
    monkeypatch.setattr(type(op), "far", lambda self, *args: seen.append(args) or before(self, *args))
    return seen


# When it is used


class Entry:
    """An entry point that loads what is given."""

    dist, value = SimpleNamespace(name="nxcore-native", version="9"), "nxcore_native:extension"

    def __init__(self, load):
        self.load = lambda: load


@COMPILED
def test_an_extension_for_another_torch_is_left_out_and_said_so(path, native_has):
    def load():
        raise ImportError("built for torch 1.0, found torch 2.13")

    native_has(entry_points=lambda group: [Entry(load)])
    with pytest.warns(native.NativeWarning, match="built for torch 1.0") as caught:
        found = native.found.__wrapped__()
    assert str(caught[0].message).endswith(f"Calls run without it. To fix it: {installing('nxcore-native')}")
    assert (found.extension, found.ok) == (None, False)
    assert found.detail == "nxcore-native 9 is left out: ImportError: built for torch 1.0, found torch 2.13"


@COMPILED
def test_an_extension_of_other_sources_is_left_out_and_said_so(path, native_has):
    native_has(entry_points=lambda group: [Entry(SimpleNamespace)])
    with pytest.warns(native.NativeWarning, match="from other sources: interface 0, expected 2"):
        assert native.found.__wrapped__().extension is None


@COMPILED
def test_without_the_extension_python_finds_the_plans(path, native_has):
    native_has(entry_points=lambda group: [])
    found = native.found.__wrapped__()
    assert (found.extension, found.ok) == (None, True)
    assert "not installed" in found.detail


@COMPILED
def test_the_library_names_the_torch_that_it_was_built_for(path, monkeypatch):
    package = pytest.importorskip("nxcore_native")
    minor = ".".join(torch.__version__.split(".")[:2])
    assert minor in package.built()
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    with pytest.raises(ImportError, match=r"built for torch .*, found torch 9\.9\.0"):
        package.extension()


@COMPILED
@pytest.mark.parametrize(("text", "wanted"), [("0", False), ("off", False), ("1", True), (None, True)])
def test_the_environment_switches_it_off(path, text, wanted):
    settings = Settings.from_environment({} if text is None else {"NXCORE_NATIVE": text})
    assert settings.native is wanted
    session = fakes.session(fakes.backend())
    session.settings = fakes.replace(session.settings, native=wanted)
    assert isinstance(session.op("add"), EXTENSION.Lookup) is wanted


# What it hands to Python


@COMPILED
def test_a_hit_runs_no_python_but_the_plan(op, path, monkeypatch):
    for _ in range(2):
        op(X, X)
    assert op.admitted() == 1
    seen = far(op, monkeypatch)
    for given in ((X, X), (X, X.clone()), (torch.nn.Parameter(X, requires_grad=False), X)):
        assert torch.equal(op(*given), given[0] + given[1])
    assert torch.equal(op(y=X, x=X, alpha=2), 3 * X)
    assert len(seen) == 1, "a parameter is of another class"


def storageless():
    x = torch.ones(3, 4)
    x.untyped_storage().resize_(0)
    return x


CHANGES = {
    "shape": lambda: (X[:2], X[:2]),
    "strides": lambda: (X.t().contiguous().t(), X),
    "dtype": lambda: (X.double(), X),
    "gradient": lambda: (X.clone().requires_grad_(), X),
    "number": lambda: (X, 2.0),
    "subclass": lambda: (X.as_subclass(type("Sub", (torch.Tensor,), {})), X),
    "layout": lambda: (X.to_sparse(), X.to_sparse()),
    "out": lambda: (X, X, torch.empty(3, 4)),
}


@COMPILED
@pytest.mark.parametrize("what", CHANGES)
def test_another_call_goes_to_python(op, path, monkeypatch, what):
    for _ in range(2):
        op(X, X)
    seen = far(op, monkeypatch)
    x, y, *out = CHANGES[what]()
    op(x, y, out=out[0] if out else None)
    assert len(seen) == 1


AROUND = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": lambda: torch.device("cpu"),
}


@COMPILED
@pytest.mark.parametrize("what", AROUND)
def test_another_context_goes_to_python(op, path, monkeypatch, what):
    for _ in range(2):
        op(X, X)
    seen = far(op, monkeypatch)
    with AROUND[what]():
        op(X, X)
    assert len(seen) == 1
    op(X, X)
    assert len(seen) == 1


@COMPILED
@pytest.mark.parametrize("place", [0, 1])
def test_in_forward_mode_dual_numbers_alone_go_to_python(path, place):
    op, weights = fakes.session(fakes.backend()).op("weighted_sum"), torch.ones(2)
    for _ in range(2):
        op([X, X], weights)
    with forward_ad.dual_level():
        assert op.find([X, X], weights)
        given = [X, X]
        given[place] = torch._VF._make_dual(X, 3 * X, level=0)  # make_dual itself loads torch's compilers
        assert op.find(given, weights) is None


@COMPILED
def test_a_tensor_without_memory_goes_to_python(op, path, monkeypatch):
    for _ in range(2):
        op(X, X)
    seen = []
    monkeypatch.setattr(type(op), "far", lambda self, *args: seen.append(args))
    op(storageless(), X)
    assert len(seen) == 1


@COMPILED
def test_a_preference_has_plans_of_its_own(path):
    session = fakes.session(fakes.backend())
    op = session.op("add")
    for _ in range(3):
        op(X, X)
        with session.use("torch"):
            op(X, X)
    assert op.admitted() == 2


@COMPILED
def test_equal_values_of_other_classes_are_other_calls(path, monkeypatch):
    op = fakes.session(fakes.backend()).op("sum")
    for _ in range(2):
        op(X, 1)
    seen = far(op, monkeypatch)
    with pytest.raises(InvalidInputError, match="got bool"):
        op(X, True)
    assert len(seen) == 1
    op(X, int("1"))
    assert len(seen) == 1


@COMPILED
def test_invalid_calls_raise_as_python_does(op, path):
    for call in (
        lambda: op(),
        lambda: op(X),
        lambda: op(X, X, 2),
        lambda: op(X, X, beta=1),
        lambda: op(X, X, x=X),
    ):
        with pytest.raises(TypeError, match=r"add\(\)"):
            call()


# What it keeps alive, and what it frees


@COMPILED
def test_dropped_plans_are_freed_and_not_found(path):
    session = fakes.session(fakes.backend())
    op = session.op("add")
    for _ in range(2):
        op(X, X)
    assert op.admitted() == 1
    op.clear()
    assert op.admitted() == 0
    assert torch.equal(op(X, X), 2 * X)


@COMPILED
def test_a_plan_for_a_table_that_was_replaced_is_not_admitted(op, path):
    for _ in range(2):
        op(X, X)
    before = op.near
    op.clear()
    op.admit(before, "key", op.spec.reference, (X, X, 1, None), op.spec.reference, 0)
    assert op.admitted() == 0


@COMPILED
def test_an_operator_with_plans_is_collected(path):
    session = fakes.session(fakes.backend())
    op = session.op("add")
    for _ in range(2):
        op(X, X)
    gone = weakref.ref(op)
    del op, session
    gc.collect()
    assert gone() is None


@COMPILED
def test_only_so_many_plans_are_kept(path):
    op = fakes.session(fakes.backend()).op("add")
    for n in range(5000):
        x = torch.empty(n + 1)
        op.admit(op.near, n, op.spec.reference, (x, x, 1, None), op.spec.reference, 0)
    assert 0 < op.admitted() <= 4096


@COMPILED
def test_an_operator_with_more_parameters_than_fit_is_pythons(path, monkeypatch):
    session = default()
    monkeypatch.setattr(session, "settings", fakes.replace(session.settings, native=True))
    texts = [" + ".join(f"x{i}" for i in range(count)) for count in (native.MOST - 1, native.MOST)]
    fits, exceeds = map(nxcore.pointwise, texts)  # each has `out` besides
    assert native.of(fits) is not None
    assert native.of(exceeds) is None
    xs = [torch.full((4,), float(i)) for i in range(native.MOST)]
    torch.testing.assert_close(fits(*xs[:-1]), sum(xs[:-1]))
    torch.testing.assert_close(exceeds(*xs), sum(xs))


@COMPILED
def test_under_autocast_the_plan_is_called_without_its_python_function(op, path, monkeypatch):
    """What runs sees autocast off, as on Python's path; the caller sees it on again, also after an error."""
    seen = []

    def plan(*args):
        seen.append((torch.is_autocast_enabled("cpu"), sys._getframe(1).f_code.co_name))
        if len(seen) == 5:
            raise ValueError("fifth")
        return torch.add(args[0], args[1])

    x = X.bfloat16()
    op.replan(op.key(x, x, 1, None), plan)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            assert torch.equal(op(x, x), x + x)
            assert torch.is_autocast_enabled("cpu")
        here = sys._getframe().f_code.co_name
        assert [off for off, _ in seen] == [False] * 3
        assert seen[2][1] == here, "no function of nxcore lies between, once the call is known"
        assert torch.equal(op.by_kernel(x, x, 1, None), x + x)
        assert seen[3] == (False, "by_kernel_compiled"), "as of a module"
        with pytest.raises(ValueError, match="fifth"):
            op(x, x)
        assert torch.is_autocast_enabled("cpu")


@COMPILED
def test_what_none_stands_for_is_read_at_every_call_and_python_is_not_asked_again(path, monkeypatch):
    op = fakes.session().op("matmul")
    x, before = torch.eye(4), torch.get_float32_matmul_precision()
    handed = far(op, monkeypatch)
    try:
        for setting, wanted in (("highest", "ieee32"), ("medium", "half"), ("highest", "ieee32")):
            torch.set_float32_matmul_precision(setting)
            for _ in range(6):
                assert torch.equal(op(x, x), x)
            assert {args[2] for args in handed} <= {wanted}, "the class, not None"
            assert len(handed) < 6
            handed.clear()
            op(x, x)
            assert not handed
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_new_object_that_is_read_for_none_lives_as_long_as_the_call(path):
    seen = []

    def run(x, shape, weight, eps):
        seen.append((eps, [i + 0.25 for i in range(64)]))  # which take the place of what was freed
        return torch.nn.functional.rms_norm(x, shape, weight, eps)

    params = [replace(p, read=lambda x: x.shape[-1] / 3) if p.name == "eps" else p for p in RMS_NORM.params]
    spec = replace(RMS_NORM, params=tuple(params), reference=run, gradient=None)
    op = fakes.session(specs=[spec]).op("rms_norm")
    for _ in range(64):
        assert torch.equal(op(X, (4,)), torch.nn.functional.rms_norm(X, (4,), None, 4 / 3))
    assert {eps for eps, _ in seen} == {4 / 3}
