"""A reader's shell, what a page shows of its output, and the environment of a stranger."""

import importlib.util
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

NUMBER = r"\d+(?:\.\d+)*(?:e[+-]?\d+)?"
COUNTED = r"(?! (?:passed|failed|skipped|operators|kernels|outputs)\b)"
FREE = re.compile(rf"(\.\.\.)|(={{3,}})|(?<![\w.])(?<!SKIPPED \[)(?>{NUMBER}){COUNTED}( (?:us|ms|s)\b)?")
"""What may differ from the page: what it leaves out, pytest's rules, times with their units, errors."""
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # 0 is for none
"""A build in this environment, where hatchling is in it, in place of one that pip fetches hatchling for."""
DONE = "exit status of what the page says: "


class Shell:
    """One shell for all commands: a folder that was entered and an environment that was activated stay so."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )

    def run(self, command: str, timeout: float = 600) -> tuple[str, int]:
        """Return what a command printed, and its exit status."""
        stdin, stdout = self.process.stdin, self.process.stdout
        stdin.write(f"{{ {command}\n}} < /dev/null\nprintf '\\n{DONE}%d\\n' $?\n".encode())
        stdin.flush()
        text, ends = b"", time.monotonic() + timeout
        while not (over := re.search(rf"^{DONE}(\d+)\n".encode(), text, re.MULTILINE)):
            left = ends - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                os.killpg(self.process.pid, signal.SIGKILL)
                raise AssertionError(f"{command!r} took more than {timeout:g} s:\n{text.decode()}")
            if not (more := os.read(stdout.fileno(), 1 << 16)):
                raise AssertionError(f"the shell ended in {command!r}:\n{text.decode()}")
            text += more
        return text[: over.start()].decode(), int(over[1])

    def close(self) -> None:
        """End the shell."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=300)


def environment(cache: Path, *first: Path) -> dict[str, str]:
    """Return a stranger's environment: no settings of this suite, nothing that was learnt.

    Programs are looked for in the folders ``first``, then beside this Python.
    """
    ours = ("NXCORE_", "PYTEST_", "TRITON_", "NUMBA_", "VIRTUAL_ENV", "PYTHONPATH")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    built = all(importlib.util.find_spec(name) for name in ("hatchling", "editables"))
    offline = OFFLINE if built else {}
    path = os.pathsep.join(map(str, (*first, Path(sys.executable).parent, os.environ["PATH"])))
    settings = {"NXCORE_CACHE": str(cache), "COLUMNS": "100", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return inherited | offline | settings | {"PATH": path}


def pattern(line: str) -> re.Pattern[str]:
    """Return what a shown line matches; blanks count as one."""
    text, parts, end = " ".join(line.split()), [], 0
    for free in FREE.finditer(text):
        anything, rule, unit = free.groups()
        parts += [re.escape(text[end : free.start()]), ".*" if anything else "=+" if rule else NUMBER]
        parts += [" (?:us|ms|s)"] if unit else []
        end = free.end()
    return re.compile("".join(parts) + re.escape(text[end:]))


def missing(shown: list[str], output: str) -> str | None:
    """Return the first shown line that doesn't come in its turn, None if all do."""
    came = iter(" ".join(line.split()) for line in output.splitlines())
    for line in shown:
        if line != "..." and not any(pattern(line).fullmatch(other) for other in came):
            return line
    return None
