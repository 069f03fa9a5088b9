"""A problem is handed from file to file a few times, however many kernels there are."""

import pytest
import torch

from nxcore.choose.tuner import Tuner
from nxcore.measure.race import IN_CALL
from nxcore.spec.problem import Problem
from nxcore.store.files import Store
from nxcore.trust.gate import Gate
from tests.null import fakes
from tests.null.choose.stays import of_a_new_problem, stays
from tests.null.fakes import SPECS

X = torch.ones(64)
MOST = 15


@pytest.mark.parametrize("kernels", [1, 6])
def test_the_choice_for_a_new_problem_makes_few_stays(kernels):
    registry = fakes.registry(*(fakes.backend(f"other{i}") for i in range(kernels)))
    tuner = Tuner(registry, Gate(registry, Store()), IN_CALL)
    args = (X, X, 1, None)
    problem = Problem.of(SPECS["add"], args)
    found = stays(problem, lambda: tuner.choose(problem, args))
    assert {"tuner", "admission", "contest", "contenders"} == set(found)
    assert len(found) <= MOST


def test_so_does_one_among_the_installed_backends():
    assert "tuner" in (found := of_a_new_problem())
    assert len(found) <= MOST
