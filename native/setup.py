"""Build of the extension: one shared library for a minor version of torch, by default the installed one's."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

MINOR = os.environ.get("NXCORE_NATIVE_TORCH") or ".".join(torch.__version__.split(".")[:2])
HEADERS = os.environ.get("NXCORE_NATIVE_HEADERS", "")
"""The headers of that torch; empty for those of the installed one. See ``against.py``."""

SANITIZE = os.environ.get("NXCORE_NATIVE_SANITIZE", "")
"""Sanitizers of the compiler, such as ``address,undefined``; empty for none."""

UNITS = {
    "calls": ("lookup", "module"),
    "programs": ("join", "direct"),
}
"""Files that are compiled as one, on a core each: torch's headers take longer than they do."""

TOOK = Path("build/took.json")
"""Where a build of all files leaves the seconds that it took."""


class Timed(BuildExtension):
    """A build whose time ``benchmarks/test_native.py`` compares with its limit."""

    def build_extensions(self) -> None:
        """Compile and link, and note the clock's seconds and those of the compiler's processes."""
        whole = not any(Path(self.build_temp).rglob("*.o"))
        began, before = time.monotonic(), _processor_s()
        super().build_extensions()
        if whole and not SANITIZE:
            took = {"clock_s": time.monotonic() - began, "processor_s": _processor_s() - before}
            TOOK.write_text(json.dumps(took) + "\n")  # noqa: TID251  nxcore may not be installed


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# A call reads few lines of code and constants: the data of a new shape displace them from the cache.
flags = ["-O2", "-g0", "-Wall", "-fvisibility=hidden", "-fno-plt", "-fno-tree-slp-vectorize"]
link: list[str] = []
if SANITIZE:
    flags = ["-O0", "-g1", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZE}", *flags[2:]]
    link = [f"-fsanitize={SANITIZE}"]

here = Path(__file__).parent
os.chdir(here)
Path("build").mkdir(exist_ok=True)
for unit, names in UNITS.items():
    Path(f"build/{unit}.cpp").write_text("".join(f'#include "../csrc/{name}.cpp"\n' for name in names))
library = CppExtension(
    f"nxcore_native._torch{MINOR.replace('.', '_')}",
    [f"build/{unit}.cpp" for unit in UNITS],
    extra_compile_args=flags,
    extra_link_args=link,
)
if HEADERS:
    library.include_dirs = [HEADERS, f"{HEADERS}/torch/csrc/api/include"]
setup(ext_modules=[library], cmdclass={"build_ext": Timed})
