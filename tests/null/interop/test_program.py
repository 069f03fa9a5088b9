"""Launches are repeated without the interpreter: with a call's tensors, or not at all."""

import ctypes
import struct

import pytest
import torch

from nxcore.interop import native, program
from nxcore.plugin import Launched, note, sums_of
from nxcore.spec import launched

if (EXTENSION := native.found().extension) is None:
    pytest.skip(f"nxcore-native: {native.found().detail}", allow_module_level=True)

COMPILED = pytest.mark.parametrize("path", ["compiled"], indirect=True)
CONTEXT, OTHER = 0x7000, 0x8000


class Driver:
    """The driver's functions, which note what they are told."""

    def __init__(self, fails=(), current=CONTEXT):
        self.launches, self.pushed, self.popped, self.fails, self.current = [], [], 0, set(fails), current
        pointers = ctypes.POINTER(ctypes.c_void_p)
        launch = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, pointers, ctypes.c_void_p
        )
        kinds = (
            launch,
            ctypes.CFUNCTYPE(ctypes.c_int, pointers),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p),
            ctypes.CFUNCTYPE(ctypes.c_int, pointers),
        )
        made = zip(kinds, (self.launch, self.context, self.push, self.pop), strict=True)
        self.functions = [kind(function) for kind, function in made]

    @property
    def addresses(self):
        return (*(ctypes.cast(f, ctypes.c_void_p).value for f in self.functions), 0)

    def launch(self, function, *rest):
        shape, (_, parameters, _) = rest[:7], rest[7:]
        words = [ctypes.c_int64.from_address(parameters[i]).value for i in range(3)]
        self.launches.append((function, shape, words))
        return int("launch" in self.fails)

    def context(self, found):
        found[0] = self.current
        return 0

    def push(self, context):
        self.pushed.append(context)
        return int("push" in self.fails)

    def pop(self, _):
        self.popped += 1
        return 0


SHAPE = (9, 8, 7, 64, 2, 1, 1024)


def plan(driver, *, results=1, number=1.0, shift=0, also=lambda x: None):
    """Return a plan of one launch, of two pointers and a number, and what its callable is given."""
    calls = []

    def call(x, *rest):
        calls.append(rest)
        return torch.full((2,), 7.0)

    def again():
        def noting(x, scale=number, *_):
            out, spare = torch.empty(2), torch.empty(4, 4)
            also(x)
            pointers = ((0, x.data_ptr() + shift), (8, spare[2].data_ptr()))
            block = bytes(16) + int(scale).to_bytes(8, "little")
            note(Launched(5, CONTEXT, SHAPE, block, (0, 8, 16), pointers, driver=driver.addresses))
            return (out,) * results if results > 1 else out

        return noting

    return launched.recorded(call, again), calls


def viewing(driver, result):
    """Return a plan of one launch, which returns what it allocates, ``result`` of its argument, and None."""

    def noting(x):
        out = torch.empty(3)
        note(
            Launched(5, CONTEXT, SHAPE, bytes(24), (0, 8, 16), ((0, x.data_ptr()),), driver=driver.addresses)
        )
        return out, result(x), None

    return launched.recorded(lambda x: "python", lambda: noting)


