"""Build backend: setuptools', with the torch of the environment that pip installs into.

A library fits one minor version of torch. pip builds in an environment of its own, and would put the newest
torch there, whose library is of no use beside an older one. So torch is asked for only where there is none.
"""

from __future__ import annotations

import site
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools.build_meta import *  # noqa: F403  a backend is a module with these names

for folder in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
    if folder not in sys.path and Path(folder).is_dir():
        site.addsitedir(folder)  # behind the packages of the build


def _required(config_settings: Any = None) -> list[str]:  # noqa: ARG001  the hooks' signature
    """Return what a build needs, without a run of ``setup.py``, which imports torch."""
    return ["ninja", *([] if find_spec("torch") else ["torch>=2.10"])]


get_requires_for_build_wheel = get_requires_for_build_editable = get_requires_for_build_sdist = _required
