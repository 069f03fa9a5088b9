"""Run a backend's first kernel; print as JSON which of the process's state differs afterwards.

Run as a script, in an interpreter of its own: the state is the process's.
"""

import decimal
import gc
import json
import locale
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nxcore


def state() -> dict[str, Any]:
    """Return what of the process belongs to the program, and no kernel may change."""
    facts: dict[str, Any] = {f"variable {name}": value for name, value in os.environ.items()}
    facts |= {f"filter {f}": True for f in warnings.filters}
    facts |= {f"path {p}": True for p in sys.path}
    facts |= {f"signal {s}": signal.getsignal(s) for s in signal.valid_signals()}
    facts |= {
        "threads of torch": torch.get_num_threads(),
        "threads of torch between operators": torch.get_num_interop_threads(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "precision": (
            torch.get_float32_matmul_precision(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.enabled,
            torch.backends.mkldnn.enabled,
        ),
        "random numbers of torch": hash(torch.get_rng_state().numpy().tobytes()),
        "random numbers of NumPy": hash(np.random.get_state()[1].tobytes() + bytes(np.random.get_state()[2])),
        "random numbers of Python": hash(random.getstate()),
        "denormals": float(torch.tensor([1e-40]) * 1.0),
        "errors of NumPy": str(np.geterr()),
        "decimal": str(decimal.getcontext()),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "logging": (logging.root.level, *logging.root.handlers),
        "showwarning": warnings.showwarning,
        "folder": Path.cwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "collector": (gc.isenabled(), gc.get_threshold()),
    }
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.current_device()
        facts["random numbers of CUDA"] = hash(torch.cuda.get_rng_state().numpy().tobytes())
    return facts


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what changed, as text."""
    return [
        f"{name}: {before.get(name)} -> {after.get(name)}"
        for name in sorted(before | after)
        if before.get(name) != after.get(name)
    ]


if __name__ == "__main__":
    backend, device = sys.argv[1], sys.argv[2]
    torch.set_num_threads(1)
    np.random.seed(0)
    x = torch.randn(4, 8, 64, 64, device=device)  # enough for a parallel kernel
    start = state()
    operator = nxcore.op("add", backend=backend)
    operator(x, x)
    operator(x, x[:1])
    print(json.dumps(differences(start, state())))
