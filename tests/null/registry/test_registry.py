"""Names are unique, strangers are refused, and a probe is asked once."""

from dataclasses import replace

import pytest

from nxcore.errors import BackendUnavailableError, PluginError, UnknownBackendError, UnknownOperatorError
from nxcore.plugin import API_VERSION
from nxcore.registry.registry import BackendStatus, Source
from nxcore.spec.kernel import YES, Backend, Kernel, Verdict, accept_all, no, simulated
from tests.null import fakes

HERE = Source("mine", "nxcore-mine 2.0", "/x.py")


def refuses(backend, match, registry=None):
    registry = registry or fakes.registry()
    before = dict(registry.backends)
    with pytest.raises(PluginError, match=match):
        registry.add_backend(backend, HERE)
    assert registry.backends == before


def test_a_source_reads_as_plugin_and_distribution():
    assert str(HERE) == "'mine' of nxcore-mine 2.0"


def test_what_is_no_backend_is_refused():
    refuses("fake", "nxcore_backend must return a Backend, got str")


def test_a_backend_of_another_contract_is_refused():
    old = replace(fakes.backend(), api=API_VERSION + 1)
    refuses(
        old, f"backend 'fake' was written for version {API_VERSION + 1} of the plugin contract, this core has"
    )
    refuses(Backend("x", lambda: YES), "version 0 of the plugin contract")


def test_a_name_that_is_taken_is_refused_naming_both():
    registry = fakes.registry(fakes.backend())
    refuses(
        fakes.backend(),
        "'fake' comes from 'mine' of nxcore-mine 2.0 and from 'fake' of nxcore-fake 1.0",
        registry,
    )


def test_torch_can_not_be_replaced():
    refuses(
        fakes.backend("torch"),
        "backend 'torch' comes from 'mine' .* and from 'core' of nxcore-kernels; remove one",
    )


def test_a_kernel_for_a_stranger_is_refused_with_the_nearest_name():
    kernel = fakes.FakeKernel(op="softmax_sun", target="")
    refuses(fakes.backend("mine", kernel), "no operator is named 'softmax_sun'; did you mean 'softmax_sum'?")


def test_two_kernels_of_one_label_are_refused():
    refuses(
        fakes.backend("mine", *[fakes.kernel("add", variant="a")] * 2),
        "two kernels of 'add' have the label 'mine-a'",
    )


def test_kernels_of_different_variants_live_together():
    registry = fakes.registry(fakes.backend("mine", fakes.kernel("add", variant="a"), fakes.kernel("add")))
    assert [b.label(k) for b, k in registry.kernels("add")] == ["torch", "mine-a", "mine"]


def test_torch_comes_first_with_all_its_idioms():
    registry = fakes.registry(fakes.backend())
    labels = [b.label(k) for b, k in registry.kernels("softmax_sum")]
    assert labels == ["torch", "torch-einsum", "torch-in-place", "fake"]


def test_operators_come_together_or_not_at_all():
    registry = fakes.registry()
    with pytest.raises(
        PluginError, match=r"operator 'add' comes from .*mine 2.0 and from 'core' of nxcore-kernels; remove"
    ):
        registry.add_ops([fakes.twice(), fakes.twice("add")], HERE)
    assert "twice" not in registry.ops


def test_an_operator_given_twice_by_one_plugin_is_refused():
    with pytest.raises(PluginError, match="operator 'twice' comes from"):
        fakes.registry().add_ops([fakes.twice(), fakes.twice()], HERE)


def test_what_is_no_spec_is_refused():
    with pytest.raises(PluginError, match="nxcore_ops must yield OpSpec, got int"):
        fakes.registry().add_ops([3], HERE)


def test_unknown_names_offer_the_nearest():
    registry = fakes.registry(fakes.backend())
    with pytest.raises(UnknownOperatorError, match=r"no operator is named 'ad'; did you mean 'add'\?"):
        registry.spec("ad")
    with pytest.raises(UnknownBackendError, match=r"no backend is named 'fak'; did you mean 'fake'\?"):
        registry.backend("fak")


