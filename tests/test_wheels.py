"""The packages as a user installs them: wheels, a fresh environment, one plugin beside the core.

What they depend on is found in that environment, and must be all that they ask for.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.venvs import furnish

ROOT = Path(__file__).parents[1]
STRICT = (
    "-W",
    "error",
    "-W",
    "ignore:Failed to initialize NumPy",
)  # torch says so itself where there is none
CALL = """
import torch, nxcore
xs, logits = [torch.randn(33) for _ in range(3)], torch.randn(3)
want = sum(w * x for w, x in zip(torch.softmax(logits, 0), xs))
torch.testing.assert_close(nxcore.op("softmax_sum")(xs, logits), want)
ready = [name for name, s in nxcore.backends().items() if s.status == "ready"]
print(",".join(name for name in ready if name != "inductor"))  # which is ready where there is a compiler
"""
CALL_NUMBA = (
    CALL + 'torch.testing.assert_close(nxcore.op("softmax_sum", backend="numba")(xs, logits), want)\n'
)

IDENTITIES = """
import json
from nxcore import session
of = session.default()
names = ("torch", "numba")
owned = [(b, k) for name in names for b in [of.registry.backend(name)] for k in b.kernels]
print(json.dumps({f"{b.label(k)} {k.op}": of.gate.identity(b, k).kernel for b, k in owned}))
"""


def _run(*command: str | Path, **environment: str) -> str:
    # Settings of plugins that this environment lacks would be warned of.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NXCORE_")}
    done = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        cwd="/",
        env=inherited | environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_core_alone_then_one_plugin_then_without_it(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    _run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        wheels,
        ROOT,
        ROOT / "plugins" / "numba",
    )
    core, plugin = (next(wheels.glob(f"nxcore_{name}-*.whl")) for name in ("kernels", "numba"))
    venv.create(tmp_path / "venv", with_pip=True)
    furnish(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    install = (
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-index",
    )
    _run(*install, core)
    assert _run(python, *STRICT, "-c", CALL).strip() == "torch"
    assert "softmax_sum" in _run(tmp_path / "venv" / "bin" / "nxcore", "ops")
    _run(*install, plugin)
    assert _run(python, *STRICT, "-c", CALL_NUMBA).strip() == "torch,numba"
    checkout = os.pathsep.join(map(str, (ROOT, *ROOT.glob("plugins/*/src"))))
    there, here = (
        _run(p, "-c", IDENTITIES, PYTHONPATH=f) for p, f in ((python, ""), (sys.executable, checkout))
    )
    assert there == here, "a wheel's kernels are those of the checkout"
    _run(python, "-m", "pip", "uninstall", "-q", "-y", "nxcore-numba")
    assert _run(python, *STRICT, "-c", CALL).strip() == "torch"
