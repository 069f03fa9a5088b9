"""pytest plugin of the kit: its options. pytest loads it in every session, so it imports nothing heavy.

The tests are in ``test_kernels``; their files are read and written by ``declines`` and ``report``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nxcore.registry.registry import Registry
    from nxcore.testing.cell import Cell
    from nxcore.testing.rules import Rule

    Step = tuple[Rule, Cell]
    """A rule, and the cell that it is checked on."""

REGISTRY: pytest.StashKey[Registry] = pytest.StashKey()


class Hooks:
    """Hooks that a conftest may implement."""

    @pytest.hookspec(firstresult=True)
    def pytest_nxcore_registry(self, config: pytest.Config) -> Registry | None:
        """Return the operators and backends to test; by default those installed."""

    @pytest.hookspec(firstresult=True)
    def pytest_nxcore_cases(self, config: pytest.Config, steps: list[Step]) -> dict[str, list[Step]] | None:
        """Return the steps of each test by the test's name; by default each step is a test."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add ``pytest_nxcore_registry``."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; their prefix keeps them apart from the options of other plugins."""
    group = parser.getgroup("nxcore", "nxcore's conformance kit: pytest --pyargs nxcore.testing")
    group.addoption(
        "--nxcore-backend",
        action="append",
        default=[],
        metavar="NAME",
        help="only the kernels of this backend (repeatable); by default all but torch's own",
    )
    group.addoption(
        "--nxcore-require",
        action="append",
        default=[],
        metavar="KERNELS",
        help="fail, not skip, if these kernels (such as triton or numba-cuda) can't run",
    )
    group.addoption(
        "--nxcore-isolated",
        action="store_true",
        help="first check each installed kernel in a process of its own: if one crashes or hangs, it fails "
        "and the run continues; takes twice as long",
    )
    group.addoption(
        "--nxcore-report",
        metavar="PATH",
        help="write the support matrix as JSON: the outcome of each kernel, and its number of samples",
    )
    group.addoption(
        "--nxcore-declines",
        metavar="FILE",
        help="fail on a refusal that is not in this file, and on a call in this file that is not refused",
    )
    group.addoption(
        "--nxcore-write-declines",
        action="store_true",
        help="write the refusals of this run into that file, for review",
    )
    group.addoption(
        "--nxcore-huge",
        action="store_true",
        help="on CUDA, also test the samples of gigabytes, in one dtype",
    )
    parser.addini("nxcore_declines", "the file of --nxcore-declines", type="paths", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Reject unknown backends, and register the gatherer if a file is to be written."""
    if config.option.nxcore_backend:
        from nxcore.errors import BackendUnavailableError

        try:
            for name in config.option.nxcore_backend:
                registry(config).backend(name)
        except BackendUnavailableError as error:  # or an unknown backend, which is a subclass
            raise pytest.UsageError(f"--nxcore-backend={name}: {error}") from None
    if config.option.nxcore_write_declines and not declines_file(config):
        raise pytest.UsageError("--nxcore-write-declines needs --nxcore-declines=FILE")
    if config.option.nxcore_report or config.option.nxcore_write_declines:
        from nxcore.testing.report import Gatherer

        config.pluginmanager.register(Gatherer(config), "nxcore-gatherer")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the option against crashes at the start, because a process that dies can't."""
    if not config.option.nxcore_backend or config.option.nxcore_isolated:
        return None
    return "nxcore: a kernel that crashes ends this run; with --nxcore-isolated the run continues"


@pytest.hookimpl(trylast=True)
def pytest_nxcore_registry(config: pytest.Config) -> Registry:
    """Discover the installed backends; a broken plugin is an error unless backends are selected by name."""
    from nxcore.testing.cell import installed

    return installed(strict=not config.option.nxcore_backend)


@pytest.hookimpl(trylast=True)
def pytest_nxcore_cases(steps: list[Step]) -> dict[str, list[Step]]:
    """Name each test by its rule and cell; one on a sample has one rule, so the cell is its name."""
    return {c.name if c.sample else f"{rule.__name__}-{c.name}": [(rule, c)] for rule, c in steps}


def registry(config: pytest.Config) -> Registry:
    """Return the operators and backends of this session."""
    if REGISTRY not in config.stash:
        config.stash[REGISTRY] = config.hook.pytest_nxcore_registry(config=config)
    return config.stash[REGISTRY]


def declines_file(config: pytest.Config) -> Path | None:
    """Return the file of reviewed refusals, from the option or the configuration."""
    given: str | None = config.option.nxcore_declines
    listed: list[Path] = config.getini("nxcore_declines")
    return Path(config.invocation_params.dir, given) if given else next(iter(listed), None)
