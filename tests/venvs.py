"""A stranger's virtual environment, without the minutes that pip takes to unpack torch."""

from __future__ import annotations

import sysconfig
from pathlib import Path


def furnish(venv: Path) -> None:
    """Put into ``venv`` what pip would fetch: this environment's packages, but for nxcore and its plugins."""
    packages = next(venv.glob("lib/python*/site-packages"))
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "nxcore" not in package.name and not (packages / package.name).exists():
            (packages / package.name).symlink_to(package)
