"""``make wheels``: what is built is told, and a wheel that is too large is an error."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "plugins" / "wheels.py"


@pytest.fixture
def wheels(monkeypatch):
    """The script, whose pip writes a wheel of a size."""
    spec = importlib.util.spec_from_file_location("wheels", SCRIPT)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    found.size, found.status, found.asked, found.against = 10, 0, [], []

    def pip(command, env=None, **_):
        if Path(command[1]).name == "against.py":
            found.against += command[2:]
            return subprocess.CompletedProcess(command, 0)
        folder, project = Path(command[command.index("-w") + 1]), command[-1]
        found.asked.append((project.name, env["NXCORE_CUDA_BUILD"], env["NXCORE_TRITON_BUILD"]))
        if not found.status:
            (folder / f"nxcore_{project.name}-2-py3-none-any.whl").write_bytes(bytes(found.size))
        return subprocess.CompletedProcess(command, found.status, "no compiler")

    monkeypatch.setattr(subprocess, "run", pip)
    return found


def test_every_package_has_a_wheel_with_its_compiled_kernels(wheels, tmp_path, capsys):
    (tmp_path / "nxcore_cuda-1-py3-none-any.whl").write_bytes(b"older")
    assert wheels.main(["--output", str(tmp_path)]) == 0
    plugins = sorted(path.parent.name for path in SCRIPT.parent.glob("*/pyproject.toml"))
    assert [name for name, *_ in wheels.asked] == [SCRIPT.parents[1].name, *plugins, "native"]
    assert {
        switches for _, *switches in [(a, b + c) for a, b, c in wheels.asked] for switches in switches
    } == {"11"}
    text = capsys.readouterr().out
    assert f"[2/{len(plugins) + 2}] {plugins[0]} 0 s" in text
    assert "    0.00 MB  nxcore_cuda-2-py3-none-any.whl\n" in text
    assert [path.name for path in tmp_path.glob("nxcore_cuda-*")] == ["nxcore_cuda-2-py3-none-any.whl"]


def test_a_wheel_that_is_too_large_is_an_error(wheels, tmp_path, capsys):
    wheels.MOST = 9
    assert wheels.main(["cuda", "--output", str(tmp_path)]) == 1
    assert "nxcore_cuda-2-py3-none-any.whl: more than 0 MB" in capsys.readouterr().out


def test_what_cant_be_built_is_told(wheels, tmp_path):
    wheels.status = 1
    with pytest.raises(SystemExit, match=r"has no wheel:\nno compiler"):
        wheels.main(["cuda", "--output", str(tmp_path)])
    with pytest.raises(SystemExit):
        wheels.main(["nobody", "--output", str(tmp_path)])


def test_whoever_wants_a_wheel_without_kernels_can_have_it(wheels, monkeypatch, tmp_path):
    monkeypatch.setenv("NXCORE_CUDA_BUILD", "0")
    assert wheels.main(["cuda", "--output", str(tmp_path)]) == 0
    assert wheels.asked == [("cuda", "0", "1")]


def test_the_compiled_path_has_a_library_for_each_torch_that_is_tested(wheels, monkeypatch, tmp_path):
    installed = ".".join(torch.__version__.split(".")[:2])
    assert wheels.main(["native", "--output", str(tmp_path)]) == 0
    assert sorted({*wheels.against, installed}) == ["2.10", "2.11", "2.12", "2.13"]
    assert installed not in wheels.against, "pip builds that one"
    wheels.against.clear()
    monkeypatch.setenv("NXCORE_NATIVE_BUILD", "0")
    assert wheels.main(["native", "--output", str(tmp_path)]) == 0
    assert not wheels.against
