"""Calls that are wrong, or only look so: one answer on every backend, and no kernel sees what no check has.

A wrong call ends in an ``InvalidInputError``, or in the ``TypeError`` of a signature, of the same words
everywhere. A right one ends in a result; or the one backend asked for declines it, with its reasons.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.ops.max_pool2d_backward import SPEC as MAX_POOL2D_BACKWARD
from nxcore.ops.max_pool2d_backward import indices
from nxcore.plugin import Window
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.spec import OpSpec
from nxcore.trust.gate import Held
from nxcore.trust.truth import widened
from tests.null import fakes
from tests.outside.arguments import odd, odd_calls

REAL = {name: b for name, b in discover(strict=True).backends.items() if name != "torch"}
RUN = tuple(name for name in ("numba", "triton", "cuda") if name in REAL)
"""Whose kernels run here what the checks let through; the others are asked for refusals alone."""

Call = Callable[..., Any]
every_op = pytest.mark.parametrize("name", sorted(fakes.SPECS))


class Witness:
    """A kernel that asks, at each call, whether the operator's check would have let it through."""

    def __init__(self, spec: OpSpec) -> None:
        self.spec, self.calls, self.unchecked = spec, 0, []

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        try:
            self.spec.check(*args)
        except Exception as error:  # noqa: BLE001  whatever a check raises is to be told
            self.unchecked.append(f"{type(error).__name__}: {error}")
        return self.spec.reference(*args)


class Court:
    """Asks one operator of every backend.

    The default choice is between torch and a fake backend: with the real ones each accepted call would be
    a race. These are asked by name.

    Attributes
    ----------
    witness : Witness
        What the fake backend runs for the operator.
    """

    def __init__(self, name: str) -> None:
        self.spec = fakes.SPECS[name]
        self.witness = Witness(self.spec)
        kernels = (fakes.kernel(n, self.witness if n == name else None) for n in fakes.SPECS)
        self.session: Session = fakes.session(fakes.backend("fake", *kernels))
        # A simulator of CUDA takes seconds, and its kernels are asked what the CPU's are.
        plain = (replace(b, kernels=[k for k in b.kernels if not k.variant]) for b in REAL.values())
        # Results are compared here: no audit has to.
        real = Session(Settings(policy="measure", audit=False), fakes.registry(*plain), fakes.QUICK)
        real.gate.verify = lambda *_: Held(None)  # the kit holds these kernels to their samples
        self.ops = {b: self.session.op(name, backend=b) for b in (None, "torch", "fake")}
        self.ops |= {b: real.op(name, backend=b) for b in REAL}

    def outcome(self, backend: str | None, args: tuple[Any, ...]) -> Any:
        """Return what a call ends in: its result, or its error."""
        with self.session.use("fake"), warnings.catch_warnings():  # chosen without a measurement
            warnings.simplefilter("ignore")  # torch's own, of prototypes and of what it deprecates
            try:
                return fakes.called(self.ops[backend], args)
            except Exception as error:  # noqa: BLE001  the very question is which one it is
                return error

    def complaints(self, args: tuple[Any, ...]) -> Iterator[str]:
        """Yield what is wrong with how a call ends; the tables of plans are emptied before."""
        for operator in self.ops.values():
            operator.clear()
        first = self.outcome("torch", args)
        if isinstance(first, InvalidInputError):
            for backend in self.ops:
                if words(again := self.outcome(backend, args)) != words(first):
                    yield f"{backend} says {words(again)}, torch says {words(first)}"
            return
        for backend in (None, "torch", "fake"):
            found = self.outcome(backend, args)
            if isinstance(found, Exception) and not excused(found, backend, args):
                yield f"{backend} says {words(found)}"
        for error in self.witness.unchecked:
            yield f"a kernel ran what the check refuses: {error}"
        self.witness.unchecked.clear()


def words(outcome: Any) -> str:
    """Return an error's type and first line; of results only that they are none."""
    first = str(outcome).partition("\n")[0] if isinstance(outcome, Exception) else ""
    return f"{type(outcome).__name__}: {first}" if isinstance(outcome, Exception) else "nothing"


