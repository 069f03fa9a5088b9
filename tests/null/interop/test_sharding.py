"""Calls are told from calls with DTensors, whatever has been imported."""

import sys
from types import ModuleType

import pytest
import torch

from nxcore.interop.sharding import is_sharded


@pytest.mark.parametrize("module", [None, ModuleType("torch.distributed.tensor")])
def test_a_module_that_another_thread_is_importing_has_no_class_yet(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", module)
    assert not is_sharded((torch.ones(2), 1))
