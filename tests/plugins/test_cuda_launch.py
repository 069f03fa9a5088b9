"""The CUDA plugin's two launchers, against a driver that only writes down what it is told."""

import ctypes
import functools
import shutil
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("nxcore_cuda")

from nxcore_cuda.machine import handle, load, native
from nxcore_cuda.machine.compile import run
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, ticket

from tests.stand_ins import stand_in

handle_ctypeshandle_has = stand_in(handle.CtypesHandle)
load_has = stand_in(load)

DRIVER = Path(__file__).with_name("cuda_driver.c")
CONTEXT, STREAM, LAYOUT = 0x7000, 0xFFFF_8000_0000_1234, "@qf4i0q"
VALUES = (2**40, 1.5, 1, 2, 3, 4)


class Seen(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("launches", "pushes", "pops")),
        *((name, ctypes.c_void_p) for name in ("function", "stream", "context")),
        ("shape", ctypes.c_uint * 7),
        ("block", ctypes.c_ubyte * 64),
    )

    def values(self, pointers):
        return struct.unpack_from(f"@{pointers}P{LAYOUT[1:]}", bytes(self.block))


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    folder = tmp_path_factory.mktemp("driver")
    run([compiler, "-O1", "-shared", "-fPIC", "-o", folder / "driver.so", DRIVER], "the driver")
    library = ctypes.CDLL(str(folder / "driver.so"))
    library.cuLaunchKernel.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    library.reset.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


@pytest.fixture(scope="module")
def extension(driver, tmp_path_factory):
    if reason := native.why_not_built():
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("launcher") / "_launch.abi3.so"
    shutil.copy(native.build(), path)  # a copy of its own: the plugin's keeps the driver that it has
    module = native.imported(path)
    found = [ctypes.cast(getattr(driver, name), ctypes.c_void_p).value for name in native.FUNCTIONS]
    module.setup(*found, lambda index: STREAM + index)
    return module


@pytest.fixture(params=["C", "ctypes"])
def launcher(request, driver, handle_ctypeshandle_has):
    """Return what makes handles and guards, with a driver to look into."""
    driver.reset(CONTEXT, 0)
    if request.param == "C":
        found = request.getfixturevalue("extension")
    else:
        handle_ctypeshandle_has(driver=driver, raw_stream=staticmethod(lambda index: STREAM + index))
        found = SimpleNamespace(Handle=handle.CtypesHandle, Guarded=handle.Guarded)
    pack = struct.Struct(LAYOUT).pack

    def make(pointers=2, function=0x5000, values=VALUES):
        shape = (9, 8, 7, 64, 2, 1)
        driver.resize(8 * pointers + struct.calcsize(LAYOUT))
        return found.Handle(function, CONTEXT, 3, shape, 1024, pointers, pack(*values), pack, "probe__float")

    return SimpleNamespace(
        handle=make, guard=found.Guarded, seen=Seen.in_dll(driver, "seen"), reset=driver.reset
    )


