"""Functions as CUDA graphs: one per signature, captured once its kernels are chosen, then replayed."""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nxcore.call import ending
from nxcore.call.unusual import PLAIN
from nxcore.context import PREFERENCE, Purpose, as_captured, in_force
from nxcore.errors import CaptureError, InvalidInputError
from nxcore.graphs.buffers import aliased, buffer, fill, untouched
from nxcore.graphs.pair import Pair
from nxcore.graphs.recorder import MAKING, Pool, Recorder, recorder_of

WAITS = ("captur", "StreamCapture")
"""Parts of CUDA's error messages for operations that a capture doesn't permit."""


class Graphed:
    """A function or module that is captured at its first call of a signature; see ``nxcore.graphed``.

    ``len()`` gives the number of its graphs.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        backward: bool = False,
        clone: bool = False,
        warmup: int = 3,
        limit: int = 16,
        state: Iterable[Tensor] = (),
    ) -> None:
        if not callable(fn):
            raise InvalidInputError(
                f"fn must be a function or a module, got {type(fn).__name__}", argument="fn"
            )
        for name, value in (("warmup", warmup), ("limit", limit)):
            if not isinstance(value, int) or value < 1:
                raise InvalidInputError(f"{name} must be a positive integer, got {value!r}", argument=name)
        self.fn, self.backward, self.clone, self.warmup, self.limit = fn, backward, clone, warmup, limit
        self.state = tuple(state)
        self._graphs: OrderedDict[Any, Callable[[list[Tensor]], Any]] = OrderedDict()
        self._pool = Pool()
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Drop all graphs; their memory is free once their results are."""
        with self._lock:
            self._graphs.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay the graph of this signature, captured now if it is new. On the CPU, run the function."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        device = _device(self.fn, leaves, spec)
        if device is None or torch.cuda.is_current_stream_capturing():  # into the caller's own graph
            return self.fn(*args, **kwargs)
        ending.halt()
        key = signature(self.fn, leaves, spec)
        with self._lock:
            replay = self._graphs.get(key) or self._made(key, leaves, spec, device)
            if replay is not None:
                self._graphs.move_to_end(key)
        if replay is None:
            return self.fn(*args, **kwargs)
        return replay([leaf for leaf in leaves if isinstance(leaf, Tensor)])

    def _made(
        self, key: Any, leaves: Sequence[Any], spec: Any, device: torch.device
    ) -> Callable[[list[Tensor]], Any] | None:
        """Capture the call of a new signature; None while another thread makes a capture."""
        recorder = recorder_of(device)
        if recorder is None or not MAKING.acquire(blocking=False):
            return None
        try:
            made = self._graphs[key] = self._captured(leaves, spec, device.type, recorder)
        finally:
            MAKING.release()
        if len(self._graphs) > self.limit:
            self._graphs.popitem(last=False)
        return made

    def _captured(
        self, leaves: Sequence[Any], spec: Any, device_type: str, recorder: Recorder
    ) -> Callable[[list[Tensor]], Any]:
        """Return a function that replays the call, given the tensors among its arguments."""
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        buffers = [buffer(leaves[i]) for i in places]
        failure = Failure()

        def flat() -> Any:
            given = list(leaves)
            for i, tensor in zip(places, buffers, strict=True):
                given[i] = tensor
            args, kwargs = pytree.tree_unflatten(given, spec)
            with failure.noted():
                return self.fn(*args, **kwargs)

        held = (*self.state, *(self.fn.buffers() if isinstance(self.fn, nn.Module) else ()))
        with deciding(), untouched(held):
            if self.backward:
                with failure.explained():
                    return self._differentiable(flat, buffers, recorder)
            versions = [_version(own) for own in buffers]
            result = self._repeated(flat, recorder)
            for place, own, version in zip(places, buffers, versions, strict=True):
                if _version(own) != version:
                    raise CaptureError(
                        f"{_name(spec, place)} is written into, and a replay reads a copy of it; let the "
                        "function hold what it writes into, or return it"
                    )
            check_result(result, device_type)
            del result
            torch.cuda.empty_cache()  # the allocator can't do this in a capture if memory runs short
            # A caller's result may be in memory that an earlier graph uses temporarily: the next replay of
            # that graph would overwrite it. So graphs share memory only if results are copied.
            with failure.explained():
                result, run = recorder.capture(flat, self._pool if self.clone else Pool())

        def replay(tensors: list[Tensor]) -> Any:
            with recorder.lock:
                recorder.turn()
                fill(buffers, tensors)
                run()
                return pytree.tree_map_only(Tensor, torch.clone, result) if self.clone else result

        return replay

    def _repeated(self, work: Callable[[], Any], recorder: Recorder) -> Any:
        """Run ``work`` on a side stream, as torch requires, so that kernels are chosen and compiled.

        The kernels are those that the capture will run: a library's first call may load code and allocate,
        which ends a capture.
        """

        def repeat() -> Any:
            for _ in range(self.warmup):
                result = work()
            return result

        with as_captured():
            return recorder.aside(repeat)

    def _differentiable(
        self, flat: Callable[[], Any], buffers: list[Tensor], recorder: Recorder
    ) -> Callable[[list[Tensor]], Any]:
        held = [p for p in self.fn.parameters() if p.requires_grad] if isinstance(self.fn, nn.Module) else []
        with aliased(self.fn.modules() if isinstance(self.fn, nn.Module) else (), held) as aliases:
            pair = Pair(flat, buffers, aliases, clone=self.clone)
            self._repeated(pair.warm, recorder)
            torch.cuda.empty_cache()  # as above
            pair.capture(recorder)
        return lambda tensors: pair([*tensors, *held])


