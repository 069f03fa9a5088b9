"""From a translation unit to an image: shipped in the wheel, kept from another time, or compiled now."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nxcore.plugin import compiled_file, compiled_folder, compiling, keep_compiled
from nxcore_cuda.machine import toolkit
from nxcore_cuda.machine.instance import Instance

SOURCES = Path(__file__).parents[1]
EMULATOR = SOURCES / "emulator"
IMAGES = SOURCES / "images"
NVCC_FLAGS = ("-O3", "-std=c++17")
# A kernel is emulated on small samples: an optimizer takes longer than it saves.
HOST_FLAGS = ("-O0", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", "-fvisibility=hidden", "-w")
LAST_LINES = 30


class CompileError(RuntimeError):
    """A compiler failed; the message ends with the last lines that it printed."""


def run(command: Sequence[str | Path], what: str) -> None:
    """Run a compiler.

    Parameters
    ----------
    what : str
        What it compiles, for the message where it fails.
    """
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
        raise CompileError(
            f"{what}: {' '.join(map(str, command))}\nended with status {done.returncode}:\n{lines}"
        )


def included(text: str, folder: Path = SOURCES) -> dict[str, bytes]:
    """Return every file of ``folder`` or of this plugin that a text includes, directly or not, by name."""
    found: dict[str, bytes] = {}
    waiting = re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE)
    while waiting:
        name = waiting.pop()
        path = next((p for f in (folder, SOURCES, EMULATOR) if (p := f / name).is_file()), None)
        if name not in found and path:
            found[name] = path.read_bytes()
            waiting += re.findall(r'^\s*#\s*include\s+"([^"]+)"', found[name].decode(), re.MULTILINE)
    return dict(sorted(found.items()))


def digest(*parts: str | bytes) -> str:
    """Return one name for all parts."""
    total = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        total.update(f"{len(content)}:".encode())
        total.update(content)
    return total.hexdigest()[:32]


def sources_digest(text: str, folder: Path = SOURCES) -> str:
    """Return one name for a text and all that it includes."""
    files = included(text, folder)
    return digest(text, *(part for name, content in files.items() for part in (name, content)))


def kept(
    path: Path, make: str, command: Sequence[str | Path], text: str, suffix: str, announced: str = ""
) -> Path:
    """Return a file of the cache, to be loaded now; made by a compiler where it isn't there.

    The compiler writes into a folder of its own, so no process reads an incomplete file. If two processes
    make the same file, the last one's counts.

    Parameters
    ----------
    path : Path
        The name that it is kept under.
    make : str
        What it is, for messages.
    command : sequence of str or Path
        The compiler's, without its input and output.
    text : str
        The input.
    suffix : str
        Of the input's file.
    announced : str
        What is announced as compiled, if it is.
    """
    if (found := compiled_file(path)) is not None:
        return found
    if announced:
        compiling(announced)
    try:
        with tempfile.TemporaryDirectory(dir=compiled_folder(path.parent), prefix="making-") as folder:
            source, made = Path(folder) / f"unit{suffix}", Path(folder) / path.name
            source.write_text(text)
            run([*command, "-o", made, source], make)
            content = made.read_bytes()
    except OSError as error:
        raise CompileError(f"{make}: {error}; NXCORE_CUDA_CACHE may name another folder") from error
    return keep_compiled(path, content)


def headers(compiler: str) -> Path:
    """Return a folder with the emulator's headers as g++ read them once: it reads them for every kernel.

    A compiler that can't use what is there reads the headers themselves, which come next on its path.
    """
    text = '#include "emulator.h"\n'
    command = [compiler, *HOST_FLAGS, "-x", "c++-header", f"-I{EMULATOR}"]
    key = digest(sources_digest(text), *HOST_FLAGS, toolkit.version(compiler))
    path = toolkit.cache_folder() / "emulator" / f"headers-{key}.gch"
    return Path(_named_for_include(kept(path, "the emulator's headers", command, text, ".h")).name)


@functools.cache
def _named_for_include(headers: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder of this process that has what a compiler read under the name that it looks for."""
    folder = tempfile.TemporaryDirectory(dir=headers.parent, prefix="read-")
    Path(folder.name, "emulator.h.gch").symlink_to(headers)
    return folder


def emulated(instance: Instance, folder: Path = SOURCES) -> Path:
    """Return the shared library that runs an instance on the CPU."""
    compiler = toolkit.host_compiler()
    if compiler is None:
        raise CompileError("the emulator needs a C++ compiler, and neither g++ nor c++ is on PATH")
    text = f'#include "emulator.h"\n{instance.text}NXCORE_EMULATED({instance.symbol}, {instance.args})\n'
    key = digest(sources_digest(text, folder), *HOST_FLAGS, toolkit.version(compiler))
    path = toolkit.cache_folder() / "emulator" / f"{instance.entry}-{key}.so"
    if (found := compiled_file(path)) is not None:
        return found
    compiling(instance.symbol)
    places = (folder, SOURCES, headers(compiler), EMULATOR)
    command = [compiler, *HOST_FLAGS, "-x", "c++", *(f"-I{place}" for place in places)]
    return kept(path, instance.symbol, command, text, ".cpp")


def compiled(text: str, capability: tuple[int, int], what: str, folder: Path = SOURCES) -> bytes:
    """Return what nvcc makes of a text for a device: a cubin, or PTX where nvcc is older than the device."""
    compiler = toolkit.nvcc()
    if compiler is None:
        raise CompileError(f"{what}: no image of it is in the wheel, and no nvcc is {toolkit.PLACES}")
    arch, kind = toolkit.target(compiler, capability)
    command = [compiler, f"-{kind}", f"-arch={arch}", *NVCC_FLAGS, f"-I{folder}", f"-I{SOURCES}"]
    key = digest(sources_digest(text, folder), arch, *NVCC_FLAGS, toolkit.version(compiler))
    path = toolkit.cache_folder() / arch / f"{what}-{key}.{kind}"
    return kept(path, what, command, text, ".cu", what).read_bytes()


@functools.cache
def shipped() -> dict[str, dict[str, list[str]]]:
    """Return what the wheel holds: for each image its parts' architectures and its kernels' symbols.

    An image whose sources are others than those beside it is left out.
    """
    index = IMAGES / "index.json"
    found = json.loads(index.read_text()) if index.is_file() else {}
    return {
        name: {"archs": image["archs"], "symbols": image["symbols"]}
        for name, image in found.items()
        if image["digest"] == sources_digest(f'#include "{image["source"]}.cu"\n')
    }


@functools.cache
def _read(name: str) -> bytes:
    return (IMAGES / name).read_bytes()


def shipped_image(instance: Instance, capability: tuple[int, int]) -> bytes | None:
    """Return the wheel's image that holds an instance and runs on a device, if there is one."""
    for name, image in shipped().items():
        if instance.symbol in image["symbols"] and toolkit.runs_on(image["archs"], capability):
            return _read(name)
    return None


def image(instance: Instance, capability: tuple[int, int]) -> bytes:
    """Return the image of an instance for a device: the wheel's, else the cache's, else made now."""
    return shipped_image(instance, capability) or compiled(instance.text, capability, instance.symbol)