class TestHandle:
    def test_what_the_driver_is_told(self, launcher):
        x, y = torch.ones(3), torch.ones(3)
        assert launcher.handle()(x, y) is None
        seen = launcher.seen
        assert (seen.launches, seen.function, seen.stream) == (1, 0x5000, STREAM + 3)
        assert list(seen.shape) == [9, 8, 7, 64, 2, 1, 1024]
        assert seen.values(2) == (x.data_ptr(), y.data_ptr(), *VALUES)
        assert seen.pushes == seen.pops == 0

    def test_none_is_a_null_pointer(self, launcher):
        x = torch.ones(3)
        launcher.handle(3)(None, x, None)
        assert launcher.seen.values(3)[:3] == (0, x.data_ptr(), 0)

    def test_a_tail_holds_for_one_call(self, launcher):
        x, launch = torch.ones(3), launcher.handle()
        launch(x, x, tail=(5, 2.5, 6, 7, 8, 9))
        assert launcher.seen.values(2)[2:] == (5, 2.5, 6, 7, 8, 9)
        launch(x, x, tail=None)
        assert launcher.seen.values(2)[2:] == VALUES

    def test_a_thread_without_a_context(self, launcher):
        x, launch = torch.ones(3), launcher.handle()
        thread = threading.Thread(target=launch, args=(x, x))
        thread.start()
        thread.join()
        assert (launcher.seen.launches, launcher.seen.context) == (1, CONTEXT)
        assert launcher.seen.pushes == launcher.seen.pops == 1

    def test_another_devices_context(self, launcher, handle_ctypeshandle_has):
        handle_ctypeshandle_has(several=True)
        launcher.reset(0x9000, 0)
        launcher.handle()(torch.ones(3), torch.ones(3))
        assert (launcher.seen.context, launcher.seen.pushes, launcher.seen.pops) == (CONTEXT, 1, 1)

    def test_a_refused_launch(self, launcher):
        launcher.reset(CONTEXT, 701)
        message = r"probe__float: cuLaunchKernel returned CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES \(701\)"
        with pytest.raises(RuntimeError, match=message):
            launcher.handle()(torch.ones(3), torch.ones(3))

    def test_other_arguments(self, launcher):
        launch, x = launcher.handle(), torch.ones(3)
        with pytest.raises(TypeError, match="probe__float takes 2 tensors, got 1"):
            launch(x)
        with pytest.raises(struct.error):
            launch(x, x, tail=(1, 2))
        with pytest.raises(AttributeError, match="data_ptr"):
            launch(x, 5)
        with pytest.raises(TypeError):
            launch(x, x, tails=(1,))
        assert launcher.seen.launches == 0

    def test_threads_share_a_handle(self, launcher):
        launch = launcher.handle(1)
        tensors = [torch.ones(3) for _ in range(4)]

        def work(x, number):
            for _ in range(500):
                launch(x, tail=(number, 0.0, 0, 0, 0, 0))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, tensors, range(4)))


class TestGuarded:
    def test_alignment_chooses(self, launcher):
        vector, scalar = launcher.handle(function=1), launcher.handle(function=2)
        launch, x = launcher.guard(vector, scalar), torch.ones(64)
        for tensors, function in (((x, None), 1), ((x[4:], x), 1), ((x, x[1:]), 2), ((x[2:], x), 2)):
            launch(*tensors)
            assert launcher.seen.function == function
            assert launcher.seen.values(2)[:2] == tuple(0 if t is None else t.data_ptr() for t in tensors)

    def test_no_vector_launch(self, launcher):
        launch = launcher.guard(None, launcher.handle(function=2))
        launch(torch.ones(64), torch.ones(64), tail=VALUES)
        assert launcher.seen.function == 2


class TestLoad:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch, load_has, driver):
        driver.reset(None, 0)
        monkeypatch.setattr(load.ctypes, "CDLL", lambda _: driver)
        for name in ("driver", "capability", "context", "_library", "_image", "kernel"):
            monkeypatch.setattr(load, name, functools.cache(getattr(load, name).__wrapped__))
        load_has(_granted={})
        self.images = []
        load_has(image=lambda *args: self.images.append(args) or b"code")

    def test_a_kernel_is_compiled_and_loaded_once(self, driver):
        loads = ctypes.c_int.in_dll(driver, "loads")
        before, instance = loads.value, Instance("f")
        assert load.kernel(instance, 2, 0, 48) == load.kernel(instance, 2, 0, 48) == 0x300000001
        assert self.images == [(instance, (9, 0))]
        assert loads.value == before + 1
        mode = ctypes.c_int.in_dll(driver, "mode")
        assert mode.value == 1, "loading leaves the mode of captures as it was"
        assert load.context(2) == 0x7002
        seen = Seen.in_dll(driver, "seen")
        assert seen.pushes == seen.pops == 1, "the driver is asked once"

    def test_much_shared_memory_is_asked_for(self, driver):
        asked = ctypes.c_int.in_dll(driver, "asked")
        asked.value = 0
        load.kernel(Instance("f"), 0, 48 * 1024, 48)
        assert asked.value == 0
        load.kernel(Instance("f"), 0, 100_000, 48)
        assert asked.value == 100_000
        load.kernel(Instance("f"), 0, 60_000, 48)  # another launch of the same function, which wants less
        assert asked.value == 100_000
        message = r"f__plain with 300000 bytes of shared memory: cuFuncSetAttribute returned"
        with pytest.raises(load.DriverError, match=message):
            load.kernel(Instance("f"), 0, 300_000, 48)

    def test_a_kernel_s_own_shared_memory_counts(self, driver):
        asked, own = ctypes.c_int.in_dll(driver, "asked"), ctypes.c_int.in_dll(driver, "own")
        asked.value, own.value = 0, 4
        try:
            load.kernel(Instance("f"), 0, 48 * 1024 - 4, 48)
            assert asked.value == 0
            load.kernel(Instance("f"), 0, 48 * 1024, 48)
            assert asked.value == 48 * 1024
        finally:
            own.value = 0

    def test_refusals(self, load_has):
        with pytest.raises(ValueError, match="f__plain: its arguments have 48 bytes, got 40"):
            load.kernel(Instance("f"), 0, 0, 40)
        message = (
            r"g__plain: cuLibraryGetKernel returned CUDA_.* \(500\): in words; the driver is for CUDA 12.8"
        )
        with pytest.raises(load.DriverError, match=message):
            load.kernel(Instance("g"), 0, 0, 48)
        load_has(image=lambda *_: b"broken")
        load._image.cache_clear()
        with pytest.raises(load.DriverError, match="f__plain: cuLibraryLoadData returned"):
            load.kernel(Instance("f"), 0, 0, 48)

    def test_an_old_driver(self, driver, load_has):
        load_has(LEAST_DRIVER=13000)
        with pytest.raises(
            load.DriverError, match=r"needs a driver for CUDA 12 or later, found .* CUDA 12.8"
        ):
            load.kernel(Instance("f"), 0, 0, 48)


