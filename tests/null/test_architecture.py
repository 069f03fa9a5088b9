"""The repository's shape: one name is the address, nothing heavy is imported early, all is documented."""

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import nxcore
import nxcore.ops
from nxcore.registry import hookspecs
from tests import fresh
from tests.null import fakes
from tests.table import for_each

ROOT = Path(__file__).parents[2]
TOOLKITS = {"triton", "numba", "cupy", "jax", "llvmlite", "numba_cuda"}
LIMIT = 400
LONGER = {"tests/nas/deceiving.py": "one list: each forward is a case of one test"}
"""Path -> why it may be longer than LIMIT lines."""
MODULES = sorted(p for p in (ROOT / "nxcore").rglob("*.py"))
MARKS = 60
"""Marks of the linter, which the core stays below: a common exception is a rule in pyproject."""
MARK = re.compile(r"# (?:ruff: )?noqa(?P<codes>: [A-Z]+\d+(?:, [A-Z]+\d+)*)?(?P<reason>  \S.*)?")
OPS = sorted(m.name for m in pkgutil.iter_modules(nxcore.ops.__path__))
PROJECTS = sorted((ROOT / "plugins").glob("*/pyproject.toml"))


def project(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


def loaded_by(code: str, *, torch: bool = False) -> set[str]:
    """Return the top-level modules that a new process, or one with ``torch``, has loaded after ``code``."""
    shown = f"import sys\ntry:\n{_indented(code)}\nfinally:\n"
    shown += "    print('LOADED', *sorted(sys.modules), file=sys.stderr)"
    if torch:
        done = fresh.run("-c", shown, cwd=ROOT)
    else:
        command = [sys.executable, "-c", shown]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=300)
    line = next(li for li in reversed(done.stderr.splitlines()) if li.startswith("LOADED"))
    return {name.partition(".")[0] for name in line.split()[1:]}


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())


MAIN = """from nxcore.cli import main
try:
    main()
except SystemExit:
    pass"""


def command(*words: str) -> str:
    return f"sys.argv = {['nxcore', *words]!r}\n{MAIN}"


def test_the_names_of_nxcore_are_sorted_and_there():
    assert nxcore.__all__ == sorted(nxcore.__all__)
    assert set(nxcore.__all__) <= set(dir(nxcore))
    for name in nxcore.__all__:
        assert getattr(nxcore, name) is not None


def test_the_functions_of_nxcore_are_all_exported():
    own = {n for n, v in vars(nxcore).items() if inspect.isfunction(v) and not n.startswith("_")}
    assert own <= set(nxcore.__all__)


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'nxcore' has no attribute 'nothing'"):
        nxcore.nothing  # noqa: B018


@for_each("name", sorted(set(nxcore.__all__) - {"__version__"}))
def test_an_export_is_documented(name):
    assert (inspect.getdoc(getattr(nxcore, name)) or "").strip()


@pytest.mark.parametrize(
    "code", ["import nxcore", command("--help"), command("--version"), command("ops", "--help")]
)
def test_nothing_heavy_is_loaded_for_a_look(code):
    assert not {"torch", "numpy", "pluggy", *TOOLKITS} & loaded_by(code)


@pytest.mark.parametrize("words", [["ops"], ["backends"], ["backends", "--json"]], ids=" ".join)
def test_listing_loads_no_toolkit(words):
    """With whatever is installed: a plugin's module must be cheap."""
    loaded = loaded_by(command(*words), torch=True)
    assert {"nxcore", "pluggy"} <= loaded
    assert TOOLKITS & loaded == set()


def test_the_core_loads_no_toolkit():
    code = "from nxcore.session import Session\nfrom nxcore.settings import Settings\nimport torch\n"
    code += "s = Session(Settings(backends=frozenset()))\ns.op('sum')(torch.ones(3, 4))\ns.backends()"
    assert not TOOLKITS & loaded_by(code, torch=True)


FILES = sorted(
    p
    for pattern in ("nxcore/**/*.py", "plugins/*/src/**/*.py", "tests/**/*.py", "benchmarks/**/*.py")
    for p in ROOT.glob(pattern)
)


def test_no_file_grows_past_its_limit_without_a_reason():
    lengths = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    assert len(lengths) > 40
    long = {name: n for name, n in lengths.items() if n > LIMIT}
    assert set(long) == set(LONGER), f"split these, or give the reason in LONGER: {long}"
    assert all(LONGER.values())


def test_no_file_is_a_drawer():
    names = {p.stem for p in FILES}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [n for n in names if re.search(r"enhanced|improved|fast_|_fast|_v\d|_new|_old", n)]


@pytest.mark.parametrize("path", PROJECTS, ids=lambda p: p.parent.name)
def test_a_plugin_has_the_cores_version_and_pins_it(path):
    core, found = project(ROOT / "pyproject.toml"), project(path)
    assert core["version"] == nxcore.__version__ == found["version"]
    assert f"{core['name']}~={core['version']}" in found["dependencies"]
    assert core["requires-python"] == found["requires-python"]
    assert core["license"] == found["license"]


