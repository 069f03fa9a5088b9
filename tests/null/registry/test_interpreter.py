"""A process that is started finds modules where this one does, whatever its folders are called."""

import json
import subprocess
import sys

from nxcore.registry.interpreter import command


def test_a_folder_with_a_colon_in_its_name_arrives_whole(tmp_path, monkeypatch):
    folder = tmp_path / 'a:b, "c"'
    folder.mkdir()
    (folder / "asked.py").write_text(
        "import json, sys\nprint(json.dumps([__name__, sys.argv[1:], sys.path]))\n"
    )
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    done = subprocess.run([*command("asked"), "task"], capture_output=True, text=True, check=True)
    name, arguments, path = json.loads(done.stdout)
    assert (name, arguments) == ("__main__", ["task"])
    assert path[0] == str(folder)
    assert len(path) == len(sys.path)
