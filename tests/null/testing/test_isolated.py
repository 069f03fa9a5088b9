"""Kernels held to the rules in processes of their own: a child imports this module for its registry."""

import time

import pytest
import torch

from nxcore.testing import isolated
from tests.null import fakes


def dangerous():
    """A registry whose kernels crash, hang, exit and are right."""
    import ctypes
    import os

    def kernel(op, call):
        return fakes.kernel(op, call, dtypes=(torch.float32, torch.float64))

    return fakes.registry(
        fakes.backend("crash", kernel("add", lambda *args: ctypes.string_at(0))),
        fakes.backend("exit", kernel("add", lambda *args: os._exit(3))),
        fakes.backend("hang", kernel("add", lambda *args: time.sleep(600))),
        fakes.backend("right", kernel("add", None)),
    )


SOURCE = f"{__name__}:dangerous"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_crash_spoils_one_row():
    asked = {"backends": ["crash", "exit", "right"], "dtypes": ["float32"], "source": SOURCE}
    rows = isolated(dangerous(), **asked)
    assert [(r.kernel, r.outcome) for r in rows] == [
        ("crash", "crashed"),
        ("exit", "crashed"),
        ("right", "verified"),
    ]
    assert rows[0].broken[0].message == "its process died of SIGSEGV"
    assert rows[1].broken[0].message == "its process ended with exit status 3"
    assert [r.rules for r in rows] == [("leaves_the_process_alone",)] * 2 + [()], (
        "the first that runs a kernel"
    )
    assert rows[2].samples > 25


@pytest.mark.slow
def test_what_hangs_is_ended():
    rows = isolated(dangerous(), backends=["hang"], source=SOURCE, timeout=2.0)
    assert [(r.dtype, r.outcome) for r in rows] == [("float32", "hung"), ("float64", "hung")]
    assert rows[0].broken[0].message == "did not finish in 2 s; its process was killed"
    assert rows[0].reason.startswith(
        f"{rows[0].broken[0].rule}: did not finish in 2 s; its process was killed"
    )