class TestExtension:
    def test_refusals(self, extension):
        with pytest.raises(RuntimeError, match="never bound"):
            extension.Handle.__new__(extension.Handle)()
        with pytest.raises(TypeError):
            extension.Guarded(None, None)
        with pytest.raises(ValueError, match="at most 32768 bytes of parameters, got 40000"):
            extension.Handle(1, 2, 0, (1,) * 6, 0, 5000, b"", None, "f")

    def test_nothing_leaks(self, extension, driver):
        driver.reset(CONTEXT, 0)
        pack = struct.Struct(LAYOUT).pack
        name, x = "a name of its own", torch.ones(3)
        import sys

        before = sys.getrefcount(name), sys.getrefcount(pack)
        for _ in range(100):
            one = extension.Handle(1, CONTEXT, 0, (1,) * 6, 0, 1, pack(*VALUES), pack, name)
            extension.Guarded(one, one)(x, tail=VALUES)
        del one
        assert (sys.getrefcount(name), sys.getrefcount(pack)) == before

    def test_no_compiler(self, monkeypatch):
        monkeypatch.setattr(shutil, "which", lambda *_: None)
        assert native.why_not_built() == "no C compiler on PATH"


class TestLaunch:
    def test_shapes(self):
        instance, device = Instance("f", threads=128), torch.device("cpu")
        with pytest.raises(
            ValueError, match=r"needs a grid of 1 to \(2147483647, 65535, 65535\), got \(1, 65536\)"
        ):
            Launch(instance, device, (1, 65536), pointers=1)
        with pytest.raises(ValueError, match=r"needs a grid of 1 to .* got \(0,\)"):
            Launch(instance, device, 0, pointers=1)
        with pytest.raises(ValueError, match="takes blocks of at most 128 threads, got 256"):
            Launch(instance, device, 1, (32, 8), pointers=1)

    def test_tickets(self, device):
        found = ticket(device)
        assert (found.dtype, found.device.type) == (torch.int32, device.type)
        assert found.numel() >= 64  # more if an earlier test asked for more
        assert ticket(device) is found
        assert ticket(device, 1000).numel() >= 1000
        assert not ticket(device, 1000).any()


def test_the_doctor_answers_after_a_kernel_named_like_a_builtin_was_imported():
    """``nxcore_cuda.sum`` becomes an attribute of the package, where ``sum`` was the builtin before."""
    import importlib

    import nxcore_cuda

    importlib.import_module("nxcore_cuda.sum")
    assert [check.name for check in nxcore_cuda.nxcore_doctor()][:1] == ["cuda device"]
