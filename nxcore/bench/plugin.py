"""pytest plugin: races every kernel on every real workload, and reports the times to pytest-benchmark.

pytest loads it in every session, so it imports nothing heavy. A test that uses the fixture ``nxcore_bench``
becomes one test for each kernel and cell. The first test of a cell races all; each reports its own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import pytest

if TYPE_CHECKING:
    from nxcore.bench.cells import Cell
    from nxcore.bench.engine import Bench
    from nxcore.bench.entrants import Guest
    from nxcore.bench.row import Row

FIXTURE, LANE, MARKER = "nxcore_bench", "nxcore_lane", "nxcore_bench"

Raced = tuple[Any, dict[str, "Row"]]

BENCH: pytest.StashKey[Bench] = pytest.StashKey()
RACED: pytest.StashKey[Raced] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("nxcore-bench", "nxcore's benchmarks: tests with the fixture nxcore_bench")
    more: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME"}
    group.addoption("--nxcore-bench-backend", help="only this backend, and torch (repeatable)", **more)
    group.addoption("--nxcore-bench-dtype", help="only this element type (repeatable)", **more)
    group.addoption(
        "--nxcore-bench-size",
        help="only workloads with this word in the name, or this tag (repeatable)",
        **more,
    )
    group.addoption("--nxcore-bench-peer", help="also inductor or jax (repeatable)", **more)
    group.addoption("--nxcore-bench-device", metavar="NAME", help="cpu or cuda; by default cuda if available")
    group.addoption("--nxcore-bench-fast", action="store_true", help="only float32, fewer blocks")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(*operators, guests=()): the operators of a benchmark, and fixtures whose values are "
        "further kernels, called with all arguments positional; a mapping gives the dtypes of each",
    )


def bench(config: pytest.Config) -> Bench:
    """Return the bench of this session, created at first use."""
    if BENCH not in config.stash:
        from nxcore.bench.engine import FAST, FULL, Bench
        from nxcore.registry.discovery import discover
        from nxcore.session import Session
        from nxcore.settings import Settings
        from nxcore.spec.device import available

        option, settings = config.option, Settings.from_environment()
        hook = getattr(
            config.hook, "pytest_nxcore_registry", None
        )  # defined if the conformance kit is loaded
        found = hook(config=config) if hook else None
        registry = found or discover(
            allow=settings.backends, disable=settings.disable, strict=settings.strict
        )
        config.stash[BENCH] = Bench(
            Session(settings, registry),
            available(option.nxcore_bench_device),
            FAST if option.nxcore_bench_fast else FULL,
            option.nxcore_bench_backend,
            option.nxcore_bench_peer,
        )
    return config.stash[BENCH]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create one test for each kernel and cell, grouped by cell."""
    if FIXTURE not in metafunc.fixturenames:
        return
    from nxcore.bench.cells import Wanted, cells
    from nxcore.errors import NxcoreError

    config = metafunc.config
    marker = metafunc.definition.get_closest_marker(MARKER)
    option = config.option
    dtypes = option.nxcore_bench_dtype or (["float32"] if option.nxcore_bench_fast else [])
    ops = marker.args if marker else ()
    try:
        measuring = bench(config)
        wanted = Wanted(ops=ops, sizes=tuple(option.nxcore_bench_size), dtypes=tuple(dtypes))
        selected = cells(measuring.session.registry, measuring.device, wanted)
    except NxcoreError as error:
        raise pytest.UsageError(str(error)) from None
    asked = _asked(marker)
    _require_dtypes(asked, selected)
    lanes = [Lane(cell, label) for cell in selected for label in _labels(measuring, cell, asked)]
    metafunc.parametrize(LANE, lanes, ids=lanes)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark these tests as benchmarks for ``--benchmark-only``; they also run without that plugin."""
    if not config.pluginmanager.hasplugin("pytest-benchmark"):
        return
    for item in items:
        names: list[str] = getattr(item, "fixturenames", [])
        if FIXTURE in names and "benchmark" not in names:
            names.append("benchmark")


class Lane(str):
    """A cell and a kernel's label, as the text that names the test: pytest-benchmark writes it as JSON."""

    cell: Cell
    label: str

    def __new__(cls, cell: Cell, label: str) -> Self:
        """Return the lane, named by operator, sample, dtype and label."""
        lane = super().__new__(cls, "-".join((*cell.key, label.replace(" ", "_"))))
        lane.cell, lane.label = cell, label
        return lane


def _asked(marker: pytest.Mark | None) -> dict[str, tuple[str, ...] | None]:
    """Return guest -> its dtypes, None for all, of ``guests=("mine",)`` or ``{"mine": ["float32"]}``."""
    guests = marker.kwargs.get("guests", ()) if marker else ()
    if not isinstance(guests, Mapping):
        return dict.fromkeys(guests)
    return {name: None if dtypes is None else tuple(map(str, dtypes)) for name, dtypes in guests.items()}


