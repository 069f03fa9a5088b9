"""For every test of this repository: interpreters where there is no device, and what is left out."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nxcore.testing import plugin
from tests import machine_code, table
from tests.interpreter import keep_bookkeeping
from tests.simulator import take_turns

CUDA = torch.cuda.is_available()

if not CUDA:
    # Each is read when the toolkit is imported, so they are set before any test is collected.
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    os.environ["NXCORE_CUDA_EMULATOR"] = "1"

# What a session learns is this run's alone: neither the user's nor the last run's.
os.environ["NXCORE_CACHE"] = tempfile.mkdtemp(prefix="nxcore-tests-")

# Tables are as wide as in a pipe. Python's readline sets it for child processes, thus for pytest's workers.
os.environ.pop("COLUMNS", None)

# No test starts processes but those that say so.
os.environ["NXCORE_WORKERS"] = "0"

# Compiled kernels outlive it: each takes a second or more.
os.environ.setdefault("NUMBA_CACHE_DIR", str(machine_code.folder(Path(__file__).parent)))

THREADS = torch.get_num_threads()
"""As many as torch took for itself."""

SHARE = max(THREADS // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1)
"""A worker's share of them."""

FIRST = (
    "tests/hostile/test_mutations.py",
    "tests/plugins/test_ending.py",
    "tests/pages/test_pages.py",
    "tests/plugins/test_triton.py::test_every_kernel_compiles",
    "tests/test_demo.py",
    "tests/test_tutorial.py",
    "tests/test_wheels.py",
)
"""What would leave one worker alone at the end."""

MIRRORED = ("amin", "min", "argmin", "all")
"""Operators that run the kernels of amax, max, argmax and any, with elements turned round."""

OF_CUDA = "square_planes"
"""How samples are called that are there for kernels of CUDA C++: others take seconds each."""

IN_INTERPRETERS = (
    "channels_of_24_bits_that_cancel",
    "gradients_are_torchs",
    "what_lies_past_the_last_window",
)
"""Parts of the names of convolutions' tests that take Triton's interpreter and the emulator seconds each."""

LATER = (
    "tests/hostile/test_leaving.py::test_the_kit_refuses_it",
    "tests/hostile/test_suite.py::test_a_right_kernel_is_convicted_in_no_order",
    "tests/hostile/test_suite.py::test_no_caller_sees_more_of_a_wrong_kernel_than_is_promised",
    "tests/nas/remedies/test_remedies.py::test_a_search_ends_in_a_genotype_and_goes_on_from_its_checkpoint",
    "tests/nas/test_deceiving.py",
    "tests/nas/test_group.py",
    "tests/nas/test_group_alone.py",
    "tests/nas/test_growth.py",
    "tests/nas/test_kills.py",
    "tests/nas/test_lists.py",
    "tests/nas/test_patch.py",
    "tests/nas/test_search_command.py",
    "tests/nas/test_trainer.py",
    "tests/nas/test_whole.py",
    "tests/nas/test_whole_waits.py",
    "tests/nn/test_patience.py",
    "tests/nn/test_prepare.py",
    "tests/nn/test_program_changes.py",
    "tests/nn/test_programs.py",
    "tests/nn/test_served.py",
    "tests/nn/test_steps.py",
    "tests/nn/test_trial.py",
    "tests/nn/test_watched.py",
    "tests/null/bench/test_bench.py",
    "tests/null/call/test_bounds.py",
    "tests/null/call/test_leaks.py",
    "tests/null/call/test_refusals.py",
    "tests/null/choose/learn/test_budget.py",
    "tests/null/choose/test_workers.py",
    "tests/null/cli/test_bench_command.py::test_a_size_class_has_its_minimum_and_its_aim",
    "tests/null/cli/test_cli.py::test_no_command_warns_of_numpy",
    "tests/null/cli/test_doctor_command.py",
    "tests/null/cli/test_odd_files.py",
    "tests/null/cli/test_terminal.py::test_the_operators_fit_a_terminal",
    "tests/null/interop/test_autograd.py",
    "tests/null/interop/test_library.py",
    "tests/null/measure/test_collection.py",
    "tests/null/spec/test_pointwise.py",
    "tests/null/test_distributed.py::test_two_ranks_agree_on_the_firsts_choices",
    "tests/null/testing/test_testing.py::test_the_reference_in_disguise_keeps_every_rule",
    "tests/ops/test_surroundings.py::test_a_forked_worker_of_a_data_loader_is_served",
    "tests/outside/test_bad_input.py",
    "tests/plugins/test_cold_cache.py",
    "tests/plugins/test_cuda_depthwise.py",
    "tests/plugins/test_cuda_foreach.py",
    "tests/plugins/test_cuda_pools.py::test_tiles_agree",
    "tests/plugins/test_cuda_products.py::test_every_tile_of_split_factors_has_the_error_of_float32",
    "tests/plugins/test_cuda_separable.py",
    "tests/plugins/test_cuda_strided.py",
    "tests/plugins/test_jax.py",
    "tests/plugins/test_numba_replay.py",
    "tests/plugins/test_replay.py::TestCuda::test_the_emulator_gets_the_same_launches",
    "tests/plugins/test_state.py",
)
"""Files and tests of the rest: they start processes, train, compile, differentiate, search for leaks, or draw
calls."""

