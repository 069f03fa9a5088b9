"""Programs that look into a model, hang something on it, or exchange a part of it."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tests.nn.programs import Mixed, Net, Row, agree, step


def with_another_parameter(model: Any, x: Tensor) -> Any:
    model.stem[0].weight = nn.Parameter(torch.full_like(model.stem[0].weight, 0.3))
    model.stem[1].bias = nn.Parameter(torch.ones(4))
    return step(model, x), [name for name, _ in model.named_parameters()]


def with_a_tensor_as_parameter(model: Any, _: Tensor) -> Any:
    model.stem[0].weight = torch.ones(4, 1, 3, 3)


def with_bias_removed(model: Any, x: Tensor) -> Any:
    model.stem[0].bias = None
    model.stem[1].register_parameter("bias", None)
    return step(model, x)


def with_another_bias_dtype(model: Any, x: Tensor) -> Any:
    model.stem[0].bias = nn.Parameter(torch.zeros(4, dtype=torch.double))
    return model(x)


def with_other_numbers(model: Any, x: Tensor) -> Any:
    found = [step(model, x)]
    model.stem[0].stride, model.stem[0].padding = (2, 1), (2, 0)
    found.append(step(model, x))
    model.stem[1].momentum, model.stem[1].eps = 0.5, 0.1
    model.stem[2] = nn.LeakyReLU(0.3)
    model.mixed._ops[1].kernel_size, model.mixed._ops[1].padding = 5, 2
    found.append(step(model, x))
    model.stem[1].momentum = None
    model.pool.ceil_mode, model.pool.count_include_pad = True, False
    model.mean.output_size = (2, 1)
    model.head[1] = nn.Linear(8, 3)
    found.append(step(model, x))
    model.stem[1].track_running_stats = False
    return found, step(model.eval(), x)


def with_other_padding(model: Any, x: Tensor) -> Any:
    model.stem[0].padding_mode = "circular"
    model.stem[0]._reversed_padding_repeated_twice = [1, 1, 1, 1]
    return step(model, x)


def with_statistics_removed(model: Any, x: Tensor) -> Any:
    norm = model.stem[1]
    norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    norm.track_running_stats = False
    return step(model, x), step(model.eval(), x)


def with_a_number_that_is_none(model: Any, x: Tensor) -> Any:
    model.stem[0].stride = (0, 0)
    return model(x)


def without_a_part(model: Any, x: Tensor) -> Any:
    del model.pool
    names = [name for name, _ in model.named_modules()]
    return names, model(x)


def without_a_layer(model: Any, x: Tensor) -> Any:
    del model.stem[1]
    model.stem.append(nn.BatchNorm2d(4))
    model.stem.insert(0, nn.Identity())
    model.mixed._ops[0] = nn.AvgPool2d(3, 1, 1)
    return step(model, x), len(model.stem), list(model.state_dict())


def sliced(model: Any, x: Tensor) -> Any:
    part = model.stem[:2]
    joined = model.stem + nn.Sequential(nn.ReLU())
    kinds = [isinstance(each, nn.Sequential) for each in (part, joined)]
    return kinds, step(part, x), step(joined, x), type(part[-1]).__name__


def with_forward_hooks(model: Any, x: Tensor) -> Any:
    seen: list[Any] = []
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: seen.append(("before", name)))
        module.register_forward_hook(lambda *_, name=name: seen.append(("after", name)))
    model.stem.register_forward_hook(lambda _, args, out: out * 2)
    model.pool.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    return step(model, x), seen


def with_hooks_that_take_names(model: Any, x: Tensor) -> Any:
    seen: list[Any] = []
    model.register_forward_pre_hook(lambda _, a, k: seen.append(list(k)) or (a, k), with_kwargs=True)
    model.register_forward_hook(
        lambda _, a, k, y: seen.append(len(a)) or y, with_kwargs=True, always_call=True
    )
    return model(x=x).detach(), seen


def with_backward_hooks(model: Any, x: Tensor) -> Any:
    seen: list[Any] = []
    for name, module in model.named_modules():
        if not isinstance(module, Net | Mixed | nn.ModuleList):
            module.register_full_backward_hook(lambda *_, name=name: seen.append(name))
            module.register_full_backward_pre_hook(lambda *_, name=name: seen.append(f"before {name}"))
    model.stem[1].register_full_backward_hook(lambda _, g, __: (g[0] * 2,))
    return step(model, x.requires_grad_()), seen, x.grad


def with_global_hooks(model: Any, x: Tensor) -> Any:
    seen: list[str] = []
    modules = nn.modules.module
    handles = [
        modules.register_module_forward_pre_hook(lambda m, _: seen.append(type(m).__name__)),
        modules.register_module_forward_hook(lambda *_: seen.append("after")),
        modules.register_module_full_backward_hook(lambda *_: seen.append("backward")),
    ]
    try:
        return step(model, x), seen
    finally:
        for handle in handles:
            handle.remove()


def with_hooks_on_parameters(model: Any, x: Tensor) -> Any:
    seen: list[Any] = []
    model.stem[0].weight.register_hook(lambda g: g * 3)
    model.stem[1].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    return step(model, x), seen


def with_a_hook_that_removes_itself(model: Any, x: Tensor) -> Any:
    handle = model.stem.register_forward_hook(lambda *_: handle.remove())
    return step(model, x), step(model, x), len(model.stem._forward_hooks)


def parametrized(model: Any, x: Tensor) -> Any:
    class Twice(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return 2 * w

    parametrize.register_parametrization(model.stem[0], "weight", Twice())
    found = step(model, x), [name for name, _ in model.named_parameters()]
    parametrize.remove_parametrizations(model.stem[0], "weight")
    return found, step(model, x), isinstance(model.stem[0], nn.Conv2d)


def weight_normed(model: Any, x: Tensor) -> Any:
    parametrizations.weight_norm(model.stem[0])
    parametrizations.spectral_norm(model.mixed._ops[2][1])
    parametrizations.orthogonal(model.head[1])
    return step(model, x), list(model.state_dict())


def weight_normed_by_hooks(model: Any, x: Tensor) -> Any:
    nn.utils.spectral_norm(model.stem[0])
    nn.utils.weight_norm(model.head[1])
    return step(model, x), list(model.state_dict())


def pruned(model: Any, x: Tensor) -> Any:
    prune.l1_unstructured(model.stem[0], "weight", 0.5)
    prune.random_structured(model.head[1], "weight", 0.3, dim=0)
    found = step(model, x), list(model.state_dict())
    prune.remove(model.stem[0], "weight")
    return found, step(model, x)


def looked_at(model: Any, x: Tensor) -> Any:
    model(x)
    torchs = nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.Sequential, nn.SiLU, nn.ModuleList, Net, Mixed
    kinds = [[isinstance(m, cls) for cls in torchs] for m in model.modules()]
    names = [(type(m).__name__, m.__module__, m._get_name()) for m in model.modules()]
    return kinds, names, repr(model), issubclass(type(model), Net), len(list(model.modules()))


def applied(model: Any, x: Tensor) -> Any:
    seen: list[str] = []

    def start(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.constant_(module.weight, 0.1)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)

    return model.apply(start) is model, seen, step(model, x)


def started_anew(model: Any, x: Tensor) -> Any:
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return step(model, x)


def of_another_class(model: Any, x: Tensor) -> Any:
    class Negative(type(model.pool)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Any:
            return -super().forward(x)

    model.pool.__class__ = Negative
    return step(model, x)


def with_forward_replaced(model: Any, x: Tensor) -> Any:
    model.pool.forward = lambda x: x
    own = model.stem[0].forward
    model.stem[0].forward = lambda x: own(x) * 2
    first = step(model, x)
    del model.pool.forward
    return first, step(model, x)


def lazy(model: Any, x: Tensor) -> Any:
    model.head[1] = nn.LazyLinear(3)
    model.stem.insert(0, nn.LazyConv2d(4, 1))
    return step(model, x), type(model.head[1]).__name__


def norms_synchronised(model: Any, x: Tensor) -> Any:
    made = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return [type(m).__name__ for m in made.modules()], made.eval()(x)


def norm_fused(model: Any, x: Tensor) -> Any:
    model.eval()
    fused = fuse_conv_bn_eval(model.stem[0], model.stem[1])
    return fused(x), list(fused.state_dict())


def norms_told_apart_by_class(model: Any, _: Tensor) -> Any:
    decayed = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return decayed, [n for n, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def in_data_parallel(model: Any, x: Tensor) -> Any:
    return step(nn.DataParallel(model), x)


def replicated(model: Any, _: Tensor) -> Any:
    replica = model._replicate_for_data_parallel()
    return list(replica._modules), replica.training


def with_dotted_names(model: Any, x: Tensor) -> Any:
    outer = nn.ModuleDict({"a-b": model})
    return outer["a-b"].get_submodule("mixed._ops.2.1").weight.shape, list(outer.state_dict())


def with_a_buffer_and_a_state_of_its_own(model: Any, x: Tensor) -> Any:
    model.stem[0].register_buffer("more", torch.ones(2))
    model.register_buffer("hidden", torch.ones(1), persistent=False)
    return step(model, x), list(model.state_dict()), [n for n, _ in model.named_buffers()]


def subclassed(model: Any, x: Tensor) -> Any:
    class Own(Net):
        def forward(self, x: Tensor) -> Any:
            return 2 * super().forward(x)

    made = Own()
    made.load_state_dict(model.state_dict())
    made.stem = model.stem
    return step(made, x)


def cloned_by_class(model: Any, x: Tensor) -> Any:
    twin = type(model)()
    twin.load_state_dict(model.state_dict())
    return step(twin, x), isinstance(twin, Net), step(copy.deepcopy(twin), x)


ROWS: dict[str, Row] = {
    row.__name__.replace("_", " "): row
    for row in (
        with_another_parameter,
        with_a_tensor_as_parameter,
        with_bias_removed,
        with_another_bias_dtype,
        with_other_numbers,
        with_other_padding,
        with_statistics_removed,
        with_a_number_that_is_none,
        without_a_part,
        without_a_layer,
        sliced,
        with_forward_hooks,
        with_hooks_that_take_names,
        with_backward_hooks,
        with_global_hooks,
        with_hooks_on_parameters,
        with_a_hook_that_removes_itself,
        parametrized,
        weight_normed,
        weight_normed_by_hooks,
        pruned,
        looked_at,
        applied,
        started_anew,
        of_another_class,
        with_forward_replaced,
        lazy,
        norms_synchronised,
        norm_fused,
        norms_told_apart_by_class,
        in_data_parallel,
        replicated,
        with_dotted_names,
        with_a_buffer_and_a_state_of_its_own,
        subclassed,
        cloned_by_class,
    )
}


@pytest.mark.filterwarnings(
    "ignore:Lazy modules are a new feature",
    "ignore:Initializing zero-element tensors",
    "ignore:.torch.nn.utils.(weight|spectral)_norm:FutureWarning",
)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_model_comes_to_what_a_plain_one_does(row: Row, state: str) -> None:
    agree(row, state)
