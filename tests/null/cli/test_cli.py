"""The command line: quick help, plain text and JSON, exit status 0, 1 or 2."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import nxcore
from nxcore.bench import demo
from nxcore.cli import main, render
from nxcore.errors import InvalidInputError, NxcoreError, UnknownBackendError, UnknownOperatorError
from nxcore.interop import native
from nxcore.registry.registry import BackendStatus, Source
from nxcore.settings import Settings
from nxcore.spec.kernel import Check, no
from nxcore.spec.origin import installing
from nxcore.store.files import Store
from nxcore.trust.suspect import Suspect
from tests import fresh
from tests.null import fakes
from tests.null.cli.commands import command
from tests.table import for_each

SAD = Source("sad", "nxcore-sad 1.0")
FAILED = BackendStatus("sad", "failed", "ImportError: no toolkit", "reinstall it", SAD)
COMMANDS = ("bench", "demo", "ops", "backends", "doctor", "explain", "report", "search", "tune", "verify")


@pytest.fixture(autouse=True)
def session(as_default):
    """The default session, with one backend that is ready and one that is not."""
    kernels = (fakes.kernel("add"), fakes.kernel("sum"))
    found = fakes.session(
        fakes.backend("fake", *kernels),
        fakes.backend("away", fakes.kernel("add"), probe=lambda: no("no GPU", hint="buy one")),
    )
    as_default(found)
    return found


def run(*words: str, status: int = 0) -> str:
    done = command(*words, status=status)
    return done.stdout or done.stderr  # the latter may have a line on what takes long, too


def rows(*words: str, status: int = 0):
    return json.loads(run(*words, "--json", status=status))


def test_help_names_every_command():
    text = run("--help")
    assert all(command in text for command in COMMANDS)
    assert run("-h") == text


@for_each("command", COMMANDS)
def test_every_command_explains_itself_and_speaks_json(command):
    assert "--json" in run(command, "--help")


def test_no_command_shows_the_help():
    assert "Usage" in run(status=2)


def test_the_version_is_the_packages():
    assert run("--version") == f"nxcore {nxcore.__version__}\n"


def test_help_starts_at_once():
    assert any(_seconds("--help") < 0.5 for _ in range(10))


def _seconds(*words: str) -> float:
    """Return the processor time of a command: other processes don't add to it."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "nxcore", *words], capture_output=True, check=True, timeout=300
    )
    assert b"explain" in done.stdout
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_ops_lists_operators_with_their_kernels():
    text = run("ops")
    assert all(name in text for name in fakes.SPECS)
    found = {row["name"]: row for row in rows("ops")}
    assert list(found) == sorted(fakes.SPECS)
    assert found["add"]["signature"] == "(x, y, *, alpha=1, out=None)"
    assert found["add"]["kernels"] == ["torch", "fake", "away"]
    assert found["add"]["gradient"] == "add_backward"
    assert found["add"]["samples"] == len(fakes.SPECS["add"].samples)
    assert found["sum_backward"]["gradient"] is None


def test_ops_tells_which_package_an_operator_comes_from(as_default):
    session = fakes.session()
    session.registry.add_ops([fakes.twice()], Source("mine", "nxcore-mine 1.2.0"))
    as_default(session)
    sources = {row["name"]: row["source"]["distribution"] for row in rows("ops")}
    assert sources == dict.fromkeys(fakes.SPECS, "nxcore-kernels") | {"twice": "nxcore-mine 1.2.0"}
    (line,) = (line for line in run("ops").splitlines() if line.split()[:1] == ["twice"])
    assert "nxcore-mine 1.2.0" in line


def test_backends_lists_who_can_run_and_why_not():
    text = run("backends")
    assert all(
        word in text for word in ("torch", "fake", "ready", "away", "unavailable", "no GPU", "buy one")
    )
    found = {row["name"]: row for row in rows("backends")}
    assert {n: r["status"] for n, r in found.items()} == {
        "torch": "ready",
        "fake": "ready",
        "away": "unavailable",
    }
    assert (found["away"]["reason"], found["away"]["hint"]) == ("no GPU", "buy one")
    assert found["fake"]["operators"] == ["add", "sum"]


@pytest.fixture
def quarantined(session):
    """The session, with a kernel of each kind in quarantine."""
    for op, kind, reason in (
        ("add", "wrong", "NaN must stand"),
        ("sum", "crashed", "a process ended"),
        ("sum_to_size", "raised", "raised on 3 problems"),
    ):
        owned = [(b, k) for b, k in session.registry.kernels(op) if b.name == "fake"]
        suspect = Suspect(op, "fake", "float32", {"type": "cpu", "name": "One"}, {})  # not installed now
        if owned:
            suspect = session.gate.suspect(*owned[0], torch.device("cpu"), torch.float32)
        session.gate.quarantine.add(suspect, kind, reason)
    return session


def test_an_empty_quarantine_says_so():
    assert run("quarantine", "list") == "no kernel is in quarantine\n"
    assert rows("quarantine", "list") == []


