"""The command line: a command returns data, ``render`` and tables print it. May import nas and below.

A command imports its heavy modules when it runs, so that ``nxcore --help`` starts at once.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

import typer

from nxcore import __version__
from nxcore.cli import bench, explain, interruption, machine, operators, referee, search, tune


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph: the terminal wraps them."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


app = typer.Typer(
    name="nxcore",
    help="Compute kernels for torch tensors, verified and measured on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    bench.demo,
    operators.ops,
    machine.backends,
    machine.doctor,
    explain.explain,
    operators.verify,
    referee.audit,
    tune.tune,
    bench.report,
    bench.bench,
    search.search,
):
    app.command(help=_unwrapped(command.__doc__ or ""))(command)
app.add_typer(tune.wisdom, name="wisdom")
app.add_typer(machine.quarantine, name="quarantine")
app.add_typer(machine.cache, name="cache")


_warn = warnings.showwarning


def _version(wanted: bool) -> None:
    if wanted:
        from nxcore.cli import render

        render.line(f"nxcore {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Define the options that belong to no command."""


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print nxcore's own warnings as one line: their place in the code says nothing to a user."""
    if category.__module__.partition(".")[0] == "nxcore":
        from nxcore.cli import render

        render.warning(str(message))
    else:
        _warn(message, category, filename, lineno, file, line)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line, or ``words``; exit with 0, 1 (a check failed), 2 (usage) or 130 (interrupted)."""
    from nxcore.errors import NxcoreError

    with interruption.noted(), warnings.catch_warnings():
        warnings.showwarning = _warned
        # Torch warns at its import where NumPy is absent. No command needs NumPy; code that does raises.
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        try:
            app(words)
        except NxcoreError as error:
            from nxcore.cli import render

            render.error(str(error))
            sys.exit(2)
        except OSError as error:  # a file or a folder that a command needs
            from nxcore.cli import render

            render.error(f"{type(error).__name__}: {error}")
            sys.exit(2)
        except Exception:
            # An import that was interrupted leaves half a module, and what reads that fails.
            if not interruption.is_lost():
                raise
            sys.exit(interruption.STATUS)
