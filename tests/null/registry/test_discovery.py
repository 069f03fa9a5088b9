"""One broken plugin never breaks the rest: it is reported once, with distribution, version and fix."""

import re
import warnings
from dataclasses import replace

import pytest

from nxcore.errors import PluginError
from nxcore.plugin import API_VERSION
from nxcore.registry.discovery import PluginWarning, discover
from nxcore.spec.kernel import Check
from tests.null import fakes
from tests.null.fakes import Entry, plugin
from tests.table import for_each


def good(name: str = "good", **hooks) -> Entry:
    """An entry point whose plugin brings a backend, an operator and a check."""
    return Entry(
        name,
        plugin(
            **{
                "nxcore_backend": lambda: fakes.backend(name, fakes.kernel("add")),
                "nxcore_ops": lambda: [fakes.twice(f"{name}_twice")],
                "nxcore_doctor": lambda: [Check(name, True, "fine")],
            }
            | hooks
        ),
    )


def kernel_of(op: str):
    return lambda: fakes.backend("bad", fakes.FakeKernel(op=op, target=""))


def lazily(error: Exception):
    def generator():
        yield fakes.twice("bad_twice")
        raise error

    return generator


def misspelt() -> Entry:
    return Entry("bad", plugin(nxcore_backends=lambda: fakes.backend("bad")))


BROKEN = {
    "import": (lambda: Entry("bad", ImportError("no toolkit")), "ImportError: no toolkit"),
    "import_of_another_kind": (lambda: Entry("bad", RuntimeError("boom")), "RuntimeError: boom"),
    "backend_raises": (lambda: good("bad", nxcore_backend=fakes.raising(OSError("x"))), "OSError: x"),
    "ops_raise": (lambda: good("bad", nxcore_ops=fakes.raising(OSError("x"))), "OSError: x"),
    "ops_raise_late": (lambda: good("bad", nxcore_ops=lazily(OSError("x"))), "OSError: x"),
    "ops_are_no_specs": (
        lambda: good("bad", nxcore_ops=lambda: [3]),
        "nxcore_ops must yield OpSpec, got int",
    ),
    "ops_are_taken": (
        lambda: good("bad", nxcore_ops=lambda: [fakes.twice("add")]),
        "operator 'add' comes from",
    ),
    "doctor_raises": (lambda: good("bad", nxcore_doctor=fakes.raising(OSError("x"))), "OSError: x"),
    "doctor_is_no_check": (
        lambda: good("bad", nxcore_doctor=lambda: ["x"]),
        "nxcore_doctor must yield Check, got str",
    ),
    "misspelt_hook": (misspelt, "unknown hook 'nxcore_backends'"),
    "stranger": (
        lambda: good("bad", nxcore_backend=kernel_of("ad")),
        "no operator is named 'ad'; did you mean 'add'?",
    ),
    "backend_is_taken": (
        lambda: good("bad", nxcore_backend=lambda: fakes.backend("a_good")),
        "backend 'a_good' comes",
    ),
    "backend_is_torch": (
        lambda: good("bad", nxcore_backend=lambda: fakes.backend("torch")),
        "backend 'torch' comes",
    ),
    "other_contract": (
        lambda: good("bad", nxcore_backend=lambda: replace(fakes.backend("bad"), api=API_VERSION + 1)),
        f"was written for version {API_VERSION + 1} of the plugin contract",
    ),
    "not_a_backend": (lambda: good("bad", nxcore_backend=lambda: "bad"), "must return a Backend, got str"),
}


@for_each("name", BROKEN)
def test_a_broken_plugin_is_left_out_and_the_rest_goes_on(name):
    make, reason = BROKEN[name]
    with pytest.warns(PluginWarning, match=re.escape(reason)) as caught:
        found = discover(found=[good("a_good"), make(), good("z_good")])
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.startswith("plugin 'bad' of nxcore-bad 3.2 is not loaded: ")
    assert "To fix it: pip install --upgrade nxcore-bad, or disable it: NXCORE_DISABLE=bad" in message
    assert {"torch", "a_good", "z_good"} <= set(found.backends)
    assert "bad" not in found.backends
    assert [c.name for c in found.checks] == ["a_good", "z_good"]
    [status] = found.refused
    assert (status.name, status.status, status.source.distribution) == ("bad", "failed", "nxcore-bad 3.2")
    assert reason in status.reason
    assert "NXCORE_DISABLE=bad" in status.hint


@for_each("name", BROKEN)
def test_strict_raises_at_a_broken_plugin(name):
    make, reason = BROKEN[name]
    with pytest.raises(PluginError, match=re.escape(reason)) as caught:
        discover(found=[good("a_good"), make()], strict=True)
    assert (caught.value.plugin, caught.value.distribution) == ("bad", "nxcore-bad 3.2")
    assert "To fix it:" in str(caught.value)


def test_a_broken_plugins_operators_stay_out():
    with pytest.warns(PluginWarning, match="OSError"):
        found = discover(found=[good("bad", nxcore_ops=lazily(OSError("x")))])
    assert set(found.ops) == set(fakes.SPECS)