@pytest.mark.parametrize("path", PROJECTS, ids=lambda p: p.parent.name)
def test_a_plugin_is_named_after_its_folder(path):
    name, found = path.parent.name, project(path)
    assert found["name"] == f"nxcore-{name}"
    assert found["entry-points"]["nxcore"] == {name: f"nxcore_{name}"}
    assert (path.parent / "src" / f"nxcore_{name}").is_dir()


def test_the_cores_extras_pin_the_plugins():
    core = project(ROOT / "pyproject.toml")
    for path in PROJECTS:
        name = path.parent.name
        assert core["optional-dependencies"][name] == [f"nxcore-{name}~={core['version']}"]


@for_each("name", OPS)
def test_an_operator_is_one_file_of_its_name(name):
    module = sys.modules[f"nxcore.ops.{name}"]
    spec = module.SPEC
    assert spec.name == name
    assert re.match(rf"{name}: .+\.\n\n    \S", module.__doc__), "its docstring gives one line and the maths"
    assert spec is fakes.SPECS[name]


@for_each("name", sorted(fakes.SPECS))
def test_an_operator_has_samples_error_cases_and_a_documented_reference(name):
    spec = fakes.SPECS[name]
    assert spec.tagged("smoke")
    assert spec.errors
    for kind in (spec.samples, spec.errors):
        names = [s.name for s in kind]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]+", n) for n in names)
    known = {"smoke", "edge", "bench", "huge", "degenerate", "exact"}
    assert {t for s in spec.samples for t in s.tags} <= known
    for section in ("Parameters", "Returns", "Raises"):
        assert section in spec.reference.__doc__
    documented = re.split(r"Returns\n", spec.reference.__doc__)[0]
    assert all(re.search(rf"\b{p.name}\b", documented) for p in spec.params)


@for_each("name", fakes.DIFFERENTIABLE)
def test_a_gradient_is_an_operator_of_its_own(name):
    assert fakes.SPECS[name].gradient.op in fakes.SPECS
    assert set(fakes.SPECS[name].gradient.saves) <= {p.name for p in fakes.SPECS[name].params}


def test_operators_are_attributes_of_ops():
    assert "add" not in vars(nxcore.ops)
    assert nxcore.ops.add is nxcore.op("add")
    assert vars(nxcore.ops)["add"] is nxcore.op("add"), "the next one to ask doesn't wait for an answer"
    with pytest.raises(AttributeError, match=r"no operator is named 'ad'; did you mean 'add'\?"):
        nxcore.ops.ad  # noqa: B018


HOOKS = {n: f for n, f in vars(hookspecs).items() if hasattr(f, "nxcore_spec")}


def test_the_contract_is_small():
    assert set(HOOKS) == {"nxcore_backend", "nxcore_ops", "nxcore_doctor"}
    assert len(inspect.getsource(hookspecs).splitlines()) < 40


@pytest.mark.parametrize("name", HOOKS)
def test_the_docs_show_every_hook_with_its_arguments(name):
    page = ROOT / "docs" / "plugins.md"
    arguments = ", ".join(inspect.signature(HOOKS[name]).parameters)
    assert f"{name}({arguments})" in page.read_text(encoding="utf-8")


def undocumented(tree: ast.Module) -> list[str]:
    """Return the public names of a module, and of its public classes, that have no docstring."""
    missing = [] if ast.get_docstring(tree) else ["the module"]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    stack = [(node, "") for node in tree.body]
    while stack:
        node, within = stack.pop()
        if not isinstance(node, kinds) or node.name.startswith("_"):
            continue
        if any(ast.unparse(mark).endswith("overload") for mark in node.decorator_list):
            continue  # the function itself follows
        if not ast.get_docstring(node):
            missing.append(within + node.name)
        if isinstance(node, ast.ClassDef):
            stack.extend((child, f"{node.name}.") for child in node.body)
    return missing


@for_each("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_everything_public_is_documented(path):
    text = path.read_text(encoding="utf-8")
    assert undocumented(ast.parse(text)) == []


def test_undocumented_names_are_found():
    tree = ast.parse(
        '"""m."""\ndef f(): pass\nclass C:\n    """c."""\n    def g(self): pass\n    def _h(self): pass'
    )
    assert sorted(undocumented(tree)) == ["C.g", "f"]


def test_no_module_calls_print():
    for path in MODULES:
        calls = {
            n.func.id
            for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        assert "print" not in calls, path


def marks(*patterns: str) -> list[tuple[Path, str, re.Match[str]]]:
    """Return the lines with a mark of the linter: file, line and what was found there."""
    paths = sorted(p for pattern in patterns for p in ROOT.glob(pattern))
    lines = [(p, line) for p in paths for line in p.read_text(encoding="utf-8").splitlines()]
    return [(p, line, found) for p, line in lines if (found := MARK.search(line))]


def test_marks_of_the_linter_are_few():
    assert 0 < len(marks("nxcore/**/*.py")) < MARKS


def test_a_mark_of_the_linter_says_why():
    found = marks("nxcore/**/*.py", "plugins/*/*.py", "plugins/*/src/**/*.py")
    assert [(str(p), line) for p, line, mark in found if not (mark["codes"] and mark["reason"])] == []
