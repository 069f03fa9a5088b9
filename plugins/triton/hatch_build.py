"""Build hook of the wheel: adds what Triton makes of the kernels that won in the shipped records.

If torch, Triton or nxcore is missing, the build reports it and the wheel holds none: Triton then compiles at
first use. An editable install has none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).parent / "src"
SWITCH, OTHERS = "NXCORE_TRITON_BUILD", "NXCORE_TRITON_OTHERS"


class CustomBuildHook(BuildHookInterface):
    """Adds the binaries to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile with the installed Triton, and with others in the folders that ``OTHERS`` names."""
        self.folder: str | None = None
        switch = os.environ.get(SWITCH, "")
        if self.target_name != "wheel" or version == "editable" or switch == "0":
            return
        self.folder = tempfile.mkdtemp(prefix="nxcore-triton-")
        made = Path(self.folder) / "binaries"
        for other in ("", *filter(None, os.environ.get(OTHERS, "").split(os.pathsep))):
            if problem := self._binaries(made, other):
                if switch == "1":
                    raise RuntimeError(f"{SWITCH}=1 and the wheel would lack binaries: {problem}")
                self.app.display_warning(f"nxcore-triton: the wheel lacks binaries: {problem}")
        if made.exists():
            build_data["force_include"][str(made)] = "nxcore_triton/binaries"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  hatch's signature
        """Remove what is in the wheel now."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _binaries(self, folder: Path, other: str) -> str:
        """Compile in another process. Returns what kept it from that, or nothing."""
        path = os.pathsep.join(filter(None, (other, str(SOURCES), os.environ.get("PYTHONPATH"))))
        environment = {n: v for n, v in os.environ.items() if not n.startswith("TRITON_")}
        command = [sys.executable, "-m", "nxcore_triton.release", str(folder)]
        done = subprocess.run(
            command, env=environment | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return done.stderr.strip()[-2000:]
        self.app.display_info(f"nxcore-triton: {done.stdout.strip()}")
        return ""
