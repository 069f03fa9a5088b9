"""Programs that trace, compile, export and convert a model."""

import copy
import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization as quantization
from torch import Tensor, fx, nn
from torch.ao.pruning import WeightNormSparsifier
from torch.ao.quantization import quantize_fx
from torch.export import Dim, export
from torch.fx.experimental import optimization
from torch.fx.experimental.proxy_tensor import make_fx

from tests.nn.programs import Net, Row, agree, step

pytestmark = [
    pytest.mark.usefixtures("dynamo_anew"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning",  # of quantisation and torch.jit, torch's advice to their users
        "ignore::FutureWarning",
        "ignore::UserWarning",
        "ignore::torch.jit.TracerWarning",
    ),
]


def symbolically_traced(model: Any, x: Tensor) -> Any:
    traced = fx.symbolic_trace(model)
    called = [(n.op, str(n.target)) for n in traced.graph.nodes if n.op != "call_function"]
    return called, step(traced, x)


def made_into_a_graph(model: Any, x: Tensor) -> Any:
    model.eval()
    graph = make_fx(lambda x: model(x))(x)
    places = {str(n.target).split(".")[0] for n in graph.graph.nodes if n.op == "call_function"}
    return "nxcore" in places, graph(x).detach()


def norms_folded(model: Any, x: Tensor) -> Any:
    fused = optimization.fuse(model.eval())
    return Counter(type(m).__name__ for m in fused.modules()), fused(x).detach(), model(x).detach()


def norms_folded_in_place(model: Any, x: Tensor) -> Any:
    fused = optimization.fuse(model.eval(), inplace=True)
    return Counter(type(m).__name__ for m in fused.modules()), fused(x).detach()


def traced_by_jit(model: Any, x: Tensor) -> Any:
    model.eval().requires_grad_(False)
    traced = torch.jit.trace(model, x, check_trace=False)
    return traced(x + 1), list(traced.state_dict())


def framed(model: Any) -> nn.Sequential:
    """Return a part of it that can be quantised."""
    return nn.Sequential(
        quantization.QuantStub(), model.stem[:2], nn.ReLU(), model.pool, quantization.DeQuantStub()
    )


def quantised(model: Any, x: Tensor) -> Any:
    whole = framed(model).eval()
    whole.qconfig = quantization.get_default_qconfig("x86")
    prepared = quantization.prepare(whole)
    prepared(x)
    made = quantization.convert(prepared)
    return classes(made), made(x), step(model, x)


def quantised_in_place(model: Any, x: Tensor) -> Any:
    model.stem.eval().qconfig = quantization.get_default_qconfig("x86")
    quantization.prepare(model, inplace=True)
    quantization.convert(model, inplace=True)
    return classes(model), model.stem[0].scale


def quantised_dynamically(model: Any, x: Tensor) -> Any:
    made = quantization.quantize_dynamic(model.eval(), {nn.Linear})
    return classes(made), made(x)


def quantised_as_a_graph(model: Any, x: Tensor) -> Any:
    mapping = quantization.get_default_qconfig_mapping("x86")
    prepared = quantize_fx.prepare_fx(model.stem.eval(), mapping, (x,))
    prepared(x)
    made = quantize_fx.convert_fx(prepared)
    return classes(made), made(x)


def trained_for_quantisation(model: Any, x: Tensor) -> Any:
    whole = framed(model).train()
    whole.qconfig = quantization.get_default_qat_qconfig("x86")
    prepared = quantization.prepare_qat(whole)
    found = step(prepared, x)
    return classes(prepared), found, classes(quantization.convert(prepared.eval()))


def fused_by_name(model: Any, x: Tensor) -> Any:
    fused = quantization.fuse_modules(model.eval(), [["stem.0", "stem.1"]])
    return type(fused.stem[0]), type(fused.stem[1]), fused(x).detach()