def test_a_backend_that_was_left_out_is_not_said_to_be_unknown():
    registry = fakes.registry()
    registry.refused.append(BackendStatus("sad", "failed", "Traceback\nOSError: no", "reinstall", HERE))
    with pytest.raises(
        BackendUnavailableError, match=r"^backend 'sad' is failed: OSError: no \(reinstall\)$"
    ) as caught:
        registry.backend("sad")
    assert not isinstance(caught.value, UnknownBackendError)
    assert (caught.value.backend, caught.value.reason) == ("sad", "Traceback\nOSError: no")


def test_a_probe_is_asked_once():
    probe = fakes.Counter(lambda: no("no GPU", hint="buy one"))
    backend = fakes.backend("fake", fakes.kernel("add"), probe=probe)
    registry = fakes.registry(backend)
    assert not registry.probe(backend)
    assert registry.probe(backend, backend.kernels[0]) == no("no GPU", hint="buy one")
    registry.statuses()
    assert probe.count == 1


def test_a_kernels_own_probe_is_asked_once_and_counts_for_it_alone():
    probe = fakes.Counter(lambda: no("too old"))
    backend = fakes.backend("fake", fakes.kernel("add", probe=probe), fakes.kernel("sum"))
    registry = fakes.registry(backend)
    assert [registry.probe(backend, backend.kernels[0]).reason for _ in range(2)] == ["too old"] * 2
    assert registry.probe(backend, backend.kernels[1])
    assert registry.probe(backend)
    assert probe.count == 1


def test_a_simulated_machine_makes_its_kernels_simulated():
    backend = fakes.backend("fake", fakes.kernel("add", probe=lambda: YES), probe=lambda: simulated("slow"))
    verdict = fakes.registry(backend).probe(backend, backend.kernels[0])
    assert (verdict.ok, verdict.simulated, verdict.reason) == (True, True, "slow")


def test_a_probe_that_raises_is_a_no():
    backend = fakes.backend(probe=fakes.raising(OSError("no driver")))
    assert fakes.registry(backend).probe(backend) == Verdict(False, "its probe raised OSError: no driver")


def test_a_probe_that_answers_nonsense_is_a_no():
    backend = fakes.backend(probe=lambda: True)
    assert fakes.registry(backend).probe(backend).reason == "its probe must return a Verdict, got bool"


def test_statuses_tell_ready_unavailable_simulated_and_left_out():
    registry = fakes.registry(
        fakes.backend("good"),
        fakes.backend("bad", probe=lambda: no("no GPU", hint="buy one")),
        fakes.backend("slow", probe=lambda: simulated("interpreter")),
    )
    left_out = BackendStatus("sad", "failed", "broken", "reinstall", HERE)
    second = BackendStatus("good", "failed", "twice", "uninstall one", HERE)
    registry.refused.extend([left_out, second])
    found = registry.statuses()
    assert list(found) == ["torch", "good", "bad", "slow", "sad", "good (nxcore-mine 2.0)"]
    assert (found["good"].status, found["good"].operators) == ("ready", tuple(sorted(fakes.SPECS)))
    assert (found["bad"].status, found["bad"].reason, found["bad"].hint) == (
        "unavailable",
        "no GPU",
        "buy one",
    )
    assert (found["slow"].status, found["slow"].simulated) == ("ready", True)
    assert found["sad"] is left_out
    assert found["good"].to_dict()["source"]["distribution"] == "nxcore-good 1.0"


def test_a_kernels_target_is_imported_on_first_use():
    kernel = Kernel("add", "collections:OrderedDict")
    assert "plan" not in vars(kernel)
    assert kernel.plan.__name__ == "OrderedDict"


def test_a_target_that_is_not_there_is_the_plugins_fault():
    with pytest.raises(
        PluginError, match="kernel target 'math:nothing': module 'math' has no attribute 'nothing'"
    ):
        Kernel("add", "math:nothing").plan  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        Kernel("add", "no_such_module:plan").plan  # noqa: B018


def test_verdicts_are_conditions():
    assert YES
    assert accept_all(None)
    assert simulated("x")
    assert not no("because")
    assert no("because", hint="do").to_dict() == {
        "ok": False,
        "reason": "because",
        "hint": "do",
        "simulated": False,
        "code": "other",
    }
