"""From a translation unit to a file that CuPy loads: kept from another time, or compiled now by NVRTC.

CuPy compiles the code of a RawModule too, but always with ``-ftz=true``, which takes numbers below 1e-38
for 0 as torch doesn't, and it keeps the result under a name that doesn't change with an included file.
"""

from __future__ import annotations

from pathlib import Path

from cupy.cuda import nvrtc
from nxcore_cuda.machine import toolkit
from nxcore_cuda.machine.compile import LAST_LINES, SOURCES, CompileError, digest, included, sources_digest

from nxcore.plugin import compiled_file, compiling, keep_compiled

OPTIONS = ("-std=c++17", "-default-device")  # the latter: a helper may lack __device__, as nvcc allows


def target(capability: tuple[int, int]) -> tuple[str, str]:
    """Return NVRTC's architecture for a device, and the kind of file: PTX where NVRTC is the older.

    Parameters
    ----------
    capability : tuple of int
        Of the device, (9, 0) for one.
    """
    wanted, known = int(toolkit.name(capability)), nvrtc.getSupportedArchs()
    usable = [arch for arch in known if arch <= wanted]
    if not usable:
        release = ".".join(map(str, nvrtc.getVersion()))
        raise CompileError(f"NVRTC {release} compiles for {min(known)} and later, the device has {wanted}")
    return (f"sm_{wanted}", "cubin") if wanted in usable else (f"compute_{max(usable)}", "ptx")


def compiled(text: str, capability: tuple[int, int], what: str, folder: Path = SOURCES) -> Path:
    """Return the file that holds what NVRTC makes of a text for a device.

    Parameters
    ----------
    text : str
        A translation unit.
    capability : tuple of int
        Of the device.
    what : str
        Its name, for the file and for messages.
    folder : Path
        Where the files that it includes lie.
    """
    arch, kind = target(capability)
    release = ".".join(map(str, nvrtc.getVersion()))
    key = digest(sources_digest(text, folder), arch, release, *OPTIONS)
    path = toolkit.cache_folder() / "nvrtc" / arch / f"{what}-{key}.{kind}"
    if (found := compiled_file(path)) is not None:
        return found
    compiling(what)
    return keep_compiled(path, _compile(text, (*OPTIONS, f"-arch={arch}"), kind, what, folder))


def _compile(text: str, options: tuple[str, ...], kind: str, what: str, folder: Path) -> bytes:
    headers = included(text, folder)
    names = [name.encode() for name in headers]
    # Named unlike any source: a unit that seems to include itself is refused.
    program = nvrtc.createProgram(text, what, list(headers.values()), names)
    try:
        nvrtc.compileProgram(program, options)
        return bytes(nvrtc.getCUBIN(program) if kind == "cubin" else nvrtc.getPTX(program))
    except nvrtc.NVRTCError as error:
        log = "\n".join(nvrtc.getProgramLog(program).splitlines()[-LAST_LINES:])
        raise CompileError(f"{what}: NVRTC with {' '.join(options)} returned {error}:\n{log}") from error
    finally:
        nvrtc.destroyProgram(program)
