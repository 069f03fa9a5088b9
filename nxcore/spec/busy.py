"""How busy a GPU is, by its driver's management library."""

from __future__ import annotations

import ctypes

import torch

LIBRARY = "libnvidia-ml.so.1"


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def busy(index: int) -> float | None:
    """Return the share of the last second or less in which a GPU ran any kernel, of whatever process.

    Parameters
    ----------
    index : int
        Its number in this process.

    Returns
    -------
    float or None
        None where the driver doesn't say, as for a part of a GPU.
    """
    facts = torch.cuda.get_device_properties(index)
    try:
        place = [int(getattr(facts, f"pci_{name}_id")) for name in ("domain", "bus", "device")]
        library = ctypes.CDLL(LIBRARY)
        if library.nvmlInit_v2():
            return None
        handle, rates = ctypes.c_void_p(), _Rates()
        bus = "{:08x}:{:02x}:{:02x}.0".format(*place).encode()
        if library.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)):
            return None
        failed = library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates))
    except (OSError, AttributeError):
        return None
    return None if failed else rates.gpu / 100
