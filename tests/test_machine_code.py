"""The folder of Numba's machine code: one for each state of the plugin, and none that is out of use."""

import os
import time

from tests import machine_code


def test_a_change_of_any_file_takes_another_folder(tmp_path):
    sources = tmp_path / "plugins" / "numba" / "src" / "package"
    sources.mkdir(parents=True)
    (sources / "kernel.py").write_text("from package import tile\n")
    (sources / "tile.py").write_text("")
    first = machine_code.folder(tmp_path)
    assert first.is_dir()
    assert machine_code.folder(tmp_path) == first
    (sources / "tile.py").write_text("WIDTH = 8\n")
    second = machine_code.folder(tmp_path)
    assert second != first
    assert first.is_dir()
    late = time.time() - 2 * machine_code.KEPT_S
    os.utime(first / "used", (late, late))
    assert machine_code.folder(tmp_path) == second
    assert not first.exists()