def made_sparse(model: Any, x: Tensor) -> Any:
    sparsifier = WeightNormSparsifier(0.5)
    sparsifier.prepare(model, None)
    sparsifier.step()
    sparsifier.squash_mask()
    return step(model, x), list(model.state_dict())


def compiled(model: Any, x: Tensor) -> Any:
    return step(torch.compile(model, backend="eager"), x)


def compiled_in_place(model: Any, x: Tensor) -> Any:
    model.compile(backend="eager")
    return step(model, x), list(model.state_dict()), step(copy.deepcopy(model), x)


def compiled_with_gradients(model: Any, x: Tensor) -> Any:
    return step(torch.compile(model, backend="aot_eager", fullgraph=True), x)


def compiled_for_any_size(model: Any, x: Tensor) -> Any:
    made = torch.compile(model.eval(), backend="aot_eager", dynamic=True)
    return [made(torch.ones(n, 4, n + 6, 9)).detach() for n in (2, 3, 5)]


def exported(*, strict: bool, train: bool = False, dynamic: Any = None, lowered: bool = False) -> Row:
    def row(model: Any, x: Tensor) -> Any:
        model.train(train)
        program = export(model, (x,), dynamic_shapes=dynamic, strict=strict)
        program = program.run_decompositions() if lowered else program
        called = Counter(str(n.target) for n in program.graph.nodes if n.op == "call_function")
        other = x if dynamic is None else torch.linspace(-1, 1, 3 * 4 * 12 * 8).view(3, 4, 12, 8)
        other = other if dynamic is None or 2 in dynamic[0] else other[..., :8, :]
        # Parameters and buffers are a copy's, and called as they come.
        module = program.module()
        found = module(other)
        return called, found.detach(), list(program.state_dict), dict(module.state_dict())

    return row


def exported_and_saved(model: Any, x: Tensor) -> Any:
    buffer = io.BytesIO()
    torch.export.save(export(model.eval(), (x,)), buffer)
    buffer.seek(0)
    return torch.export.load(buffer).module()(x).detach()


BATCH = ({0: Dim("b", min=2)},)
IMAGES = ({0: Dim("b", min=2, max=64), 2: Dim("h", min=8, max=64), 3: Dim("w", min=8, max=64)},)
AUTO = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)

EXPORTS = {
    f"exported {' '.join(('strictly' if s else 'loosely', 'in training' if t else 'in evaluation', name))}": (
        exported(strict=s, train=t, dynamic=dynamic, lowered=name == "for any batch")
    )
    for turned, (name, dynamic) in enumerate(
        (("as it is", None), ("for any batch", BATCH), ("for any size", IMAGES), ("as it may be", AUTO))
    )
    for s, t in ((False, turned % 2 == 1), (True, turned % 2 == 0))
}
"""Of sizes, modes and ways to export, each goes with each other."""


def classes(model: nn.Module) -> list[str]:
    """Return the classes that a conversion has left, with their places; ours are as torch's."""
    return [f"{type(m).__module__}.{type(m).__name__}" for m in model.modules() if not isinstance(m, Net)]


def named(*rows: Callable[[Any, Tensor], Any]) -> dict[str, Row]:
    return {row.__name__.replace("_", " "): row for row in rows}


QUICK = named(symbolically_traced, made_into_a_graph, norms_folded, quantised, compiled) | {
    "exported for any batch": exported(strict=False, dynamic=BATCH)
}
ROWS = (
    QUICK
    | EXPORTS
    | named(
        norms_folded_in_place,
        traced_by_jit,
        quantised_in_place,
        quantised_dynamically,
        quantised_as_a_graph,
        trained_for_quantisation,
        fused_by_name,
        made_sparse,
        compiled_in_place,
        compiled_with_gradients,
        compiled_for_any_size,
        exported_and_saved,
    )
)


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if name in QUICK else pytest.mark.slow) for name, row in ROWS.items()],
    ids=ROWS,
)
def test_a_model_comes_to_what_a_plain_one_does(row: Row, state: str) -> None:
    agree(row, state)