def _require_dtypes(asked: Mapping[str, tuple[str, ...] | None], selected: Sequence[Cell]) -> None:
    """Raise if a guest's dtype is no operator's: it would never be raced."""
    known = {str(dtype).removeprefix("torch.") for cell in selected for dtype in cell.spec.dtypes}
    for name, dtypes in asked.items():
        for dtype in dtypes or ():
            if dtype not in known:
                raise pytest.UsageError(
                    f"guests must name dtypes of the operators, {', '.join(sorted(known))}, "
                    f"got {dtype!r} for {name!r}"
                )


def _labels(measuring: Bench, cell: Cell, asked: Mapping[str, tuple[str, ...] | None]) -> list[str]:
    from nxcore.choose.contenders import AGAIN

    native = [n for n in measuring.labels(cell) if n.startswith("torch")]
    guests = [name for name, dtypes in asked.items() if dtypes is None or cell.type in dtypes]
    return [*native, AGAIN, *(n for n in measuring.labels(cell) if n not in native), *guests]


@pytest.fixture
def nxcore_lane(request: pytest.FixtureRequest) -> Any:
    """Return the cell and the kernel's label, from the parametrization."""
    return request.param


@pytest.fixture
def nxcore_bench(request: pytest.FixtureRequest, nxcore_lane: Any) -> Callable[[], Row]:
    """Return a function that checks this test's kernel, reports its times and returns its row.

    Without pytest-benchmark, with ``--benchmark-disable`` and in xdist's processes, only the result is
    checked. The test is skipped with the reason if the kernel declines. It fails if the kernel is wrong, or
    faster than the device can be.
    """
    cell, label = nxcore_lane.cell, nxcore_lane.label
    config = request.config
    fixture = request.getfixturevalue("benchmark") if "benchmark" in request.fixturenames else None
    if fixture is not None:
        fixture._mode = FIXTURE  # noqa: SLF001  avoids a warning that the fixture is unused; it can't report times itself
        fixture.group, fixture.name = str(cell), label

    def replay() -> Row:
        from nxcore.bench.row import BAD
        from nxcore.choose.contenders import AGAIN
        from nxcore.measure.timing import duration

        guests = _guests(request, cell)
        if fixture is None or not fixture.enabled:
            name = "torch" if label == AGAIN else label
            row = bench(config).check(cell, name, guests)
        else:
            row = _raced(request, cell, guests)[label]
        if row.verdict == "DECLINED":
            pytest.skip(f"declined: {row.reason}")
        if fixture is not None and row.device_us is not None:
            _replay(fixture, row, bench(config).head)
        if row.verdict in BAD:
            came = (
                row.reason
                or f"{duration(row.device_us or 0.0)}, below the floor of {duration(row.floor_us or 0.0)}"
            )
            pytest.fail(f"{row.verdict}: {came}", pytrace=False)
        return row

    return replay


def _guests(request: pytest.FixtureRequest, cell: Cell) -> list[Guest]:
    from nxcore.bench.entrants import Guest

    asked = _asked(request.node.get_closest_marker(MARKER))
    names = [name for name, dtypes in asked.items() if dtypes is None or cell.type in dtypes]
    return [Guest(name, request.getfixturevalue(name)) for name in names]


def _raced(request: pytest.FixtureRequest, cell: Cell, guests: list[Guest]) -> dict[str, Row]:
    """Return the rows of a cell by label. The first of its tests runs the race."""
    stash, function = request.config.stash, request.function
    key = (function, cell.key, str(cell.device))
    if RACED not in stash or stash[RACED][0] != key:
        items = [i for i in request.session.items if getattr(i, "function", None) is function]
        lanes: list[Any] = [i.callspec.params[LANE] for i in items if isinstance(i, pytest.Function)]
        only = {lane.label for lane in lanes if lane.cell.key == cell.key}
        rows = bench(request.config).measure(cell, guests, only)
        found = {row.label: row for row in rows}
        # If the whole cell couldn't be measured, there is one row for all.
        stash[RACED] = key, {label: found.get(label, rows[0]) for label in only}
    return stash[RACED][1]


def _replay(fixture: Any, row: Row, head: dict[str, Any]) -> None:
    """Report the blocks of a race to pytest-benchmark, in seconds."""
    info = row.to_dict()
    for name in ("record", "device_blocks_us", "host_blocks_us"):
        info.pop(name, None)
    info |= {"versions": head["versions"], "clocks": row.clocks or head["clocks"]}
    fixture.extra_info.update(info)
    stats = fixture._make_stats(1)  # noqa: SLF001  there is no public way to pass times
    for us in row.call_blocks_us:
        stats.update(us * 1e-6)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add the head of a record to pytest-benchmark's machine info."""
    if RACED in config.stash:
        head = bench(config).head
        machine_info["nxcore"] = {k: head[k] for k in ("device", "ceilings", "method", "fingerprint")}