def excused(error: Exception, backend: str | None, args: tuple[Any, ...]) -> bool:
    """Tell whether a call that the check let through may end in this error."""
    if backend not in (None, "torch") and isinstance(error, UnsupportedProblemError):
        return True
    if isinstance(error, IndexError):  # of a table's rows, which no check reads
        return True
    if isinstance(error, NotImplementedError):  # torch alone knows the types that its devices compute with
        return True
    if "can't allocate memory" in str(error):  # of a result with 2**40 elements, over none each
        return True
    # Only torch serves what isn't strided, in add and sum, and only torch knows which of it.
    return isinstance(error, RuntimeError) and any(
        t.layout is not torch.strided for t in fakes.leaves(args) if isinstance(t, Tensor)
    )


@functools.cache
def court(name: str) -> Court:
    return Court(name)


def bases(spec: OpSpec) -> list[tuple[Any, ...]]:
    """Return calls that are right: the first smoke sample, and those with lists and with an ``out``."""
    wanted = (
        *spec.tagged("smoke")[:1],
        *(s for s in spec.samples if s.name in ("list_of_pointers", "out_ignored")),
    )
    return [s.build(spec, "cpu", torch.float32) for s in wanted]


@every_op
def test_one_odd_argument(name: str) -> None:
    judge = court(name)
    found = [
        f"{what}: {complaint}"
        for args in bases(judge.spec)
        for what, call in odd_calls(judge.spec, args)
        for complaint in judge.complaints(call)
    ]
    assert not found, "\n".join(found)
    assert judge.witness.calls, "some odd argument is no mistake, and reaches a kernel"


@every_op
@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(data=st.data())
def test_several_odd_arguments(name: str, data: st.DataObject) -> None:
    judge = court(name)
    args = list(data.draw(st.sampled_from(bases(judge.spec)), "base"))
    places = st.integers(0, len(args) - 1)
    few = st.lists(places, min_size=min(2, len(args)), max_size=3, unique=True)
    for i in data.draw(few, "places"):
        choices = dict(odd(judge.spec.params[i], args[i]))
        args[i] = choices[data.draw(st.sampled_from(sorted(choices)), judge.spec.params[i].name)]
    assert not list(judge.complaints(tuple(args)))


def _nearer(spec: OpSpec, call: tuple[Any, ...], n: int, got: Tensor, want: Tensor) -> bool:
    """Whether a result is nearer to float64's than torch's own: a norm of equal values loses most digits."""
    if "norm" not in spec.name or (got.dtype, got.shape) != (want.dtype, want.shape):
        return False
    truth = [*fakes.leaves(spec.reference(*widened(call)))][n]
    return bool((got - truth).abs().max() <= (want - truth).abs().max())


@pytest.mark.slow
@every_op
def test_odd_tensors_on_real_kernels(name: str) -> None:
    """What the checks let through runs, or is declined with a reason, and the result is torch's."""
    judge, seen = court(name), 0
    # Triton's interpreter takes seconds, and kernels of these are calls of others, or mirror another's.
    others = bool(judge.spec.parts) or name in ("amin", "min", "argmin", "all")
    run = [backend for backend in RUN if not (others and backend == "triton")]
    calls = bases(judge.spec)
    first = next(
        p.name for p, value in zip(judge.spec.params, calls[0], strict=True) if [*fakes.leaves((value,))]
    )
    for args in calls:
        for what, call in odd_calls(judge.spec, args):
            of_tensor = any(f"={kind}_" in what for kind in ("tensor", "last"))
            if not of_tensor or isinstance(want := judge.outcome("torch", call), Exception):
                continue
            # An interpreter would verify each type first, and a call with lists or ``out`` is another's too.
            chosen = run if args is calls[0] and "float" not in what else RUN[:1]
            if not what.startswith(f"{first}="):  # an interpreter reads a tensor of any parameter alike
                chosen = [backend for backend in chosen if backend != "triton"]
            for backend in chosen:
                got = judge.outcome(backend, call)
                if isinstance(got, Exception):
                    assert isinstance(got, UnsupportedProblemError), f"{what} on {backend}: {words(got)}"
                    assert all(got.reasons), f"{what} on {backend}: a refusal has a reason"
                    continue
                seen += 1
                for n, (g, w) in enumerate(zip(fakes.leaves(got), fakes.leaves(want), strict=True)):
                    say = functools.partial("{} on {}: {}".format, what, backend)
                    if not _nearer(judge.spec, call, n, g, w):
                        assert g.shape == w.shape, say("shapes")
                        torch.testing.assert_close(g.flatten(), w.flatten(), equal_nan=True, msg=say)
    without = not any(k.op == name for backend in RUN for k in REAL[backend].kernels)
    assert seen or without or judge.spec.view(*calls[0])


