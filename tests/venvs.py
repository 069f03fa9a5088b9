"""A stranger's virtual environment, without the minutes that pip takes to unpack torch."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """import os, runpy
os.environ |= {"NXCORE_CUDA_BUILD": "0", "NXCORE_TRITON_BUILD": "0"} if "pip" in __file__ else {}
"""
"""As in a build in isolation, which has no torch, the hooks compile no kernels."""


def furnish(venv: Path) -> None:
    """Put into ``venv`` what pip would fetch: this environment's packages, but for nxcore and its plugins."""
    packages = next(venv.glob("lib/python*/site-packages"))
    for folder in dict.fromkeys(sys.path):
        if Path(folder).name not in ("site-packages", "dist-packages"):
            continue
        for package in Path(folder).iterdir():
            if "nxcore" not in package.name and not (packages / package.name).exists():
                (packages / package.name).symlink_to(package)


def furnished(venv: Path, *scripts: str) -> Path:
    """Make an environment, furnished, with pip and other ``scripts``; return its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    furnish(venv)
    for name in ("pip", *scripts):
        script = venv / "bin" / name
        script.write_text(f"#!{venv}/bin/python\n{SCRIPT}runpy.run_module({name!r}, run_name='__main__')\n")
        script.chmod(0o755)
    return venv / "bin"
