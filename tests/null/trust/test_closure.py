"""Closures: what a definition reaches by names counts; comments, formatting and other code don't."""

import ast
import textwrap

import pytest

from nxcore.trust.closure import Sources, digest
from nxcore.trust.device_code import normalised
from nxcore.trust.syntax import APART, Spelt

FILES = {
    "__init__.py": "from mine.planner import plan\n",
    "planner.py": """
        '''A planner.'''
        import math
        from external import anything
        from mine import helper, tables
        from mine.tables import BLOCKS as sizes

        def plan(problem: int) -> int:
            '''Say what it does.'''
            from mine.late import rounded
            if problem < 0:
                raise ValueError(f"needs a number of at least 0, got {problem}")
            return helper.scaled(problem) + rounded(sizes[0]) + math.floor(anything(launch("kernel")))

        def launch(name):
            return name

        def unused():
            return tables.OTHER
        """,
    "helper.py": """
        import functools
        FACTOR = 2

        @functools.cache
        def scaled(x: float) -> float:
            return FACTOR * x

        def other(x):
            return x - 1
        """,
    "tables.py": "BLOCKS = (1, 2)\nOTHER = 3\n",
    "late.py": "def rounded(x):\n    return round(x)\n",
    "kernel.cu": '#include "common.cuh"\n__global__ void kernel() { shared(); }  // launched by plan\n',
    "common.cuh": "/* both */\n#pragma once\n__device__ void shared() { }\n",
    "other.cu": "__global__ void other() { }\n",
}

ALIKE = {
    "a comment": ("planner.py", "from mine import", "# a comment\nfrom mine import"),
    "a docstring": ("planner.py", "Say what it does.", "Say it in other words."),
    "formatting": ("planner.py", "return name", "return (\n        name\n    )  # noqa"),
    "quotes": ("planner.py", '"kernel"', "'kernel'"),
    "annotations": ("planner.py", "problem: int) -> int", "problem: float) -> object"),
    "what an error says": ("planner.py", "at least 0, got", "0 or more, got"),
    "a function that isn't reached": ("planner.py", "tables.OTHER", "tables.OTHER + 1"),
    "a function of a module that is used": ("helper.py", "x - 1", "x - 2"),
    "a constant that isn't reached": ("tables.py", "OTHER = 3", "OTHER = 4"),
    "a comment of device code": ("kernel.cu", "// launched by plan", "// and more\n"),
    "formatting of device code": ("kernel.cu", "{ shared(); }", "{\n  shared ( ) ;\n}"),
    "a comment of a header": ("common.cuh", "/* both */", "/* one,\n two */"),
    "device code that isn't named": ("other.cu", "other()", "another()"),
}

OTHERS = {
    "the arithmetic": ("planner.py", "+ rounded", "- rounded"),
    "a function that is called": ("helper.py", "FACTOR * x", "FACTOR + x"),
    "a constant of a function that is called": ("helper.py", "FACTOR = 2", "FACTOR = 3"),
    "a decorator": ("helper.py", "@functools.cache", "@functools.lru_cache"),
    "a table that an import renames": ("tables.py", "(1, 2)", "(1, 4)"),
    "a module that is imported late": ("late.py", "round(x)", "int(x)"),
    "where an import is from": ("planner.py", "from external import", "from elsewhere import"),
    "device code": ("kernel.cu", "shared();", "shared(); shared();"),
    "a header of device code": ("common.cuh", "{ }", "{ int x; }"),
    "a directive": ("common.cuh", "#pragma once", "#pragma unroll"),
    "a file of device code": ("planner.py", 'launch("kernel")', 'launch("other")'),
}


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text))
    return folder


def identity(folder, *targets):
    return Sources({folder.name: folder}).closure(targets or ("mine.planner:plan",)).digest


def edit(folder, name, was, now):
    text = (folder / name).read_text()
    assert was in text
    (folder / name).write_text(text.replace(was, now))


@pytest.mark.parametrize("edited", ALIKE.values(), ids=ALIKE)
def test_what_runs_alike_has_the_same_digest(package, edited):
    before = identity(package)
    edit(package, *edited)
    assert identity(package) == before


@pytest.mark.parametrize("edited", OTHERS.values(), ids=OTHERS)
def test_what_runs_otherwise_has_another(package, edited):
    before = identity(package)
    edit(package, *edited)
    assert identity(package) != before


