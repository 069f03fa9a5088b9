"""Build hook of the wheel: adds kernels compiled ahead of time, and the C launcher.

If a compiler is missing, the build reports it and omits that part; the plugin then compiles it at first
use. An editable install has neither.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(__file__).parent / "src" / "nxcore_cuda"
SWITCH = "NXCORE_CUDA_BUILD"
OLDEST_GLIBC = 17
"""manylinux2014: the oldest minor version of glibc 2 that supported Pythons are built for."""
DT_RELR = 36
"""The first minor version of glibc 2 that loads packed relocations."""


def platform_tag(library: Path) -> str:
    """Return the platform tag of a wheel that holds a shared library linked to libc alone.

    Parameters
    ----------
    library : Path
        The library. The versions of the symbols that it imports are strings in it, such as ``GLIBC_2.14``.

    Returns
    -------
    str
        By PEP 600 the oldest glibc that has all of these symbols, ``manylinux_2_17`` or later, and the
        machine; ``linux`` and the machine where the library needs no glibc, which package indexes refuse.
    """
    content = library.read_bytes()
    needed = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)[.\d]*(?=\0)", content)]
    if b"\0GLIBC_ABI_DT_RELR\0" in content:
        needed.append(DT_RELR)
    system, _, machine = sysconfig.get_platform().replace(".", "_").partition("-")
    if needed:
        system = f"manylinux_2_{max(OLDEST_GLIBC, *needed)}"
    return f"{system}_{machine.replace('-', '_')}"


class CustomBuildHook(BuildHookInterface):
    """Adds the compiled parts to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what can be compiled here."""
        self.folder: str | None = None
        switch = os.environ.get(SWITCH, "")
        if self.target_name != "wheel" or version == "editable" or switch == "0":
            return
        self.folder = tempfile.mkdtemp(prefix="nxcore-cuda-")
        images, launcher = Path(self.folder) / "images", Path(self.folder) / "_launch.abi3.so"
        for what, make, made, inside in (
            ("images", self._images, images, "nxcore_cuda/images"),
            ("launcher", self._launcher, launcher, "nxcore_cuda/_launch.abi3.so"),
        ):
            if problem := make(made):
                if switch == "1":
                    raise RuntimeError(f"{SWITCH}=1 and the wheel would hold no {what}: {problem}")
                self.app.display_warning(f"nxcore-cuda: the wheel holds no {what}: {problem}")
            else:
                build_data["force_include"][str(made)] = inside
        if launcher.exists():
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform_tag(launcher)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  hatch's signature
        """Remove what is in the wheel now."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _images(self, folder: Path) -> str:
        """Compile the kernels in another process. Returns what kept it from that, or nothing."""
        command = [sys.executable, "-m", "nxcore_cuda.machine.ahead", str(folder)]
        if archs := os.environ.get("NXCORE_CUDA_ARCHS"):
            command.append(archs.replace(" ", ","))
        path = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"NXCORE_CUDA_EMULATOR": "1", "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip()[-2000:]
        self.app.display_info(f"nxcore-cuda: {done.stdout.strip()}")
        return ""

    def _launcher(self, made: Path) -> str:
        """Compile the launcher. Returns what kept it from that, or nothing."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        include = Path(sysconfig.get_paths()["include"])
        if not sys.platform.startswith("linux"):
            return f"needs Linux, got {sys.platform}"
        if compiler is None:
            return "no C compiler on PATH"
        if not (include / "Python.h").is_file():
            return f"no Python.h in {include}"
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            return "a free-threaded Python has no stable interface for extensions"
        flags = ["-O2", "-shared", "-fPIC", "-DPy_LIMITED_API=0x030b0000", f"-I{include}"]
        command = [compiler, *flags, "-o", str(made), str(PACKAGE / "machine" / "launcher.c")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr.strip()[-2000:] if done.returncode else ""