@every_op
def test_signatures(name: str) -> None:
    judge = court(name)
    args = bases(judge.spec)[0]
    wrong: dict[str, Callable[[Any], Any]] = {
        "none": lambda op: op(),
        "too_many": lambda op: op(*args, *args, 1),
        "unknown_word": lambda op: op(args[0], no_such_word=1),
        "twice": lambda op: op(args[0], **{judge.spec.params[0].name: args[0]}),
    }
    for what, call in wrong.items():
        said = set()
        for op in judge.ops.values():
            with pytest.raises(TypeError) as caught:
                call(op)
            said.add(str(caught.value))
        assert len(said) == 1, f"{what}: {said}"


@every_op
def test_equal_to_a_served_call_but_wrong(name: str) -> None:
    """A table of plans must tell 3 from 3.0, from True, and from a list that holds its class."""
    judge, found = Court(name), []  # its own: what raises in it is held against the fake backend
    for args in bases(judge.spec):
        wrong = []
        for what, call in odd_calls(judge.spec, args):
            judge.ops["torch"].clear()
            if isinstance(cold := judge.outcome("torch", call), InvalidInputError):
                wrong.append((what, call, words(cold)))
        for backend in ("torch", "fake"):
            judge.ops[backend].clear()
            judge.outcome(backend, args)
            served = dict(judge.ops[backend].plans)
            for what, call, cold in wrong:
                if (warm := words(judge.outcome(backend, call))) != cold:
                    found.append(f"{what} on {backend}: {warm} after a right call, {cold} before")
                if judge.ops[backend].plans != served:
                    found.append(f"{what} on {backend}: it changed the table of plans")
                    judge.outcome(backend, args)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "max_pool2d_with_offsets"])
def test_a_window_of_more_taps_than_can_be_counted(name: str) -> None:
    """Torch would run it; a kernel that walks through the taps would never come back."""
    for backend, op in court(name).ops.items():
        with pytest.raises(InvalidInputError, match="fewer than 2\\*\\*31 taps"):
            op(torch.ones(1, 1, 4, 4), 2**30, 1, 2**29)
        assert backend is None or op.backend == backend


@pytest.mark.parametrize("backend", ["torch", *RUN])
def test_offsets_that_no_forward_pass_returns(backend: str) -> None:
    """They select no tap, or one in the padding: no gradient, and nothing written elsewhere."""
    size, window = (2, 3, 6, 7), (3, 2, 1)
    shape = (*size[:-2], *Window.of_pool(size, *window).outputs)
    offsets = (torch.arange(torch.Size(shape).numel()) * 37 % 256).to(torch.uint8).view(shape)
    grad = torch.randn(shape)
    wanted = MAX_POOL2D_BACKWARD.reference(grad, offsets, size, *window)
    if torch.cuda.is_available() and backend in ("triton", "cuda"):
        grad, offsets = grad.cuda(), offsets.cuda()
    got = court("max_pool2d_backward").ops[backend](grad, offsets, size, *window)
    torch.testing.assert_close(got.cpu(), wanted)


def test_indices_lie_on_the_plane_whatever_the_offsets() -> None:
    """Torch's own backward pass writes to whatever index it is given."""
    window = Window.of_pool((2, 3, 6, 7), 3, 2, 1)
    offsets = torch.arange(256).to(torch.uint8).repeat(1, 1, *window.outputs, 1).movedim(-1, 0)
    places = indices(offsets.flatten(0, 1).contiguous(), window)
    assert 0 <= int(places.min()) <= int(places.max()) < 6 * 7


@pytest.mark.parametrize("shift", [1, 7, -3])
def test_out_that_overlaps_an_input_in_part(shift: int) -> None:
    memory = torch.arange(100.0)
    x, out = memory[10:60], memory[10 + shift : 60 + shift]
    said = {words(court("add").outcome(b, (x, torch.ones(50), 1, out))) for b in court("add").ops}
    assert said == {"InvalidInputError: out must not overlap an input in part"}
    assert torch.equal(memory, torch.arange(100.0)), "nothing was written"
