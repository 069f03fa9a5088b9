"""A session for what torch calls by itself."""

import pytest
import torch

from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes


@pytest.fixture
def session(as_default):
    """A session of fakes in the place of the default one, which is what torch.ops.nxcore calls."""
    found = Session(Settings(policy="frozen"), fakes.registry(fakes.backend()), fakes.QUICK)
    as_default(found)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()
