"""How busy a GPU is, as a library that stands in for the driver's says it."""

import ctypes
from types import SimpleNamespace

import pytest

from nxcore.spec.busy import busy
from tests.stand_ins import stand_in

ctypes_has = stand_in(ctypes)


def library(fails="", asked=None):
    """Return the three calls; the one named ``fails`` returns an error."""

    def handle(bus, _):
        (asked if asked is not None else []).append(bus)
        return int(fails == "handle")

    def rates(_, found):
        found._obj.gpu = 37
        return int(fails == "rates")

    return SimpleNamespace(
        nvmlInit_v2=lambda: int(fails == "init"),
        nvmlDeviceGetHandleByPciBusId_v2=handle,
        nvmlDeviceGetUtilizationRates=rates,
    )


@pytest.fixture
def device(cuda_answers):
    facts = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xAB, pci_device_id=1)
    cuda_answers(get_device_properties=lambda index: facts)
    return facts


def test_the_device_of_that_number_is_asked_for_by_its_place(device, ctypes_has):
    asked = []
    ctypes_has(CDLL=lambda name: library(asked=asked))
    assert busy(0) == pytest.approx(0.37)
    assert asked == [b"00000000:ab:01.0"]


@pytest.mark.parametrize("fails", ["init", "handle", "rates"])
def test_nothing_is_known_where_the_driver_refuses(fails, device, ctypes_has):
    ctypes_has(CDLL=lambda name: library(fails))
    assert busy(0) is None


@pytest.mark.parametrize("lacks", ["library", "place"])
def test_nothing_is_known_without_a_library_or_a_place(lacks, device, ctypes_has):
    def load(name):
        raise OSError

    ctypes_has(CDLL=load if lacks == "library" else lambda name: library())
    if lacks == "place":
        del device.pci_bus_id
    assert busy(0) is None