@COMPILED
class TestRepeating:
    def test_a_launch(self, path):
        driver = Driver()
        made, calls = plan(driver)
        x = torch.ones(4)
        for _ in range(3):
            assert made(x, 3).shape == (2,)
        assert not calls
        assert made.programs() == 1
        functions, shapes, words = zip(*driver.launches, strict=True)
        assert set(functions) == {5}
        assert set(shapes) == {SHAPE}
        assert [(a, c) for a, _, c in words] == [(x.data_ptr(), 3)] * 3
        assert all(spare % 16 == 0 for _, spare, _ in words)
        assert not driver.pushed

    def test_an_address_inside_an_argument_moves_with_it(self, path):
        driver = Driver()
        made, calls = plan(driver, shift=8)
        xs = torch.ones(4), torch.ones(4)
        for x in xs:
            made(x, 3)
        assert not calls
        assert [words[0] for *_, words in driver.launches] == [x.data_ptr() + 8 for x in xs]

    def test_an_address_that_two_arguments_share_is_pythons(self, path):
        driver = Driver()
        made, calls = plan(driver, shift=8)
        whole = torch.ones(16)
        made(whole[:8], 3, whole[4:])  # 8 bytes on lies in the first alone
        assert not calls
        made, calls = plan(driver, shift=24)
        made(whole[:8], 3, whole[4:])
        assert len(calls) == 1

    def test_other_numbers_are_recorded_anew_and_too_many_are_pythons(self, path):
        driver = Driver()
        made, calls = plan(driver)
        x = torch.ones(4)
        for scale in (1, 2, 3, 4, 5, 1, 5):
            made(x, scale)
        assert [words[2] for *_, words in driver.launches] == [1, 2, 3, 4, 1]
        assert calls == [(5,), (5,)]

    @pytest.mark.parametrize(
        "given",
        [(torch.ones(9)[1:5], 1), (torch.ones(4), 0.0), (torch.ones(4), torch.ones(1)[:0]), ()],
        ids=["unaligned", "zero, which equals minus zero", "without memory", "no tensor"],
    )
    def test_what_can_not_be_recorded_is_pythons(self, path, given):
        driver = Driver()
        made, calls = plan(driver)
        if not given:
            with pytest.raises(TypeError):
                made()
        else:
            made(*given)
            assert len(calls) == 1
        assert not driver.launches
        assert not made.programs()

    def test_unaligned_data_goes_to_the_callable_later_too(self, path):
        driver = Driver()
        made, calls = plan(driver)
        made(torch.ones(4), 1)
        made(torch.ones(9)[1:5], 1)
        assert (len(driver.launches), len(calls)) == (1, 1)

    def test_a_call_that_may_leave_sums_to_a_captured_one_is_pythons(self, path):
        driver = Driver()
        made, calls = plan(driver, also=lambda x: sums_of(x))
        weight = torch.ones(4, requires_grad=True)
        from_a_node = weight * 1
        for _ in range(2):
            made(from_a_node, 1)
        assert (made.programs(), len(calls)) == (0, 2)
        for _ in range(3):
            made(weight, 1)
        assert (made.programs(), len(calls), len(driver.launches)) == (1, 2, 3)
        made(from_a_node, 1)
        assert (len(calls), len(driver.launches)) == (3, 3)

    def test_a_plan_that_asks_for_sums_of_something_else_is_pythons(self, path):
        driver = Driver()
        made, calls = plan(driver, also=lambda x: sums_of(x.detach()))
        made(torch.ones(4), 1)
        assert (made.programs(), len(calls)) == (0, 1)

    @pytest.mark.parametrize("size", [(4, 2), (8,), (2, 2, 2)])
    def test_a_result_may_be_a_view_of_an_argument(self, path, size):
        driver, whole = Driver(), torch.arange(24.0).view(6, 4).clone()
        made = viewing(driver, lambda x: x.view(size))
        for x in (whole[:2], whole[4:]):
            spare, view, _ = made(x)
            assert torch.equal(view, x.view(size))
            assert view._base is whole
            x.add_(1)
            assert torch.equal(view, x.view(size))
            assert spare.data_ptr() != view.data_ptr()
            assert view._version == x._version
        assert (made.programs(), len(driver.launches)) == (1, 2)

    @pytest.mark.parametrize(
        "result", [lambda x: x, lambda x: x[:1], lambda x: x.t(), lambda x: x[1:]], ids=range(4)
    )
    def test_an_argument_itself_or_a_part_of_one_is_pythons(self, path, result):
        driver = Driver()
        made = viewing(driver, result)
        assert made(torch.ones(4, 2)) == "python"
        assert not made.programs()

    def test_one_tensor_given_twice_is_no_example(self, path):
        driver = Driver()
        made, calls = plan(driver)
        x = torch.ones(4)
        made(x, x)
        assert (made.programs(), len(calls)) == (0, 1)

    @pytest.mark.parametrize(
        "also", [lambda x: x + 1, lambda x: torch.zeros(1).add_(1), lambda x: x.sum().item()]
    )
    def test_a_plan_that_does_more_is_pythons(self, path, also):
        driver = Driver()
        made, calls = plan(driver, also=also)
        for _ in range(6):
            assert made(torch.ones(4), 1)[0] == 7
        assert not driver.launches
        assert len(calls) == 6

    @pytest.mark.parametrize("fails", ["launch", "push"])
    def test_a_launch_that_fails_is_made_again_by_the_callable(self, path, fails):
        driver = Driver([fails], current=OTHER)
        made, calls = plan(driver)
        assert made(torch.ones(4), 1)[0] == 7
        assert len(calls) == 1

    def test_another_context_is_pushed_and_popped(self, path):
        driver = Driver(current=OTHER)
        made, _ = plan(driver)
        made(torch.ones(4), 1)
        assert (driver.pushed, driver.popped, len(driver.launches)) == ([CONTEXT], 1, 1)

    def test_a_launch_without_a_context_has_that_of_the_thread_that_notes_it(self, path, monkeypatch):
        driver, now = Driver(), [CONTEXT]
        monkeypatch.setattr(program, "_context", lambda: now[0])

        def noting(x):
            out = torch.empty(2)
            note(Launched(5, 0, SHAPE, bytes(24), (0, 8, 16), ((0, x.data_ptr()),), driver=driver.addresses))
            now[0] = OTHER  # such as after a block of another device
            return out

        made = launched.recorded(lambda x: "python", lambda: noting)
        made(torch.ones(4))
        assert (len(driver.launches), driver.pushed) == (1, [])

    def test_a_step_with_wrong_places_is_refused(self, path):
        made = EXTENSION.Direct(print)
        step = program.Step(1, bytes(8), ((1, 0, 0),), (), (0,), b"")
        good = program.Program((), (), (), (step,), (), None, torch.device("cpu"), False, 0, (), (), None)
        with pytest.raises(ValueError, match="an address has no place"):
            made.add(good)
        with pytest.raises(ValueError, match="a grid, a block and shared memory"):
            made.add(good._replace(steps=(step._replace(holes=(), shape=(1,)),)))
        for much in ({"parameters": (0,) * 97}, {"floats": bytes(72)}, {"block": bytes(32776)}):
            with pytest.raises(ValueError, match="at most 96 integers, 8 floating numbers, 32768 bytes"):
                made.add(good._replace(steps=(step._replace(holes=(), **much),)))

    def test_results_keep_their_form(self, path):
        driver = Driver()
        made, _ = plan(driver, results=3)
        found = made(torch.ones(4), 1)
        assert type(found) is tuple
        assert len(found) == 3