def graphed(fn: Any, **how: Any) -> Any:
    """Return ``fn`` as a CUDA graph, or a decorator where it is None; see ``nxcore.graphed``."""
    return functools.partial(Graphed, **how) if fn is None else Graphed(fn, **how)


def signature(fn: Callable[..., Any], leaves: Sequence[Any], spec: Any) -> Any:
    """Return the signature of a call: the properties of arguments, module and context that a capture fixes.

    Raises
    ------
    CaptureError
        If an argument is neither a plain tensor nor hashable.
    """
    own: tuple[Any, ...] = ()
    if isinstance(fn, nn.Module):
        held = (*fn.parameters(), *fn.buffers())
        own = (
            *((t.data_ptr(), t.dtype, t.requires_grad) for t in held),
            *(m.training for m in fn.modules()),
        )
    around = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        PREFERENCE.get(),
    )
    return spec, tuple(_facts(leaf, spec, i) for i, leaf in enumerate(leaves)), own, around


def _facts(leaf: Any, spec: Any, place: int) -> tuple[Any, ...]:
    if not isinstance(leaf, Tensor):
        try:
            hash(leaf)
        except TypeError:
            raise CaptureError(
                f"{_name(spec, place)} must be a tensor or a hashable value that the graph keeps fixed, got "
                f"{type(leaf).__name__}"
            ) from None
        return type(leaf), leaf
    if type(leaf) not in PLAIN or leaf.layout is not torch.strided:
        what = f"a {type(leaf).__name__}" if type(leaf) not in PLAIN else f"one of layout {leaf.layout}"
        raise CaptureError(f"{_name(spec, place)} must be a plain strided tensor, got {what}")
    return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad


def _device(fn: Callable[..., Any], leaves: Sequence[Any], spec: Any) -> torch.device | None:
    """Return the CUDA device of a call; None for one on the CPU; raise if tensors are on several."""
    found = {leaf.device: i for i, leaf in reversed(list(enumerate(leaves))) if isinstance(leaf, Tensor)}
    if len(found) > 1:
        (first, i), (other, j), *_ = sorted(found.items(), key=lambda item: item[1])
        raise CaptureError(
            f"{_name(spec, j)} must be on {first}, as {_name(spec, i)} is, got {other}: a graph has one "
            "device, and would fix the value of a CPU tensor"
        )
    if not found and isinstance(fn, nn.Module):
        found = {p.device: 0 for p in fn.parameters()}
    if not found and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return next((d for d in found if d.type == "cuda"), None)


def check_result(result: Any, device_type: str = "cuda") -> None:
    """Raise, with the part of the result, if a replay couldn't update it."""
    for path, leaf in pytree.tree_flatten_with_path(result)[0]:
        what = f"its result{pytree.keystr(path)}"
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            raise CaptureError(
                f"{what} needs a gradient, which a replay doesn't compute: pass backward=True, call it under "
                "torch.no_grad(), or capture the whole step and return detached tensors"
            )
        if isinstance(leaf, Tensor) and leaf.device.type != device_type:
            raise CaptureError(f"{what} is on {leaf.device}: a graph contains only work of a CUDA device")


def _name(spec: Any, place: int) -> str:
    """Return an argument's position or name, as in the caller's code."""
    numbered = pytree.tree_unflatten(range(spec.num_leaves), spec)
    (_, where, *inside), _ = pytree.tree_flatten_with_path(numbered)[0][place]
    spelt = (
        f"argument {where.idx}" if isinstance(where, pytree.SequenceKey) else pytree.keystr((where,))[2:-2]
    )
    return f"{spelt}{pytree.keystr(tuple(inside))}"


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # it has no public name


@contextlib.contextmanager
def deciding(purpose: Purpose = Purpose.DECIDE) -> Iterator[None]:
    """Make calls of this block for ``purpose``: an exploration would end after the capture.

    What only shows what is known, or waits, stays so within it.
    """
    kept = PREFERENCE.get().purpose in (Purpose.SHOW, Purpose.WAIT)
    with contextlib.nullcontext() if kept else in_force(purpose=purpose):
        yield


class Failure:
    """The exception of a function under capture: the end of the capture raises again, without its line."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Keep an exception that is raised while a graph is captured."""
        try:
            yield
        except Exception as error:
            if torch.cuda.is_current_stream_capturing():
                self.error = error
            raise

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Report the line that can't be captured; exceptions before the capture are raised unchanged."""
        try:
            yield
        except Exception as error:
            if self.error is None and not any(word in str(error) for word in WAITS):
                raise
            raise CaptureError(in_words(self.error or error)) from self.error or error


def in_words(error: Exception) -> str:
    """Return the caller's line that raised under capture, its exception, and the cause."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename and f.filename != __file__]
    text = (str(error).strip().splitlines() or [""])[0]
    at = f"`{own[-1].line}` (line {own[-1].lineno} of {own[-1].name})" if own else "fn"
    why = "work that waits for the device or needs a tensor's value, such as .item(), .cpu() and `if x > 0`"
    return f"{at} can't be captured in a CUDA graph: {type(error).__name__}: {text}; graphs exclude {why}"