KIT = "nxcore.testing.test_kernels"


LINT = (
    "tests/null/test_architecture.py",
    "tests/null/test_layers.py",
    "tests/test_budgets.py",
    "tests/test_records.py",
    "tests/test_words.py",
)
"""Tests of how the files are written: a part of ``make lint``, and no other part runs them again."""

PARTS = ("all", "lint", "first", "rest")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--part``, ``--op`` and a short name for ``--nxcore-require``."""
    parser.addoption("--require", action="append", dest="nxcore_require", help="see --nxcore-require")
    parser.addoption(
        "--part",
        choices=PARTS,
        default="all",
        help="first: what make test runs; lint: what make lint runs; rest: what both leave out",
    )
    parser.addoption("--op", metavar="NAME", help="only the tests of this operator and its backward operator")


def pytest_configure(config: pytest.Config) -> None:
    """Have tests of many rows run those of ``--op`` alone."""
    if name := config.option.op:
        table.ONLY[:] = [re.compile(rf"(?:^|[^a-z0-9_]|test_){name}(?:_backward)?(?![a-z0-9_])")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give each test its threads, and random numbers of its own that are the same in every run."""
    table.draw_anew(item.nodeid)
    torch.use_deterministic_algorithms(False)  # a thread of an earlier test may have restored them
    # Several workers' threads on few numbers wait for one another: on 16 cores, a test of 15 s took minutes.
    # Numba's kernels have a way for several, which is tested too.
    share = SHARE if CUDA else 1
    torch.set_num_threads(min(max(share, 2), THREADS) if "numba" in item.nodeid else share)
    keep_bookkeeping()
    take_turns()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have every other worker import the tests from the last to the first.

    pytest rewrites the assertions of each file that it hasn't seen and keeps what it made, which takes longer
    than to collect. So two workers rewrite one half each, and read the other.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    config = session.config
    if not int(worker[2:]) % 2 or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    root = Path(__file__).parent
    for path in sorted(root.glob("tests/**/test_*.py"), reverse=True):
        if (path.parent / "__init__.py").exists() and not pytest_ignore_collect(path, config):
            # What can't be imported is told where it is collected. Filters of warnings last as long as there.
            with warnings.catch_warnings(), contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file that only other parts run."""
    if config.option.part == "all" or not collection_path.is_file():
        return None
    name = os.path.relpath(collection_path, Path(__file__).parent)
    if config.option.part == "lint":
        return name not in LINT or None
    return name in LINT or (config.option.part == "first" and name in LATER) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without searches for garbage: none of the millions of objects that they would visit is any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_nxcore_cases(config: pytest.Config, steps: list[Any]) -> dict[str, list[Any]]:
    """Make one test of a kernel in one dtype, of those steps that run: there are three times as many.

    Whoever runs the kit from another folder has a test of each.
    """
    chosen = [(rule, cell) for rule, cell in steps if _cell_is_chosen(config.option, rule, cell)]
    if config.rootpath != Path(__file__).parent:
        return plugin.pytest_nxcore_cases(chosen)
    cases: dict[str, list[Any]] = {}
    for rule, cell in chosen:
        cases.setdefault(replace(cell, sample=None).name, []).append((rule, cell))
    return cases


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of ``--op`` and ``--part``; begin with those that take minutes.

    What the kit asks of one kernel follows one another: two workers would compile it for one half each.
    """
    kept, left = [], []
    for item in items:
        of_the_kit = item.getparent(pytest.Module).module.__name__ == KIT
        if of_the_kit and "NOTSET" in item.nodeid:  # what pytest makes where no cell is left
            continue
        chosen = _of_operator(item)
        if config.option.part in ("first", "rest") and not of_the_kit:
            chosen = chosen and (config.option.part == "rest") == _takes_long(item)
        (kept if chosen else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
    items[:] = sorted(kept, key=lambda item: (not item.nodeid.startswith(FIRST), _kernel_of(item)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why most tests were skipped, in a line for each reason, unless pytest's own list was asked for."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    if not reasons or set(terminalreporter.reportchars) & set("saA"):
        return
    terminalreporter.section("why tests were skipped, by the five most common reasons")
    for reason, count in reasons.most_common(5):
        terminalreporter.write_line(f"{count:6,}  {reason.removeprefix('Skipped: ')}")
    terminalreporter.write_line(f"{reasons.total():6,}  in all; pytest -rs lists them")


def _kernel_of(item: pytest.Item) -> str:
    """Return the kernel and dtype of a test of the kit; of another, which comes before these, nothing."""
    return item.name.partition("[")[2] if item.getparent(pytest.Module).module.__name__ == KIT else ""


def _of_operator(item: pytest.Item) -> bool:
    """Return whether a test names the operator of ``--op``: in its path, its own name, parameters or rows."""
    rows = getattr(getattr(item, "function", None), "rows", [])
    return all(any(map(pattern.search, (item.nodeid, *rows))) for pattern in table.ONLY)


def _takes_long(item: pytest.Item) -> bool:
    """Return whether a test is in the rest: slow ones, those of ``LATER``, some in interpreters.

    Triton's interpreter and the emulator take a tenth of a second and more for each of these.
    """
    if item.get_closest_marker("slow") or item.get_closest_marker("browser") or item.nodeid.startswith(LATER):
        return True
    if CUDA or not isinstance(item, pytest.Function):
        return False
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return given.get("backend") in ("triton", "cuda") and any(part in item.name for part in IN_INTERPRETERS)


def _cell_is_chosen(options: Any, rule: Any, cell: Any) -> bool:
    """Return whether a cell of the kit is in the part that runs."""
    if not _cell_runs_here(rule, cell, whole=bool(options.nxcore_report)):
        return False
    return options.part == "all" or (options.part == "rest") == _cell_takes_long(cell)


def _cell_takes_long(cell: Any) -> bool:
    """Return whether a cell of the kit belongs to the rest.

    Where there is no GPU, the kernels of a GPU run in interpreters, a tenth of a second and more a sample,
    and Numba compiles for seconds; the CUDA emulator compiles each kernel for a quarter. One smoke sample in
    float32 is in the first part for these, all smoke samples for torch's kernels, all samples for Numba's on
    the CPU, and all others in the rest. So are the rules in Numba's simulator, which is the slowest, and the
    samples that take it seconds, the backends that take part on request, and operators whose kernels mirror
    another's.
    """
    if CUDA:
        return False
    if cell.backend.on_request or cell.spec.name in MIRRORED:
        return True
    if cell.dtype is not torch.float32:
        return True
    if cell.sample is not None and cell.sample.name.startswith(OF_CUDA):
        return True
    compiled = cell.backend.name == "numba" and not cell.kernel.variant  # for the CPU
    if compiled or cell.sample is None:
        return cell.backend.name == "numba" and not compiled
    smoke = cell.spec.tagged("smoke")
    return cell.sample not in (smoke if cell.backend.name == "torch" else smoke[:1])


def _cell_runs_here(rule: Any, cell: Any, *, whole: bool) -> bool:
    """Return whether a cell of the conformance kit is worth its time in the tests of this repository.

    Of a kernel that can't run on this machine one cell is left, to say so, or to fail where it is required.
    inductor compiles for seconds: the smoke samples on CUDA, and on the CPU one an operator, backward
    operators left out. It compiles the reference, so these tests check the compiler and not a kernel. JAX
    compiles for a tenth of a second, and takes part on request: the smoke samples, and one an operator in
    16 bits, which differ from float32 by a cast. Numba compiles another version for each layout: in 16 bits
    it has the smoke samples. Triton's interpreter and Numba's simulator take a tenth of a second and more
    for each: the smoke samples alone in 16 bits, and of an operator whose kernels are another's, without
    its softmax; a device gets all. bfloat16 differs from float16 by a cast: it has the smoke samples, one
    of them in these two, and operators whose kernels mirror another's have float32 alone of the three.
    Samples for kernels of CUDA C++ are run by these alone. A report of the whole has all of this, but for
    inductor, which is held to its smoke samples.
    """
    from nxcore.testing.rules import OF_A_TYPE

    smoke = cell.spec.tagged("smoke")
    if not (cell.machine or whole):
        return cell.leads and cell.sample is smoke[0]
    telling = cell.sample is None or cell.sample in smoke
    if cell.backend.name == "inductor" and not (CUDA or whole):
        first = rule in OF_A_TYPE if cell.sample is None else cell.sample is smoke[0]
        alike = cell.spec.name in MIRRORED or cell.spec.name.endswith("_backward")
        return cell.dtype is torch.float32 and first and not alike
    if cell.backend.name == "inductor":
        return telling
    if cell.backend.name == "jax":
        once = cell.dtype is not torch.float32 and not CUDA
        return whole or (cell.sample is smoke[0] if once else telling)
    if CUDA or whole:
        return True
    if cell.sample and cell.sample.name.startswith(OF_CUDA) and cell.backend.name not in ("torch", "cuda"):
        return False
    interpreted = cell.backend.name == "triton" or (cell.backend.name == "numba" and cell.kernel.variant)
    if cell.spec.name in MIRRORED and cell.dtype in (torch.float16, torch.bfloat16):
        return False
    if cell.dtype is torch.bfloat16:
        return cell.sample is smoke[0] if interpreted else telling
    if not interpreted:
        return telling or cell.backend.name != "numba" or cell.dtype is not torch.float16
    if cell.dtype is torch.float32:
        return telling or cell.spec.name not in ("weighted_sum", "weighted_sum_backward")
    return cell.sample in smoke
