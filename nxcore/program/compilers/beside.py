"""Beside: a graph, compiled by a mode or a backend of ``torch.compile``, mostly in another process.

That process leaves what it has compiled in Inductor's cache on disk, where this one finds it. Here it would
take the interpreter from the program for a minute, and wind its random numbers back.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from nxcore.choose.workers import allowed
from nxcore.errors import InvalidInputError, one_of
from nxcore.interop import autocast
from nxcore.registry.interpreter import command
from nxcore.session import default

STATIC = "_dynamo_static_input_type"
"""Dynamo's attribute of a tensor that lies at one address."""


def checked(entrants: Iterable[str]) -> tuple[str, ...]:
    """Return the names of modes and backends of ``torch.compile``.

    Raises
    ------
    InvalidInputError
        If one isn't known.
    """
    given = [entrants] if isinstance(entrants, str) else list(entrants)
    known = names() if given else []
    for name in given:
        if name not in known:
            raise InvalidInputError(one_of("entrants", name, known), argument="entrants")
    return tuple(dict.fromkeys(given))


def names() -> list[str]:
    """Return the modes and the backends of ``torch.compile``, but for the one that is nxcore's."""
    from torch._dynamo import list_backends
    from torch._inductor import list_mode_options

    found = [*list_mode_options(), "eager", "aot_eager", *list_backends()]
    return [name for name in found if name != "nxcore"]


def copies(name: str) -> bool:
    """Return whether results lie in memory that the next call may overwrite."""
    options = _options(name)
    return options is None or bool(options.get("triton.cudagraphs"))


def _options(name: str) -> Mapping[str, Any] | None:
    """Return Inductor's settings of a mode; None of a backend."""
    from torch._inductor import list_mode_options

    found: Mapping[str, Any] | None = list_mode_options().get(name)
    return found


SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
)
"""Settings of the program's on which what is compiled depends: how to read and how to set each."""


class Order:
    """A graph that is to be compiled, and the process that does so.

    Parameters
    ----------
    graph : bytes
        The graph, as ``packed`` returns it.
    inputs : sequence
        The inputs of a call.
    stay : collection of int
        The places of a module's parameters and buffers.
    name : str
        The mode or backend.
    """

    def __init__(self, graph: bytes, inputs: Sequence[Any], stay: Collection[int], name: str) -> None:
        forms = [_form(t, i in stay) for i, t in enumerate(inputs)]
        self._task = name, graph, forms, autocast.state(), torch.is_grad_enabled()
        self._process: subprocess.Popen[bytes] | None = None
        if _options(name) is not None and allowed(default().settings):
            with tempfile.TemporaryFile() as file:
                file.write(pickle.dumps((self._task, [get() for get, _ in SETTINGS])))
                file.seek(0)
                void = subprocess.DEVNULL
                self._process = subprocess.Popen(command(__name__), stdin=file, stdout=void, stderr=void)
            weakref.finalize(self, self._process.kill)

    @property
    def over(self) -> bool:
        """Whether the process has ended, if there is one: what it couldn't compile is compiled here."""
        return self._process is None or self._process.poll() is not None

    def made(self) -> Callable[..., Sequence[Any]]:
        """Return what runs the graph."""
        return compiled(*self._task)


def packed(graph: fx.GraphModule) -> bytes:
    """Return a graph as bytes; empty if it has what can't be copied."""
    from torch.fx._graph_pickler import GraphPickler

    bare = fx.Graph()
    bare.output(bare.graph_copy(graph.graph, {}))
    for node in bare.nodes:
        node.meta = {name: node.meta[name] for name in {"example_value"} & node.meta.keys()}
    try:
        with _unwarned():
            found: bytes = GraphPickler.dumps(fx.GraphModule(graph, bare))
    except Exception:  # torch's own errors are of many types
        return b""
    return found


def compiled(
    name: str,
    graph: bytes,
    forms: Sequence[Any],
    casts: Sequence[torch.dtype | None],
    learns: bool,
) -> Callable[..., Sequence[Any]]:
    """Return what runs a graph, by a mode or backend.

    All is as dynamo would hand it over, of tensors without memory; so both processes have the same key.
    """
    from torch._dynamo import lookup_backend
    from torch._dynamo.source import LocalSource
    from torch._functorch import config
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with _unwarned():
        module: Any = GraphPickler.loads(graph, mode)
    module.recompile()
    inputs = [_pictured(form, mode) for form in forms]
    for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node._dynamo_source = LocalSource(node.name)
        static = getattr(value, STATIC, None)
        node.meta["tensor_dict"] = {STATIC: static} if static else {}
    module._param_name_to_source = {}
    options = _options(name)
    made: Any
    with (
        tracing(TracingContext(mode)),
        config.patch(force_non_lazy_backward_lowering=True),
        autocast.as_in(casts),
        torch.set_grad_enabled(learns),
    ):
        if options is None:
            made = lookup_backend(name)(module, inputs)
        else:  # with the random numbers that plain torch would draw
            made = compile_fx(module, inputs, config_patches={**options, "fallback_random": True})
    run: Callable[..., Sequence[Any]] = made
    return run


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """Let torch copy tensors of a graph: it looks for gradients of those that have none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _form(value: Any, stays: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    kind = isinstance(value, nn.Parameter), stays
    return (tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad, *kind)


def _pictured(form: Any, mode: Any) -> Any:
    """Return a tensor without memory, of the form of an input."""
    if not isinstance(form, tuple):
        return form
    shape, strides, dtype, device, learns, parameter, stays = form
    with mode:
        found = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    found = nn.Parameter(found, learns) if parameter else found.requires_grad_(learns)
    if stays:
        setattr(found, STATIC, "unguarded")
    return found


if __name__ == "__main__":
    task, values = pickle.load(sys.stdin.buffer)  # noqa: S301  what its parent has written
    for (get, put), value in zip(SETTINGS, values, strict=True):
        if get() != value:  # to set one is more than its value
            put(value)
    compiled(*task)
