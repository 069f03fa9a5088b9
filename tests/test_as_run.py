"""A benchmark that sets threads or variables says why: what users are promised is taken as users run."""

import ast
import io
import re
import tokenize
from pathlib import Path

from tests.table import for_each

FILES = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))
REASON = re.compile(r"# As set: \w")


def sets(node: ast.AST) -> bool:
    """Return whether a node sets a number of threads, an affinity, or a variable of the environment."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("set_num_threads", "set_num_interop_threads", "sched_setaffinity", "putenv"):
            return True
        return node.func.attr in ("setdefault", "update") and ast.unparse(node.func.value) == "os.environ"
    if isinstance(node, ast.Assign):
        return any(ast.unparse(target).startswith("os.environ[") for target in node.targets)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return ast.unparse(node.left) == "os.environ"
    return isinstance(node, ast.Constant) and str(node.value).endswith("_NUM_THREADS")


def unexplained(source: str) -> list[str]:
    """Return the functions, or the module, that set something and hold no reason."""
    tree = ast.parse(source)
    reasons = [
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and REASON.match(token.string)
    ]
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    found = []
    for node in filter(sets, ast.walk(tree)):
        around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
        first, last = (
            (around[-1].lineno, around[-1].end_lineno or 0) if around else (node.lineno - 3, node.lineno)
        )
        if not any(first <= line <= last for line in reasons):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@for_each("path", FILES, ids=lambda path: path.stem)
def test_what_a_benchmark_sets_has_a_reason(path):
    assert unexplained(path.read_text(encoding="utf-8")) == []


def test_a_setting_without_a_reason_is_found():
    bare = "import os, torch\ndef run():\n    torch.set_num_threads(1)\n    os.environ['A'] = '1'\n"
    assert len(unexplained(bare)) == 2
    assert unexplained(bare.replace("    torch", "    # As set: the host's cost.\n    torch")) == []
    assert len(unexplained("X = {'OMP_NUM_THREADS': '1'}\n")) == 1


def test_the_program_that_users_are_promised_has_torchs_own_threads():
    (program,) = (path for path in FILES if path.stem == "program")
    assert "set_num_threads" not in program.read_text(encoding="utf-8")
