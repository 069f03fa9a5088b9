"""A page's blocks, run in order as its reader would: Python in this process, commands in one shell."""

import builtins
import contextlib
import dis
import io
import os
import re
import runpy
import sys
import textwrap
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.pages.blocks import ROOT, Block, blocks
from tests.pages.shell import Shell, missing

MOST_S = 240
"""What takes more than a minute carries a mark; a machine that is busy takes longer."""


class Fault(Exception):  # noqa: N818  what a page says is at fault
    """A block doesn't do what its page says."""


class Reader:
    """One who does all that a page says, in an empty folder beside a clone of the repository."""

    def __init__(self, folder: Path, *, gpu: bool, most_s: float = MOST_S) -> None:
        self.folder, self.gpu, self.most_s = folder, gpu, most_s
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.shell: Shell | None = None
        self.printed = ""

    def read(self, found: list[Block]) -> None:
        """Follow blocks in their order, and end the shell."""
        try:
            for block in found:
                self.follow(block)
        finally:
            if self.shell:
                self.shell.close()

    def follow(self, block: Block) -> None:
        """Do what one block says, and compare what it shows with what came."""
        if block.language == "text":
            if (
                block.given("printed")
                and (line := missing(block.text.splitlines(), self.printed)) is not None
            ):
                raise Fault(f"{block} shows {line!r}, which wasn't printed in its turn:\n{self.printed}")
        elif block.left_out("", gpu=self.gpu):
            self.printed = ""
        elif included := re.fullmatch(r'--8<-- "(.*)"\n', block.text):
            if not (ROOT / "docs" / included[1]).exists():
                raise Fault(f"{block} includes docs/{included[1]}, which doesn't exist")
        elif block.title and (ROOT / block.title).exists():
            if (ROOT / block.title).read_text(encoding="utf-8") != block.text:
                raise Fault(f"{block} must be {block.title} as it is")
        elif block.title:
            (self.folder / block.title).write_text(block.text, encoding="utf-8")
            runpy.run_path(block.title)
        elif block.language == "python":
            self._run(block)
        elif block.language == "console":
            self._type(block)

    def _run(self, block: Block) -> None:
        """Run a block of Python with the names of those before it."""
        output = io.StringIO()
        # A traceback has the lines of the page.
        code = "\n" * block.line + block.text
        try:
            with contextlib.redirect_stdout(output):
                exec(block.setup, self.names)
                compiled = compile(code, block.page, "exec")
                exec(compiled, self.names)
        except Exception as error:
            raise Fault(f"{block} raised\n{traceback.format_exc()}") from error
        unknown = sorted({*_globals(compiled)} - {*self.names, *vars(builtins)})
        if unknown:
            raise Fault(f"{block}: a function reads {', '.join(unknown)}, which the page doesn't define")
        self.printed = output.getvalue()

    def _type(self, block: Block) -> None:
        """Run the commands of a block, each of which must end with 0 and print what is shown."""
        if self.shell is None:
            self.shell = Shell(self.folder, dict(os.environ))
        if block.setup and (ended := self.shell.run(block.setup))[1]:
            raise Fault(f"{block}: its setup ended with {ended[1]}:\n{ended[0]}")
        self.printed = ""
        for command, shown in block.commands():
            if block.left_out(command, gpu=self.gpu):
                continue
            output, status = self.shell.run(command, self.most_s)
            self.printed += output
            if status:
                raise Fault(f"{block}: {command!r} ended with {status}:\n{output}")
            if (line := missing(shown, output)) is not None:
                raise Fault(f"{block}: {command!r} must print {line!r} in its turn:\n{output}")


def _globals(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that the functions of a block read."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from (i.argval for i in dis.get_instructions(constant) if i.opname == "LOAD_GLOBAL")
            yield from _globals(constant)


def main(page: str, *, gpu: bool) -> None:
    """Follow a page in the current folder, what it installs first; end with status 1 at its first fault."""
    sys.path[:] = filter(None, sys.path)  # what is installed, not the clone
    if torch := sys.modules.get("torch"):  # its process was forked: these variables came too late
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    installed_first = sorted(blocks(page), key=lambda block: "$ pip install" not in block.text)
    try:
        Reader(Path.cwd(), gpu=gpu).read(installed_first)
    except (Fault, AssertionError) as fault:
        print(textwrap.indent(str(fault), "  "), file=sys.stderr)
        sys.exit(1)
