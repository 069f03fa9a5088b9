"""A record's head: the machine, versions and method of its rows."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import platform
from dataclasses import asdict
from typing import Any

import torch

from nxcore import __version__
from nxcore.errors import FOREIGN
from nxcore.measure.ceilings import ceilings
from nxcore.measure.race import Effort
from nxcore.registry.discovery import CORE
from nxcore.registry.registry import Registry
from nxcore.spec.device import describe
from nxcore.store.encoding import encoded
from nxcore.trust import fingerprint

METHOD = "cold: one rotation of inputs over 5 x last-level cache for all; median of interleaved blocks"


def head(registry: Registry, device: torch.device, effort: Effort, filters: dict[str, Any]) -> dict[str, Any]:
    """Return the head of a record.

    Parameters
    ----------
    registry : Registry
        Gives the versions of the plugins, and the backends that can't run here.
    device : torch.device
    effort : Effort
    filters : dict
        The requested backends and peers, which determine the rows of a cell. Stored in the head.

    Returns
    -------
    dict
        The head. Rows under heads of equal ``fingerprint`` are comparable.
    """
    same = {
        "device": describe(device).to_dict(),
        "versions": versions(registry),
        "cuda": torch.version.cuda,
        "method": METHOD,
        "effort": asdict(effort),
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "driver": fingerprint.device(device.type, device.index).get("driver"),
        },
        "sources": _sources(registry),
    }
    same.update(asked=filters)
    text = encoded(same, sort_keys=True, default=str)
    return {
        "record": "head",
        **same,
        "ceilings": ceilings(device).to_dict(),
        "clocks": clocks(device),
        "absent": {n: s.reason for n, s in registry.statuses().items() if s.status != "ready"},
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def versions(registry: Registry) -> dict[str, str]:
    """Return name -> version of Python, the core, every plugin and their toolkits."""
    found = {"python": platform.python_version()}
    for source in registry.sources.values():
        name, *_ = source.distribution.partition(" ")
        found |= fingerprint.versions(name) if name != CORE.distribution else {}
    for backend in registry.backends.values():
        made_with = backend.toolkit() if backend.toolkit and registry.probe(backend) else {}
        found |= {what: text.partition("\n")[0] for what, text in made_with.items()}
    return dict(sorted(found.items())) | {CORE.distribution: __version__, "torch": str(torch.__version__)}


def _sources(registry: Registry) -> dict[str, str]:
    """Return package -> hash of its source, for every package with kernels."""
    kernels = (k for b in registry.backends.values() for k in b.kernels)
    packages = {"nxcore", *(k.target.partition(":")[0].partition(".")[0] for k in kernels)} - {"torch"}
    return {name: fingerprint.source(name) for name in sorted(packages)}


def clocks(device: torch.device) -> dict[str, Any]:
    """Return the device's clocks in MHz and its throttle reasons, or the reason why they are unknown."""
    if device.type != "cuda":
        return {"unknown": "CPU clocks are not read"}
    try:
        import pynvml

        pynvml.nvmlInit()
        index = torch.cuda.current_device() if device.index is None else device.index
        uuid = torch.cuda.get_device_properties(index).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        return {
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            "celsius": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        }
    except ModuleNotFoundError:
        return {"unknown": "pynvml is not installed (pip install nvidia-ml-py)"}
    except FOREIGN as error:  # NVML raises many types, and a benchmark runs without it
        return {"unknown": f"NVML raised {type(error).__name__}: {error}"}