def test_the_quarantine_lists_wrong_answers_apart_from_crashes(quarantined):
    text = run("quarantine", "list")
    assert text.index("Wrong results") < text.index("NaN must stand") < text.index("Crashed or hung")
    assert text.index("Crashed or hung") < text.index("a process ended") < text.index("Raised repeatedly")
    found = rows("quarantine", "list")
    assert [(r["op"], r["kernel"], r["kind"]) for r in found] == [
        ("sum", "fake", "crashed"),
        ("sum_to_size", "fake", "raised"),
        ("add", "fake", "wrong"),
    ]


def test_clearing_lifts_what_was_named(quarantined):
    assert run("quarantine", "clear", "add") == "1 removed from quarantine\n"
    assert run("quarantine", "clear", "--kernel", "other") == "0 removed from quarantine\n"
    assert len(rows("quarantine", "clear")) == 2
    assert rows("quarantine", "list") == []


def test_doctor_shows_the_quarantine_and_what_to_type(quarantined):
    broken = [r for r in rows("doctor", status=1) if not r["ok"]]
    assert broken[0]["name"] == "fake sum float32"
    assert broken[0]["detail"] == "in quarantine (crashed): a process ended"
    assert broken[0]["fix"] == "nxcore quarantine clear sum --kernel fake"
    assert len(broken) == 3


def test_doctor_tells_where_the_cache_is_and_whether_it_works(session, tmp_path):
    cache = lambda *status: next(r for r in rows("doctor", status=sum(status)) if r["name"] == "cache")  # noqa: E731
    assert cache()["detail"] == "in memory"
    session.gate.store = Store(tmp_path)
    session.gate.store.write("verdicts", {"op": "add"}, {})
    assert cache()["detail"] == f"{tmp_path / 'v1'}, 1 verdicts"
    session.gate.store.folder, session.settings = None, Settings(cache=tmp_path)
    found = cache(1)
    assert not found["ok"]
    assert found["detail"].startswith(f"{tmp_path} can't be used")


def test_a_failed_plugin_makes_backends_and_doctor_end_with_one(session):
    session.registry.refused.append(FAILED)
    assert {r["name"]: r["status"] for r in rows("backends", status=1)}["sad"] == "failed"
    assert "ImportError: no toolkit" in run("backends", status=1)
    broken = [r for r in rows("doctor", status=1) if not r["ok"]]
    assert [(r["name"], r["fix"]) for r in broken] == [("backend sad", "reinstall it")]
    assert "broken" in run("doctor", status=1)


def test_doctor_tells_versions_backends_and_checks(session):
    session.registry.checks.append(Check("compiler", True, "nvcc 13"))
    found = {row["name"]: row for row in rows("doctor")}
    assert found["torch"]["detail"] == torch.__version__
    assert found["nxcore"]["detail"].startswith(nxcore.__version__)
    assert "no GPU" in found["backend away"]["detail"]
    assert found["backend away"]["fix"] == "buy one"
    assert found["compiler"]["detail"] == "nvcc 13"
    assert all(row["ok"] for row in found.values())
    assert "nvcc 13" in run("doctor")


def test_doctor_tells_why_the_compiled_path_is_left_out(session, monkeypatch):
    why = "nxcore-native 9 is left out: ImportError: built for torch 1.0, found torch 2.13"
    monkeypatch.setattr(native, "found", lambda: native.Found(None, why, ok=False))
    row = {row["name"]: row for row in rows("doctor", status=1)}["native"]
    assert (row["ok"], row["detail"], row["fix"]) == (False, why, installing("nxcore-native"))
    session.settings = replace(session.settings, native=False)
    row = {row["name"]: row for row in rows("doctor")}["native"]
    assert (row["ok"], row["detail"]) == (True, "switched off by NXCORE_NATIVE")


def test_a_plugins_failed_check_makes_doctor_end_with_one(session):
    session.registry.checks.append(Check("compiler", False, "none", fix="install nvcc"))
    assert "install nvcc" in run("doctor", status=1)


def test_doctor_without_a_plugin_tells_which_to_install(session, as_default, cuda_answers):
    assert "plugins" not in {row["name"] for row in rows("doctor")}
    as_default(fakes.session())
    cuda_answers(is_available=lambda: False)
    found = {row["name"]: row for row in rows("doctor")}["plugins"]
    assert (found["detail"], found["state"]) == ("none is installed: torch runs every call", "ok")
    assert found["fix"] == installing("nxcore-numba")
    assert f"plugins: {installing('nxcore-numba')}" in run("doctor")


LONG = "install the toolkit-of-a-long-name, then set THE_VARIABLE_OF_THE_TOOLKIT=1 to run it, slowly"
NAMES = ("first-backend-here", "second-backend-here")


