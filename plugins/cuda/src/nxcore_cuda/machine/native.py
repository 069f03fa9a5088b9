"""The handles that launch on a GPU: from ``launcher.c`` where it is built or can be, else through ctypes."""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import shutil
import struct
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch

from nxcore.plugin import compiled_file
from nxcore_cuda.machine import load, toolkit
from nxcore_cuda.machine.compile import CompileError, digest, kept
from nxcore_cuda.machine.handle import CtypesHandle
from nxcore_cuda.machine.handle import Guarded as PlainGuarded
from nxcore_cuda.machine.instance import Instance

SOURCE = Path(__file__).with_name("launcher.c")
FLAGS = ("-O2", "-shared", "-fPIC", "-DPy_LIMITED_API=0x030b0000")  # the oldest Python that nxcore takes
FUNCTIONS = (
    "cuLaunchKernel",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuGetErrorName",
)


def why_not_built() -> str:
    """Say what is missing to build the launcher here; nothing is if the answer is empty."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        return "no C compiler on PATH"
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").is_file():
        return f"no Python.h in {include}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no stable interface for extensions"
    return ""


def _compiler() -> str:
    return str(shutil.which("cc") or shutil.which("gcc"))


def place() -> Path:
    """Return the name under which the cache has the compiled launcher."""
    key = digest(SOURCE.read_text(), *FLAGS, toolkit.version(_compiler()), sys.version)
    return toolkit.cache_folder() / "launcher" / key / "_launch.abi3.so"


def build() -> Path:
    """Return the compiled launcher, made where the cache has none."""
    command = [_compiler(), *FLAGS, f"-I{sysconfig.get_paths()['include']}"]
    return kept(place(), "launcher.c", command, SOURCE.read_text(), ".c", "the launcher")


def imported(path: Path) -> Any:
    """Import a compiled launcher."""
    loader = importlib.machinery.ExtensionFileLoader("nxcore_cuda._launch", str(path))
    spec = importlib.util.spec_from_file_location("nxcore_cuda._launch", str(path), loader=loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def extension() -> tuple[Any, str]:
    """Return the launcher's module, or None, and where it comes from, or why there is none."""
    try:
        return importlib.import_module("nxcore_cuda._launch"), "C, from the wheel"
    except ImportError:
        pass  # an editable install, or a wheel built without a compiler
    if reason := why_not_built():
        return None, f"ctypes: {reason}"
    if not (toolkit.JIT or compiled_file(place())):
        return None, "ctypes: NXCORE_NO_JIT is set, and the launcher isn't built"
    try:
        return imported(build()), "C, built here"
    except (CompileError, ImportError, OSError) as error:
        return None, f"ctypes: {error}"


def raw_stream() -> Any:
    """Return torch's function from a device's index to its current stream."""
    return torch._C._cuda_getCurrentRawStream  # noqa: SLF001  as Triton and torch's own compiler do


built, launcher = extension()
"""The C launcher's module, or None, and in words what launches here."""

Handle: Any = CtypesHandle if built is None else built.Handle
Guarded: Any = PlainGuarded if built is None else built.Guarded
_ready = False


def _set_up() -> None:
    """Give the handles the driver's functions: at the first launch's plan, when they are needed."""
    global _ready  # noqa: PLW0603  the driver is loaded once per process
    library = load.driver()
    if built is not None:
        found = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in FUNCTIONS)
        built.setup(*found, raw_stream())
    CtypesHandle.driver = library
    CtypesHandle.raw_stream = staticmethod(raw_stream())
    CtypesHandle.several = torch.cuda.device_count() > 1
    _ready = True


def prepare(
    instance: Instance,
    device: torch.device,
    shape: tuple[int, ...],
    shared: int,
    pointers: int,
    layout: str,
    values: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Return what a handle is made of: the kernel is compiled and loaded now."""
    if not _ready:
        _set_up()
    index = torch.cuda.current_device() if device.index is None else device.index
    tail = struct.Struct(f"@{layout}0q")  # the pointers before it end at a multiple of 8
    function = load.kernel(instance, index, shared, 8 * pointers + tail.size)
    bound = tail.pack(*values)
    return function, load.context(index), index, shape, shared, pointers, bound, tail.pack, instance.symbol
