"""Processes of Python that have imported torch and nothing else of ours, as a test would start them.

One process imports torch, which takes seconds, and forks for each that is asked for. A process that must
read options of Python, or variables that Python or torch read while they are loaded, isn't for here.
"""

import atexit
import functools
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SERVER = "import sys, torch\nfrom tests.fresh import become, serve\nbecome(serve())"


def run(
    *words: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    check: bool = False,
    timeout: float = 300,
    python: Path | str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run Python with ``-c CODE``, ``-m MODULE`` or a file, and what follows; as ``subprocess.run`` does.

    What the process prints is returned. ``python`` is the interpreter, if it isn't this one.
    """
    server = _server(python)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        order = {
            "words": [str(word) for word in words],
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "pipes": [f"/proc/{os.getpid()}/fd/{stream.fileno()}" for stream in (out, err)],
        }
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        if not select.select([server.stdout], [], [], timeout)[0]:
            os.kill(child, signal.SIGKILL)
            server.stdout.readline()
            raise subprocess.TimeoutExpired([*words], timeout)
        status = int(server.stdout.readline())
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess([*words], status, out.read(), err.read())
    if check:
        done.check_returncode()
    return done


def pytested(*options: str | Path, cwd: Path) -> pytest.RunResult:
    """Run pytest in a folder, as pytester's ``runpytest_subprocess`` does."""
    began = time.perf_counter()
    done = run("-m", "pytest", f"--basetemp={cwd / 'basetemp'}", *options, cwd=cwd)
    lines = (stream.splitlines() for stream in (done.stdout, done.stderr))
    return pytest.RunResult(done.returncode, *lines, time.perf_counter() - began)


@functools.cache
def _server(python: Path | str) -> Any:
    server = subprocess.Popen(
        [python, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    server.stdin.close()
    server.stdout.close()
    server.wait()


def serve() -> dict[str, Any]:
    """Fork for each order; return it in the child. Without a further order this process ends."""
    gc.freeze()  # a search for garbage would copy every page
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return json.loads(line)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def become(order: dict[str, Any]) -> None:
    """Go on as if Python had been started with the order's words, and end without tearing everything down."""
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, path in enumerate(order["pipes"], start=1):
        os.dup2(os.open(path, os.O_WRONLY), stream)
    paths = order["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in paths if path and path not in sys.path]
    status = 1
    try:
        _execute(*order["words"])
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  whatever it is, Python prints it and ends
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _execute(kind: str, *rest: str) -> None:
    if kind not in ("-c", "-m"):
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")
        return
    sys.argv = [kind, *rest[1:]]
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"].__dict__
    exec(compile(rest[0], "<string>", "exec"), main)  # in the module that Python runs: pickle looks there
