"""What serves the modules of nxcore.nn in these tests."""

from collections.abc import Iterable, Iterator

import pytest
import torch

import nxcore
from nxcore.expression.activations import ACTIVATIONS
from nxcore.nn import activations, embedding, modules, norms, sequential, softmaxes, whole
from nxcore.session import Session
from tests.nn.programs import SLOW, STATES
from tests.nn.tape import Tape
from tests.null import fakes
from tests.stand_ins import stand_in

activations_has = stand_in(activations)
whole_has = stand_in(whole)

OPERATORS = (
    "add",
    "avg_pool2d",
    "batch_norm",
    "depthwise_conv2d",
    "global_avg_pool2d",
    "global_max_pool2d",
    "max_pool2d",
    "softmax_sum",
)


def serve_by(
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    backend: str | None = None,
    names: Iterable[str] = OPERATORS,
) -> None:
    """Have a session's operators serve the modules, by one backend if it is named."""
    for name in names:
        monkeypatch.setattr(modules, f"_{name}", session.op(name, backend=backend))
    others = {"_sep_conv2d": (sequential, "sep_conv2d"), "_block": (sequential, "sep_conv2d_batch_norm")}
    others |= {f"_{name}": (softmaxes, name) for name in ("softmax", "log_softmax", "cross_entropy")}
    others["_embedding"] = (embedding, "embedding")
    others |= {f"_{name}": (norms, name) for name in ("layer_norm", "rms_norm", "group_norm")}
    for name, (module, op) in others.items():
        monkeypatch.setattr(module, name, session.op(op, backend=backend))


ACTIVATED = [name for name in ACTIVATIONS if not name.endswith("_mul")]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, activations_has, device: torch.device) -> Iterator[list[str]]:
    """Serve modules by kernels that are torch's references in disguise; return the names of those that ran.

    Numba's own take a second each to compile for each window: one test has them; on CUDA another has its own.
    """
    names: list[str] = []

    def noting(name: str) -> fakes.FakeKernel:
        def run(*args: object) -> object:
            names.append(name)
            return known[name].reference(*args)

        return fakes.kernel(name, run)

    made = (spec for name in ACTIVATED for spec in ACTIVATIONS[name].specs(name))
    known = fakes.SPECS | {spec.name: spec for spec in made}
    backend = fakes.backend("fake", *map(noting, known))
    session = fakes.session(backend, specs=list(known.values()))
    serve_by(session, monkeypatch)
    activations_has(operator=session.op, won=lambda *_: True)
    with session.use("fake"):
        yield names


@pytest.fixture(params=[pytest.param(s, marks=pytest.mark.slow if s in SLOW else ()) for s in STATES])
def state(request: pytest.FixtureRequest) -> str:
    """Return what nxcore has done to a model; with kernels, if it is served."""
    if request.param == "served":
        request.getfixturevalue("ran")
    return str(request.param)


@pytest.fixture
def tape(whole_has) -> Iterator[Tape]:
    """Have whole models recorded on the CPU; nothing is measured."""
    made = Tape()
    whole_has(available=lambda: True, recorder_of=lambda _: made)
    torch._dynamo.reset()
    with nxcore.policy("frozen"):
        yield made
    torch._dynamo.reset()


@pytest.fixture
def dynamo_anew() -> Iterator[None]:
    """Forget what dynamo compiled: other tests' modules count for its limit of recompilations."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
