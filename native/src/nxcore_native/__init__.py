"""The compiled call path of nxcore, one shared library for each minor version of torch.

Importing this module loads no library: a library only fits the torch that it was built against.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

PREFIX = "_torch"


def built() -> list[str]:
    """Return the minor versions of torch that libraries are here for, such as ``"2.13"``."""
    found = {path.name.split(".")[0] for path in Path(__file__).parent.glob(f"{PREFIX}*.so")}
    return sorted(name.removeprefix(PREFIX).replace("_", ".") for name in found)


def extension() -> Any:
    """Return the library for the installed torch, as a module.

    Raises
    ------
    ImportError
        If there is none, or it can't be loaded.
    """
    minor = ".".join(str(torch.__version__).split(".")[:2])
    if minor not in (there := built()):
        raise ImportError(f"built for torch {', '.join(there) or 'none'}, found torch {torch.__version__}")
    return importlib.import_module(f"{__name__}.{PREFIX}{minor.replace('.', '_')}")
