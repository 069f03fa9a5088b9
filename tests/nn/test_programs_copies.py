"""Programs that copy, save, load, move and share a model."""

import copy
import io
import pickle
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.nn.programs import Net, Row, agree, step


def pickled(protocol: int) -> Row:
    def row(model: Any, x: Tensor) -> Any:
        step(model, x)
        twin = pickle.loads(pickle.dumps(model, protocol))
        return step(twin, x), dict(twin.state_dict()), [*twin.buffers()]

    return row


def deep_copied(model: Any, x: Tensor) -> Any:
    twin = copy.deepcopy(model)
    found = step(twin, x), [p.grad for p in twin.parameters()]
    return found, [p.grad for p in model.parameters()], isinstance(twin, Net)


def deep_copied_twice_in_one(model: Any, x: Tensor) -> Any:
    twin, again = copy.deepcopy([model, model])
    return twin is again, step(twin, x)


def shallow_copied(model: Any, x: Tensor) -> Any:
    twin = copy.copy(model)
    return step(twin, x), twin.stem is model.stem


def saved(model: Any, **options: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def saved_whole(model: Any, x: Tensor) -> Any:
    twin = saved(model, weights_only=False)
    return step(twin, x), twin.training, repr(twin) == repr(model)


def saved_whole_and_loaded_as_weights(model: Any, _: Tensor) -> Any:
    return saved(model, weights_only=True)


def saved_state(model: Any, x: Tensor) -> Any:
    state = saved(model.state_dict(), weights_only=True)
    twin = Net()
    return str(twin.load_state_dict(state)), step(twin, x), type(state) is OrderedDict


def loaded_strictly(model: Any, x: Tensor) -> Any:
    state = Net().state_dict()
    model.load_state_dict(state)
    found = step(model, x)
    del state["alpha"]
    with pytest.raises(RuntimeError, match="alpha"):
        model.load_state_dict(state)
    return found, str(model.load_state_dict(state, strict=False))


def loaded_by_assigning(model: Any, x: Tensor) -> Any:
    state = Net().state_dict()
    model.load_state_dict(state, assign=True)
    return step(model, x), model.stem[1].running_mean is state["stem.1.running_mean"]


def loaded_with_hooks(model: Any, x: Tensor) -> Any:
    seen: list[str] = []
    model.register_state_dict_pre_hook(lambda *_: seen.append("pre"))
    model.register_state_dict_post_hook(lambda *_: seen.append("post"))
    model.stem.register_load_state_dict_pre_hook(lambda *_: seen.append("load"))
    model.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    model.load_state_dict(model.state_dict(prefix="", keep_vars=False))
    return seen, list(model.state_dict(prefix="of.")), step(model, x)


def in_double(model: Any, x: Tensor) -> Any:
    return step(model.double(), x.double())


def in_bfloat16(model: Any, x: Tensor) -> Any:
    model.bfloat16().eval()
    return [p.dtype for p in model.parameters()], model(x.bfloat16()).dtype


def in_half(model: Any, x: Tensor) -> Any:
    model.half().eval()
    return model(x.half()).detach()


def in_another_dtype_than_its_input(model: Any, x: Tensor) -> Any:
    return model(x.double())


def on_meta(model: Any, x: Tensor) -> Any:
    model.to("meta")
    shape = model(x.to("meta")).shape
    model.to_empty(device="cpu")
    with torch.no_grad():
        for t in (*model.parameters(), *model.buffers()):
            t.fill_(0.5) if t.is_floating_point() else t.zero_()
    return shape, step(model, x)


def in_shared_memory(model: Any, x: Tensor) -> Any:
    model.share_memory()
    return all(t.is_shared() for t in (*model.parameters(), *model.buffers())), step(model, x)


def in_channels_last(model: Any, x: Tensor) -> Any:
    model.to(memory_format=torch.channels_last)
    return step(model, x.contiguous(memory_format=torch.channels_last))


def named(model: Any, x: Tensor) -> Any:
    model(x)
    parts = model.named_parameters, model.named_buffers, model.named_modules, model.named_children
    return [[name for name, _ in each()] for each in parts], list(model.state_dict())


def counted(model: Any, x: Tensor) -> Any:
    step(model, x)
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, model.parameters())
    return vector.detach(), step(model, x)


def averaged(model: Any, x: Tensor) -> Any:
    mean = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for _ in range(2):
        step(model, x)
        mean.update_parameters(model)
    torch.optim.swa_utils.update_bn([x, x + 1], mean)
    return step(mean, x), dict(mean.state_dict())


def moving_average(model: Any, x: Tensor) -> Any:
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay)
    step(model, x)
    mean.update_parameters(model)
    return mean.eval()(x).detach()


def in_another_model(model: Any, x: Tensor) -> Any:
    outer = nn.ModuleDict({"a": model, "b": nn.Sequential(model.stem, model.pool)})
    return step(outer["b"], x), step(outer["a"], x), list(outer.state_dict())


ROWS: dict[str, Row] = {f"pickled by protocol {n}": pickled(n) for n in (0, 1, 2, 3, 4, 5)} | {
    row.__name__.replace("_", " "): row
    for row in (
        deep_copied,
        deep_copied_twice_in_one,
        shallow_copied,
        saved_whole,
        saved_whole_and_loaded_as_weights,
        saved_state,
        loaded_strictly,
        loaded_by_assigning,
        loaded_with_hooks,
        in_double,
        in_bfloat16,
        in_half,
        in_another_dtype_than_its_input,
        on_meta,
        in_shared_memory,
        in_channels_last,
        named,
        counted,
        averaged,
        moving_average,
        in_another_model,
    )
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_model_comes_to_what_a_plain_one_does(row: Row, state: str) -> None:
    agree(row, state)