@pytest.fixture
def narrow(monkeypatch, as_default):
    """The session of a machine that can't run two backends of long names, and a terminal of 80 columns."""
    away = [
        fakes.backend(name, fakes.kernel("max_pool2d_with_offsets"), probe=lambda: no("no GPU", hint=LONG))
        for name in NAMES
    ]
    here = fakes.backend("a-backend-that-is-here", fakes.kernel("max_pool2d_with_offsets"))
    as_default(fakes.session(here, *away))
    monkeypatch.setattr(
        render,
        "console",
        lambda **_: Console(width=80, force_terminal=True, color_system=None, highlight=False),
    )


@pytest.mark.parametrize(
    "words",
    [
        ("doctor",),
        ("backends",),
        ("ops",),
        ("explain", "max_pool2d_with_offsets", "--sample", "darts", "--device", "cpu"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.usefixtures("narrow")
def test_80_columns_cut_no_name_and_what_cannot_run_here_takes_one_line(words):
    text = run(*words)
    assert "a-backend-that-is-here" in text
    if words[0] == "ops":
        assert "max_pool2d_with_offsets" in text
        return
    plain = " ".join(text.split())
    assert f"{', '.join(NAMES)}: no GPU" in plain
    assert plain.count("no GPU") == 1
    shown = [line for line in text.splitlines() if LONG not in line]
    assert max(map(len, shown)) <= 80
    if words[0] != "explain":
        assert LONG in text, "what to type is on one line"


def test_explain_tells_in_json_which_kernels_cannot_run_here():
    found = rows("explain", "add", "--device", "cpu")
    assert (found["unavailable"], found["on_request"]) == ({"away": "no GPU"}, [])


def test_no_command_warns_of_numpy(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('No module named numpy', name='numpy')")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    env = os.environ | {"NXCORE_BACKENDS": "", "NXCORE_CACHE": "", "PYTHONPATH": path}
    words = [sys.executable, "-m", "nxcore", "ops"]  # torch tells of numpy while it is imported
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=True, timeout=300)
    assert done.stderr == ""


def test_demo_without_its_images_says_so_before_it_measures(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setattr(demo, "ceilings", lambda device: pytest.fail("it measures"))
    with pytest.raises(NxcoreError, match="needs scikit-learn for its images: pip install"):
        run("demo", "--device", "cpu")


def test_explain_tells_who_runs_a_sample():
    words = ("explain", "add", "--sample", "alpha_dropped", "--device", "cpu")
    found = rows(*words)
    assert found["sample"] == "alpha_dropped"
    assert found["text"].startswith("add(x=float32[6, 70], y=float32[6, 70], alpha=float, out=None) on ")
    labels = [c["label"] for c in found["decision"]["candidates"]]
    assert labels == ["torch", "fake", "away"]
    text = run(*words)
    assert "alpha_dropped" in text
    assert "runs it" in text
    assert "no GPU" in text


def test_explain_takes_dtype_and_backend():
    found = rows(
        "explain",
        "sum",
        "--sample",
        "inner_axis",
        "--dtype",
        "bfloat16",
        "--backend",
        "fake",
        "--device",
        "cpu",
    )
    assert (found["decision"]["chosen"], found["decision"]["rule"]) == ("fake", "pinned")
    assert "bfloat16[9, 1025]" in found["text"]


def test_explain_takes_a_real_workload_by_default():
    assert rows("explain", "sum", "--device", "cpu")["sample"] == "small"


WRONG = {
    "operator": (("explain", "ad"), UnknownOperatorError, "no operator is named 'ad'; did you mean 'add'?"),
    "sample": (("explain", "add", "--sample", "alpha"), InvalidInputError, "add has no sample 'alpha'"),
    "dtype": (
        ("explain", "add", "--dtype", "int8"),
        InvalidInputError,
        "dtype must be one of float32, float16, bfloat16",
    ),
    "backend": (
        ("explain", "add", "--backend", "fak"),
        UnknownBackendError,
        "no backend is named 'fak'; did you mean 'fake'",
    ),
    "entry": (("quarantine", "clear", "ad"), UnknownOperatorError, "no operator is named 'ad'"),
    "kernel": (("verify", "ad"), UnknownOperatorError, "no operator is named 'ad'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_unknown_ends_with_two_and_a_message(what, capsys):
    words, error, message = WRONG[what]
    with pytest.raises(error, match=message.replace("?", r"\?")):
        run(*words)
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"error: {message}" in " ".join(shown.err.split())


def test_a_process_ends_with_its_status():
    env = os.environ | {"NXCORE_BACKENDS": ""}
    done = fresh.run("-m", "nxcore", "explain", "ad", env=env)
    assert done.returncode == 2
    assert "error: no operator is named 'ad'; did you mean 'add'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pipe_gets_plain_text_and_a_warning_is_a_line():
    env = os.environ | {"NXCORE_BACKENDS": "nosuch"}
    done = fresh.run("-m", "nxcore", "backends", env=env, check=True)
    assert "\x1b" not in done.stdout
    assert "torch" in done.stdout
    assert done.stderr.startswith("warning: NXCORE_BACKENDS or")
    assert len(done.stderr.splitlines()) == 1
