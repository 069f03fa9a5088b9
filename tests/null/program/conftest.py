"""A backend of dynamo's whose graphs are recorded on the CPU."""

import functools
from collections.abc import Iterator

import pytest
import torch

from nxcore.program import front
from tests.nn.tape import Tape


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    front._programs.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def tape() -> Tape:
    """Return what stands for CUDA graphs."""
    return Tape()


@pytest.fixture
def compiled(tape: Tape):
    """Return a function that compiles a model by nxcore's backend, with recordings on the tape."""
    backend = functools.partial(front.programmed, record=lambda _: tape)
    return functools.partial(torch.compile, backend=backend)
