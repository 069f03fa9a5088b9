"""pytest's side of the kit: its options, loaded in every session of pytest, so nothing heavy is imported.

The tests are in ``test_kernels``; what they read and write is in ``declines`` and ``report``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nxcore.registry.registry import Registry

REGISTRY: pytest.StashKey[Registry] = pytest.StashKey()


class Hooks:
    """What a conftest may replace."""

    @pytest.hookspec(firstresult=True)
    def pytest_nxcore_registry(self, config: pytest.Config) -> Registry | None:
        """Return the operators and backends to test; by default, what is installed."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add ``pytest_nxcore_registry``."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; their names begin with the package's, so that nobody else's test run meets them."""
    group = parser.getgroup("nxcore", "nxcore's conformance kit: pytest --pyargs nxcore.testing")
    group.addoption(
        "--nxcore-backend",
        action="append",
        default=[],
        metavar="NAME",
        help="only the kernels of this backend (repeatable); all but torch's own by default",
    )
    group.addoption(
        "--nxcore-require",
        action="append",
        default=[],
        metavar="KERNELS",
        help="fail, instead of skip, where these kernels (such as triton or numba-cuda) can't run",
    )
    group.addoption(
        "--nxcore-isolated",
        action="store_true",
        help="hold each installed kernel to the rules in a process of its own first: one that crashes or "
        "hangs fails, and the run goes on; takes twice as long",
    )
    group.addoption(
        "--nxcore-report",
        metavar="PATH",
        help="write the support matrix as JSON: which kernel was verified, on how many samples",
    )
    group.addoption(
        "--nxcore-declines",
        metavar="FILE",
        help="fail on a refusal that this file doesn't list, and on what it lists and isn't refused",
    )
    group.addoption(
        "--nxcore-write-declines",
        action="store_true",
        help="write the refusals of this run into that file, to be reviewed",
    )
    group.addoption(
        "--nxcore-huge",
        action="store_true",
        help="on CUDA, also the samples of gigabytes, in one element type",
    )
    parser.addini("nxcore_declines", "the file of --nxcore-declines", type="paths", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Refuse unknown backends, and gather where a file is to be written."""
    if config.option.nxcore_backend:
        from nxcore.errors import BackendUnavailableError

        try:
            for name in config.option.nxcore_backend:
                registry(config).backend(name)
        except BackendUnavailableError as error:  # an unknown one among them
            raise pytest.UsageError(f"--nxcore-backend={name}: {error}") from None
    if config.option.nxcore_write_declines and not declines_file(config):
        raise pytest.UsageError("--nxcore-write-declines needs --nxcore-declines=FILE")
    if config.option.nxcore_report or config.option.nxcore_write_declines:
        from nxcore.testing.report import Gatherer

        config.pluginmanager.register(Gatherer(config), "nxcore-gatherer")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the switch for a kernel that crashes: a process that dies can't."""
    if not config.option.nxcore_backend or config.option.nxcore_isolated:
        return None
    return "nxcore: a kernel that crashes ends this run; --nxcore-isolated tells which one, and goes on"


@pytest.hookimpl(trylast=True)
def pytest_nxcore_registry(config: pytest.Config) -> Registry:
    """Discover what is installed; a broken plugin is an error, unless others were asked for by name."""
    from nxcore.testing.cell import installed

    return installed(strict=not config.option.nxcore_backend)


def registry(config: pytest.Config) -> Registry:
    """Return the operators and backends of this session."""
    if REGISTRY not in config.stash:
        config.stash[REGISTRY] = config.hook.pytest_nxcore_registry(config=config)
    return config.stash[REGISTRY]


def declines_file(config: pytest.Config) -> Path | None:
    """Return the reviewed list of refusals: the option's, or the configuration's."""
    given: str | None = config.option.nxcore_declines
    listed: list[Path] = config.getini("nxcore_declines")
    return Path(config.invocation_params.dir, given) if given else next(iter(listed), None)
