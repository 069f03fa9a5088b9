"""A kernel for each setting that it must leave alone: its results are right, and it changes the setting."""

import gc
import os
import random
import signal
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nxcore.spec.precision import setting_of, to_setting

Effect = Callable[[], Any]


def _turn(name: str) -> Effect:
    return lambda: setattr(torch.backends.cudnn, name, not getattr(torch.backends.cudnn, name))


def _shorten(backend: str, op: str) -> Effect:
    return lambda: to_setting(backend, op, "ieee" if setting_of(backend, op) == "tf32" else "tf32")


def _handle() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)


EFFECTS: dict[str, Effect] = {
    "torch.is_grad_enabled()": lambda: torch._C._set_grad_enabled(not torch.is_grad_enabled()),
    "torch.get_num_threads()": lambda: torch.set_num_threads(torch.get_num_threads() % 2 + 1),
    "torch.get_default_dtype()": lambda: torch.set_default_dtype(torch.float64),
    "torch.get_deterministic_debug_mode()": lambda: torch.set_deterministic_debug_mode(
        (torch.get_deterministic_debug_mode() + 1) % 3
    ),
    "torch.is_autocast_enabled()": lambda: torch.set_autocast_enabled("cpu", True),
    "torch's modes, such as torch.set_default_device()": lambda: torch.set_default_device("meta"),
    "torch.is_anomaly_enabled()": lambda: torch.autograd.set_detect_anomaly(not torch.is_anomaly_enabled()),
    "gc.isenabled()": lambda: gc.disable() if gc.isenabled() else gc.enable(),
    "torch.set_flush_denormal()": lambda: torch.set_flush_denormal(True),
    "torch.backends.cuda.matmul.fp32_precision": lambda: setattr(
        torch.backends.cuda.matmul, "allow_tf32", not torch.backends.cuda.matmul.allow_tf32
    ),
    "torch.backends.mkldnn.matmul.fp32_precision": _shorten("mkldnn", "matmul"),
    "torch.backends.cudnn.conv.fp32_precision": _shorten("cuda", "conv"),
    "torch.backends.cudnn.enabled": _turn("enabled"),
    "torch.backends.cudnn.benchmark": _turn("benchmark"),
    "torch.backends.cudnn.deterministic": _turn("deterministic"),
    "random.getstate()": lambda: random.seed(0),
    "numpy.random.get_state()": lambda: np.random.seed(0),
    "os.environ": lambda: os.environ.update(NXCORE_TEST_LEFT_BEHIND="1"),
    "os.getcwd()": lambda: os.chdir(tempfile.gettempdir()),
    "warnings.filters": lambda: warnings.simplefilter("ignore", ResourceWarning),
    "signal.getsignal()": _handle,
    "the state of torch's random number generator": lambda: torch.manual_seed(0),
}
"""By the name of the setting, as a refusal has it."""

ONCE = {
    *("torch.is_grad_enabled()", "torch.get_num_threads()", "torch.set_flush_denormal()"),
    *("torch.is_autocast_enabled()", "torch's modes, such as torch.set_default_device()"),
}
"""Those that each thread has a value of its own of: changed once, by the first call, is enough."""


def leaving(reference: Callable[..., Any], effect: Effect, *, once: bool = False) -> Callable[..., Any]:
    """Return the reference as a kernel that has an effect besides, at each call or at its first."""
    left = [effect]

    def call(*args: Any) -> Any:
        result = reference(*args)
        if left:
            left[0]()
        if once:
            left.clear()
        return result

    return call