@pytest.fixture
def machine():
    """Return a function that makes machine code of a Python function, and keeps it."""
    kept = []

    def make(function, kinds):
        letters = {"i": ctypes.c_int64, "d": ctypes.c_double, "f": ctypes.c_float}
        made = ctypes.CFUNCTYPE(ctypes.c_int, *(letters[k] for k in kinds))(function)
        kept.append(made)
        return ctypes.cast(made, ctypes.c_void_p).value

    return make


def function(address, count, block, pointers=(), **how):
    """Return a plan that calls a function with words."""

    def noting(x):
        out = torch.empty(2)
        places = tuple((at, {"x": x, "out": out}[which].data_ptr()) for at, which in pointers)
        note(Launched(address, 0, (), block, tuple(range(0, 8 * count, 8)), places, **how))
        return out

    return launched.recorded(lambda x: "python", lambda: noting)


@COMPILED
class TestFunctions:
    @pytest.mark.parametrize("count", [1, 5, 12, 13, 24, 40, 60, 96])
    def test_words_and_numbers_arrive_in_order(self, path, machine, count):
        seen = []
        words = [i * 10**15 - 1 for i in range(count)]
        address = machine(lambda *args: seen.append(args) or 0, "i" * count + "dfd")
        floats = struct.pack("<df4xd", 0.1, 0.5, -3.0)
        made = function(address, count, struct.pack(f"<{count}q", *words), floats=floats)
        assert made(torch.ones(4)).shape == (2,)
        assert seen == [(*words, 0.1, 0.5, -3.0)]

    def test_addresses_are_those_of_the_call(self, path, machine):
        seen = []
        address = machine(lambda *args: seen.append(args) or 0, "iii")
        made = function(address, 3, struct.pack("<3q", 0, 1 << 40, 0), [(0, "x"), (16, "out")])
        for x in (torch.ones(4), torch.ones(8)):
            out = made(x)
            assert seen[-1] == (x.data_ptr(), 1 << 40, out.data_ptr())

    def test_a_table_in_the_block_holds_addresses_of_the_call(self, path, machine):
        seen = []

        def read(table):
            seen.append([ctypes.c_int64.from_address(table + 8 * i).value for i in range(2)])
            return 0

        address = machine(read, "i")
        made = function(address, 1, bytes(24), [(8, "x"), (16, "out")], inside=((0, 8),))
        for x in (torch.ones(4), torch.ones(4)):
            out = made(x)
            assert seen[-1] == [x.data_ptr(), out.data_ptr()]

    def test_an_address_of_something_else_stays(self, path, machine):
        seen = []
        address = machine(lambda *args: seen.append(args) or 0, "i")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program._Places, "of", lambda self, address: None)
            made = function(address, 1, struct.pack("<q", 77), [(0, "x")])
            made(torch.ones(4))
        assert seen == [(77,)]

    def test_unaligned_data_is_taken(self, path, machine):
        seen = []
        address = machine(lambda *args: seen.append(args) or 0, "i")
        made = function(address, 1, bytes(8), [(0, "x")])
        made(torch.ones(4))
        x = torch.ones(9)[1:5]
        made(x)
        assert seen[-1] == (x.data_ptr(),)

    @pytest.mark.parametrize(
        "given",
        [
            ("no tensor",),
            (torch.ones(2, device="meta"),),
            (torch.ones(2).as_subclass(type("S", (torch.Tensor,), {})),),
        ],
        ids=["string", "meta", "subclass"],
    )
    def test_what_the_code_can_not_take_goes_to_the_callable(self, path, machine, given):
        address = machine(lambda *args: 0, "i")
        made = function(address, 1, bytes(8), [(0, "x")])
        made(torch.ones(4))
        assert made(*given) == "python"

    def test_code_that_fails_goes_to_the_callable(self, path, machine):
        address = machine(lambda *args: 1, "i")
        assert function(address, 1, bytes(8))(torch.ones(4)) == "python"


@COMPILED
def test_a_plan_and_its_recorder_are_freed(path, machine):
    import gc
    import weakref

    class Code:
        """What a launch keeps."""

    code = Code()
    gone = weakref.ref(code)
    address = machine(lambda *args: 0, "i")
    made = function(address, 1, bytes(8), keep=code)
    made(torch.ones(4))
    del code
    gc.collect()
    assert gone() is not None
    assert made.programs() == 1
    del made
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("path", ["python"], indirect=True)
def test_without_the_extension_a_plan_is_its_callable(path):
    assert launched.recorded(print, None) is print
    assert not launched.repeats()