def test_a_definition_may_move(package):
    before = identity(package)
    (package / "inner").mkdir()
    (package / "inner" / "__init__.py").touch()
    (package / "helper.py").rename(package / "inner" / "helper.py")
    edit(
        package,
        "planner.py",
        "from mine import helper, tables",
        "from mine import tables\nfrom mine.inner import helper",
    )
    assert identity(package) == before


def test_an_import_through_another_module_is_followed(package):
    reached = Sources({"mine": package}).closure(["mine:plan"]).places
    assert ("mine.helper", "FACTOR") in reached
    assert identity(package, "mine:plan") == identity(package)


def test_two_functions_of_one_name_are_told_apart(package):
    edit(
        package,
        "tables.py",
        "OTHER",
        "from mine.helper import scaled as kept\ndef scaled(x):\n    return 0\nOTHER",
    )
    edit(package, "planner.py", "return helper.scaled", "tables.scaled(1); return helper.scaled")
    before = identity(package)
    edit(
        package,
        "planner.py",
        "tables.scaled(1); return helper.scaled",
        "helper.scaled(1); return tables.scaled",
    )
    assert identity(package) != before


def test_a_module_that_is_passed_on_counts_whole(package):
    edit(package, "planner.py", "return name", "return (name, helper)")
    before = identity(package)
    edit(package, "helper.py", "x - 1", "x - 2")
    assert identity(package) != before


def test_effects_of_an_import_count(package):
    before = identity(package)
    (package / "helper.py").write_text(
        "import numpy\nnumpy.seterr(all='ignore')\n" + (package / "helper.py").read_text()
    )
    assert identity(package) != before


def test_halts_count_by_the_names_used(package):
    def halted(name="mine.helper"):
        return Sources({"mine": package}).closure(["mine.planner:plan"], halts=(name,)).digest

    before = halted()
    edit(package, "helper.py", "FACTOR = 2", "FACTOR = 3")
    assert halted() == before
    edit(package, "planner.py", "helper.scaled(problem)", "helper.other(problem)")
    assert halted() != before


def test_a_module_without_a_source_has_no_digest(package):
    assert identity(package, "nowhere_at_all:plan") == ""
    assert identity(package, "mine.nowhere:plan") == ""


def test_arguments_of_a_spec_that_decide_nothing_are_left_out(package):
    (package / "ops.py").write_text("SPEC = OpSpec(name='a', reference=reference, cost=lambda x: 1)\n")
    sources = Sources({"mine": package})
    whole, apart = (sources.closure(["mine.ops:SPEC"], apart=names).digest for names in (frozenset(), APART))
    edit(package, "ops.py", "lambda x: 1", "lambda x: 2")
    sources = Sources({"mine": package})
    assert sources.closure(["mine.ops:SPEC"], apart=APART).digest == apart
    assert sources.closure(["mine.ops:SPEC"]).digest != whole


def test_device_code_keeps_its_tokens_apart():
    assert normalised("a+ +b") != normalised("a++b")
    assert normalised("int x;") != normalised("intx;")
    assert normalised('"a  // b"') == '"a  // b"'
    assert normalised("#define A 1\\\n + 2\nint x;") == "# define A 1 + 2\nint x ;"
    assert normalised("#define A\n1") != normalised("#define A 1")
    assert normalised("x = 1e-3f;") == "x = 1e-3f ;"


SYNTAX = """
@jit(fastmath=True)
def f(a, /, b: constexpr = -1, *c, d=1e-3, **e) -> int:
    global g
    with a as b, c: pass
    for i, *j in b[1:2, ::3]:
        if (k := i) not in {1, 2} and not j: continue
    else:
        return f"{a!r:>{b}} {c=}" 'x', b'y'
    try:
        yield from (x async for x in y if x if not x)
    except* (A, B) as error:
        raise C from error
    match a:
        case {"k": [1, *_], **rest} | K(x=2) if rest: del a, b.c
    return lambda *x: {**x, 1: x} if x else [not None, ..., True, 0, 1j, 0xff, "it's"]
async def h():
    async with a: await b
class D(E, metaclass=F):
    x: int = 0
    y: int
    z = w = u, = [x @ y // z]
    x += ~1
    assert x, "message"
"""


def test_every_python_spells_syntax_alike():
    spelt = Spelt()
    for statement in ast.parse(SYNTAX).body:
        spelt.add(statement)
    assert digest(spelt.text) == "e60b786d0413bafcbdef8cbf3001c08c", (
        "every record is stale where this changes: see identity.FORMAT"
    )
