"""Processes that are forked from one that has imported torch are like those that a test would start."""

import os
import subprocess

import pytest

from tests import fresh


def test_it_prints_and_ends_as_a_process_of_its_own():
    done = fresh.run("-c", "import sys; print('out'); print(*sys.argv, file=sys.stderr); sys.exit(3)", "a")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "-c a\n")
    with pytest.raises(subprocess.CalledProcessError):
        fresh.run("-c", "raise SystemExit(1)", check=True)
    assert "ValueError: wrong" in fresh.run("-c", "raise ValueError('wrong')").stderr
    assert fresh.run("-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == -9


def test_it_has_torch_and_nothing_of_ours():
    code = "import sys\nprint('torch' in sys.modules, *sorted(m for m in sys.modules if 'nxcore' in m))"
    assert fresh.run("-c", code).stdout == "True\n"


def test_it_has_the_environment_and_the_folder_that_it_is_given(tmp_path):
    (tmp_path / "beside.py").write_text(
        "import os, sys\nprint(os.environ['GIVEN'], os.getcwd(), *sys.argv[1:])\n"
    )
    env = os.environ | {"GIVEN": "this"}
    expected = f"this {tmp_path} a\n"
    assert fresh.run("-m", "beside", "a", env=env, cwd=tmp_path).stdout == expected
    assert fresh.run(tmp_path / "beside.py", "a", env=env, cwd=tmp_path).stdout == expected
    env |= {"PYTHONPATH": str(tmp_path)}
    assert fresh.run("-c", "import beside", env=env, cwd="/").stdout == "this /\n"


def test_what_it_defines_is_in_the_main_module():
    code = "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A, __name__)"
    assert fresh.run("-c", code).stdout == "True __main__\n"


def test_one_that_hangs_is_killed_and_the_next_is_served():
    with pytest.raises(subprocess.TimeoutExpired):
        fresh.run("-c", "import time; time.sleep(100)", timeout=0.1)
    assert fresh.run("-c", "print(1)").stdout == "1\n"