def test_the_traceback_of_a_foreign_error_is_kept():
    with pytest.warns(PluginWarning, match="OSError"):
        found = discover(found=[good("bad", nxcore_backend=fakes.raising(OSError("x")))])
    assert found.refused[0].reason.startswith("Traceback")


def test_two_broken_plugins_are_each_reported():
    with pytest.warns(PluginWarning, match="is not loaded") as caught:
        found = discover(found=[Entry("b", ImportError("1")), Entry("a", ImportError("2")), misspelt()])
    assert [s.name for s in found.refused] == ["a", "b", "bad"]
    assert len(caught) == 3


def test_a_good_plugin_brings_all_it_has():
    found = discover(found=[good()])
    assert set(found.ops) == {*fakes.SPECS, "good_twice"}
    assert list(found.backends) == ["torch", "inductor", "good"]
    assert found.sources["good"].distribution == "nxcore-good 3.2"
    assert found.sources["good"].file == "/nowhere/made_of_air.py"
    assert [c.name for c in found.checks] == ["good"]
    assert [b.label(k) for b, k in found.kernels("good_twice")] == ["torch", "inductor"]


def test_a_plugin_without_hooks_is_harmless():
    found = discover(found=[Entry("bare", plugin())])
    assert list(found.backends) == ["torch", "inductor"]
    assert found.refused == []


def test_a_backend_may_serve_another_plugins_operator():
    early = good("a", nxcore_backend=lambda: fakes.backend("a", fakes.FakeKernel(op="z_twice", target="")))
    found = discover(found=[good("z"), early])
    assert [b.label(k) for b, k in found.kernels("z_twice")] == ["torch", "inductor", "a"]


def test_plugins_come_in_order_of_name():
    found = discover(found=[good("c"), good("a"), good("b")])
    assert list(found.backends) == ["torch", "inductor", "a", "b", "c"]


def twin(dist: str) -> Entry:
    return Entry("good", plugin(nxcore_backend=lambda: fakes.backend(dist)), dist=dist)


def test_of_two_plugins_with_one_name_the_second_is_left_out_and_both_are_named():
    says = "plugin 'good' comes from b-dist 3.2 and from a-dist 3.2; the former is not loaded. "
    says += "To fix it: pip uninstall b-dist"
    with pytest.warns(PluginWarning, match=re.escape(says)) as caught:
        found = discover(found=[twin("b-dist"), twin("a-dist")])
    assert len(caught) == 1
    assert list(found.backends) == ["torch", "inductor", "a-dist"]
    [status] = found.refused
    assert (status.status, status.source.distribution) == ("failed", "b-dist 3.2")


def test_strict_raises_at_two_plugins_with_one_name():
    with pytest.raises(PluginError, match=r"plugin 'good' comes from b-dist 3\.2 and from a-dist 3\.2"):
        discover(found=[twin("b-dist"), twin("a-dist")], strict=True)


def test_one_distribution_seen_twice_is_no_quarrel():
    found = discover(found=[good(), good()])
    assert list(found.backends) == ["torch", "inductor", "good"]
    assert found.refused == []


def test_one_distribution_has_two_backends():
    """docs/plugins.md shows the entry points."""
    entries = [
        Entry(
            name,
            plugin(nxcore_backend=lambda name=name: fakes.backend(name, fakes.kernel("add"))),
            dist="nxcore-mine",
        )
        for name in ("mine", "mine-gpu")
    ]
    for entry in entries:
        entry.value = f"nxcore_{entry.name.replace('-', '.')}"
    found = discover(found=entries)
    assert {"mine", "mine-gpu"} <= found.backends.keys()
    assert {found.sources[name].distribution for name in ("mine", "mine-gpu")} == {"nxcore-mine 3.2"}
    assert {name: len(found.backends[name].kernels) for name in ("mine", "mine-gpu")} == {
        "mine": 1,
        "mine-gpu": 1,
    }


def test_a_disabled_plugin_is_not_imported():
    entry = good()
    found = discover(found=[entry], disable=frozenset({"good"}))
    assert entry.loaded == 0
    [status] = found.refused
    assert (status.status, status.reason) == ("disabled", "disabled by NXCORE_DISABLE")
    assert status.hint == "unset NXCORE_DISABLE"


def test_only_allowed_plugins_are_imported():
    a, b = good("a"), good("b")
    found = discover(found=[a, b], allow=frozenset({"a"}))
    assert (a.loaded, b.loaded) == (1, 0)
    assert list(found.backends) == ["torch", "inductor", "a"]
    assert found.statuses()["b"].reason == "disabled by NXCORE_BACKENDS"


def test_disabled_wins_over_allowed():
    found = discover(found=[good()], allow=frozenset({"good"}), disable=frozenset({"good"}))
    assert found.refused[0].reason == "disabled by NXCORE_DISABLE"


def test_an_empty_list_allows_none():
    assert list(discover(found=[good()], allow=frozenset()).backends) == ["torch", "inductor"]


def test_a_plugin_without_distribution_is_told_apart():
    entry = good()
    entry.dist = None
    assert discover(found=[entry]).sources["good"].distribution == "an unknown distribution"


def test_nothing_warns_when_nothing_is_broken():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        discover(found=[good("a"), good("b")])
