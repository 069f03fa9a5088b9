"""Every command that reads or writes a file, on files that it can't take: one line, and never a traceback."""

import sys
from pathlib import Path

import pytest
import torch

from nxcore import cli
from tests.null import fakes
from tests.table import for_each

DEEP = "[" * 100_000
ODD = {
    "missing": None,
    "a folder": ...,
    "empty": b"",
    "binary": bytes(range(256)) * 8,
    "no utf-8": '{"op": "add"}'.encode("utf-16"),
    "nested deeply": f"{DEEP}{']' * 100_000}\n{{}}\n".encode(),
    "nested within a line": b'{"op": "add", "x": ' + DEEP.encode() + b"]" * 100_000 + b"}\n",
    "null": b"null\n",
    "a number": b"1\n",
    "a list": b'[1, "add"]\n',
    "a text": b'"add"\n',
    "an object": b"{}\n",
    "huge numbers": b'{"op": "add", "x": {"shape": [1' + b"0" * 400 + b'], "dtype": "float32"}}\n',
    "many digits": b'{"op": "add", "count": ' + b"9" * 5000 + b"}\n",
    "infinity": b'{"op": "add", "x": Infinity, "record": "row", "label": NaN}\n',
    "wrong kinds": b'{"record": "row", "op": 1, "sample": [], "dtype": {}, "label": null}\n' * 2,
    "a head alone": b'{"record": "head", "device": 3}\n' * 2,
    "an odd head": b'{"record": ["head"], "op": "add"}\n' * 2,
    "a trace of half a problem": b'{"op": "add", "count": "x", "devices": 3}\n',
    "of an unknown operator": b'{"op": "nonsense", "count": 1}\n',
    "an odd search": b'{"genotype": 3, "preset": [], "data": 3}\n',
    "odd wisdom": b'{"environments": 3, "version": [], "entries": {}}\n',
}
COMMANDS = [
    "report {}",
    "report {} --output {folder}/r.html",
    "bench --compare {} {}",
    "bench add --sample small --fast --record {}",
    "explain --from-trace {}",
    "explain --from-trace {}:1",
    "doctor --from-trace {}",
    "tune --from-trace {}",
    "wisdom import {}",
    "wisdom merge {} {} --output {folder}/w.json",
    "search --genotype {} --retrain-epochs 1",
    "search --resume {}",
    "search --data {} --root {}",
    "explain --model {}:make",
]


@pytest.fixture(autouse=True)
def session(as_default):
    found = fakes.session(fakes.backend("fake", fakes.kernel("add")))
    as_default(found)


def ended(capsys, words: list[str]) -> tuple[int, str, str]:
    """Run the command line as a shell does; return exit status, output and errors."""
    with pytest.raises(SystemExit) as done:
        cli.main(words)
    code = done.value.code
    printed = capsys.readouterr()
    return code if isinstance(code, int) else int(code is not None), printed.out, printed.err


def made(folder: Path, content: object) -> Path:
    path = folder / "odd.json"
    if content is ...:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    return path


@for_each("content", ODD.values(), ids=ODD)
@for_each("command", COMMANDS)
def test_a_file_that_a_command_cannot_take_is_said_in_a_line(command, content, tmp_path, monkeypatch, capsys):
    path = made(tmp_path, content)
    monkeypatch.chdir(tmp_path)
    words = [word.replace("{}", str(path)).replace("{folder}", str(tmp_path)) for word in command.split()]
    status, _, errors = ended(capsys, words)
    assert status in (0, 1, 2)
    assert "Traceback" not in errors
    assert all(len(line) < 2000 for line in errors.splitlines())
    if status == 2:
        assert errors.strip()


ASKED = b'{"data": "digits", "root": null, "seed": 0, "side": null}'


@for_each(
    ("name", "content"),
    [
        *(("search.json", content) for content in ODD.values() if isinstance(content, bytes)),
        ("search.json", ASKED.replace(b"0", b'"x"')),
        ("search.json", ASKED.replace(b'"digits"', b"3")),
        *(("checkpoint.pt", content) for content in ODD.values() if isinstance(content, bytes)),
        ("checkpoint.pt", Path(__file__).read_bytes()),
        ("checkpoint.pt", "saved"),
    ],
)
def test_a_folder_that_is_no_search_is_not_resumed(name, content, tmp_path, monkeypatch, capsys):
    (tmp_path / "search.json").write_bytes(ASKED)
    torch.save([1], tmp_path / "checkpoint.pt")
    if content != "saved":
        (tmp_path / name).write_bytes(content)
    status, _, errors = ended(capsys, ["search", "--resume", str(tmp_path)])
    assert status == 2, errors
    assert len(errors.splitlines()) == 1, errors


@for_each(
    ("model", "said"),
    [
        ("torch.nn:Linear", "callable without arguments, but torch.nn:Linear raised TypeError"),
        ("torch.nn", "must be module:callable"),
        ("torch.nn:", "must be module:callable"),
        (":", "must be module:callable"),
        ("no.such.module:make", "No module named 'no'"),
        ("torch:nothing", "no attribute 'nothing'"),
        ("torch:nn", "got 'torch:nn', a module"),
        ("torch:float32", "got 'torch:float32', a dtype"),
        ("os:getcwd", "must return a torch.nn.Module, or a tuple with one first, got str"),
        ("builtins:tuple", "got tuple"),
        ("faulty:make", "raised ZeroDivisionError"),
        ("broken:make", "SyntaxError"),
        ("mismatched:make", "a step of the model of --model raised RuntimeError"),
    ],
)
def test_a_model_that_cannot_be_made_or_run_is_said_in_a_line(model, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "faulty.py").write_text("def make():\n    return 1 / 0\n")
    (tmp_path / "broken.py").write_text("def make(:\n")
    text = "import torch\ndef make():\n    return torch.nn.Linear(2, 3), torch.ones(1, 7)\n"
    (tmp_path / "mismatched.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    status, _, errors = ended(capsys, ["explain", "--model", model])
    assert status == 2
    assert said in errors
    assert len(errors.splitlines()) == 1
    for name in ("faulty", "broken", "mismatched"):
        sys.modules.pop(name, None)


@for_each(
    "words",
    [
        "ops nothing",
        "explain add --shape 1e9,-1",
        "explain add --shape ,,",
        "explain add --shape 99999999999999999999,99999999999999999999",
        "explain add --shape 1000000,1000000,1000",
        "explain add --device nothing",
        "explain add --device cuda:99",
        "explain add --steps 0",
        "explain",
        "bench conv-study",
        "bench add --budget nan --sample nothing",
        "bench add --device cpu:7:9",
        "bench --record",
        "tune nothing",
        "tune add --tiles nothing",
        "verify add --backend nothing",
        "verify add --dtype nothing",
        "cache clear nothing",
        "quarantine clear nothing",
        "wisdom show nothing",
        "search --preset nothing",
        "search --data nothing",
        "search --grow nothing",
        "search --space nothing",
        "demo --device nothing",
        "demo --json /",
        "report",
        "nothing",
        "--nothing",
    ],
)
def test_an_odd_argument_is_said_without_a_traceback(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, _, errors = ended(capsys, words.split())
    assert status == 2, errors
    assert errors.strip()
    assert "Traceback" not in errors
