"""Programs that train a model, differentiate it, or run it under a context of torch's."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.nn.utils import stateless
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.nn.programs import Net, Row, agree, step


def stepped(model: Any, x: Tensor) -> Any:
    return [step(model, x) for _ in range(3)]


def evaluated(model: Any, x: Tensor) -> Any:
    step(model, x)
    with torch.no_grad():
        found = model.eval()(x)
    return found, step(model, x), step(model.train(), x)


def with_frozen_norms(model: Any, x: Tensor) -> Any:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval().requires_grad_(False)
    return step(model, x), [p.requires_grad for p in model.parameters()]


def with_gradients_toggled(model: Any, x: Tensor) -> Any:
    model.requires_grad_(False)
    first = model(x).requires_grad
    model.stem.requires_grad_(True)
    return first, step(model, x), step(model, x.clone().requires_grad_())


def with_gradient_of_input(model: Any, x: Tensor) -> Any:
    x.requires_grad_()
    step(model, x)
    return x.grad


def with_optimizer(model: Any, x: Tensor) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-3)
    losses = []
    for unset in (True, False, True):
        optimizer.zero_grad(set_to_none=unset)
        loss = model(x).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses += [loss.detach(), norm]
    return losses, [list(state) for state in optimizer.state.values()]


def with_accumulated_gradients(model: Any, x: Tensor) -> Any:
    for part in x.split(1):
        model(torch.cat([part, part + 1])).sum().backward()
    return None


def with_scaled_gradients(model: Any, x: Tensor) -> Any:
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(model(x).square().mean()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale(), dict(model.state_dict())


def under_autocast(model: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    y.float().sum().backward()
    found = [*(p.grad for p in model.parameters()), *(b for b in model.buffers() if b.ndim)]
    found = [t.bfloat16() for t in found]  # which is how exact they are
    model.zero_grad()
    model.load_state_dict(Net().state_dict())
    return y.detach(), found


def with_graph_retained(model: Any, x: Tensor) -> Any:
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def differentiated_twice(model: Any, x: Tensor) -> Any:
    x.requires_grad_()
    (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    first.square().sum().backward()
    return first.detach(), x.grad


def without_gradients(model: Any, x: Tensor) -> Any:
    with torch.no_grad():
        return model(x)


def in_inference_mode(model: Any, x: Tensor) -> Any:
    with torch.inference_mode():
        y = model.eval()(x)
    return y.is_inference(), y.clone()


def checkpointed(*, reentrant: bool) -> Row:
    def row(model: Any, x: Tensor) -> Any:
        y = checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)
        y.sum().backward()
        return y.detach(), x.grad

    return row


def checkpointed_in_parts(model: Any, x: Tensor) -> Any:
    parts = nn.Sequential(model.stem, model.pool, model.mean, model.head)
    y = checkpoint_sequential(parts, 2, x, use_reentrant=False)
    y.sum().backward()
    return y.detach()


def with_saved_tensors_packed(model: Any, x: Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = model(x)
    y.sum().backward()
    return y.detach()


def with_anomalies_detected(model: Any, x: Tensor) -> Any:
    with torch.autograd.detect_anomaly(check_nan=True):
        return step(model, x)


def deterministically(model: Any, x: Tensor) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return step(model, x)
    finally:
        torch.use_deterministic_algorithms(False)


def called_functionally(model: Any, x: Tensor) -> Any:
    state = {name: t.detach() * 0.5 for name, t in model.named_parameters()}
    buffers = {name: t.clone() for name, t in model.named_buffers()}
    return functional_call(model, (state, buffers), (x,)), buffers


def called_statelessly(model: Any, x: Tensor) -> Any:
    with pytest.warns(FutureWarning):
        return stateless.functional_call(model, {"head.1.bias": torch.ones(3)}, (x,)).detach()


def loss_of(model: Any, buffers: dict[str, Tensor], x: Tensor) -> Any:
    def loss(parameters: dict[str, Tensor]) -> Tensor:
        copies = {name: b.clone() for name, b in buffers.items()}
        out: Tensor = functional_call(model, (parameters, copies), (x,)).square().sum()
        return out

    return loss


def state_of(model: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return parameters, {name: b.clone() for name, b in model.named_buffers()}


def by_grad(model: Any, x: Tensor) -> Any:
    parameters, buffers = state_of(model)
    return grad(loss_of(model, buffers, x))(parameters)


def by_vjp(model: Any, x: Tensor) -> Any:
    parameters, buffers = state_of(model)
    value, pull = vjp(loss_of(model, buffers, x), parameters)
    return value, pull(torch.ones(()))


def by_jvp(model: Any, x: Tensor) -> Any:
    parameters, buffers = state_of(model.eval())
    return jvp(loss_of(model, buffers, x), (parameters,), (parameters,))


def by_jacrev(model: Any, x: Tensor) -> Any:
    parameters, buffers = state_of(model.eval())
    return jacrev(lambda p: functional_call(model, (p, buffers), (x,)))(parameters)


def by_jacfwd(model: Any, x: Tensor) -> Any:
    return jacfwd(model.eval())(x)


def by_jacrev_in_training(model: Any, x: Tensor) -> Any:
    return jacrev(model)(x)


def by_hessian(model: Any, x: Tensor) -> Any:
    parameters, buffers = state_of(model.eval())
    few = {"head.1.bias": parameters.pop("head.1.bias")}
    whole = loss_of(model, buffers | parameters, x)
    return hessian(whole)(few)


def in_forward_mode(model: Any, x: Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        y = model(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        return torch.autograd.forward_ad.unpack_dual(y).tangent.detach()


def by_functional_jacobian(model: Any, x: Tensor) -> Any:
    return torch.autograd.functional.jacobian(model.eval(), x, vectorize=True)


def with_batched_gradients(model: Any, x: Tensor) -> Any:
    x.requires_grad_()
    y = model.eval()(x)
    return torch.autograd.grad(y, x, torch.eye(3)[:, None].expand(3, 2, 3), is_grads_batched=True)


def ensemble(*, train: bool) -> Row:
    def row(model: Any, x: Tensor) -> Any:
        models = [copy.deepcopy(model).train(train) for _ in range(2)]
        models.append(model.train(train))
        parameters, buffers = stack_module_state(models)
        call = vmap(lambda p, b: functional_call(model, (p, b), (x,)), randomness="different")
        y = call(parameters, buffers)
        y.sum().backward()
        return y.detach(), buffers, {name: p.grad for name, p in parameters.items()}

    return row


def ensemble_of_parts(model: Any, x: Tensor) -> Any:
    part = model.stem
    parameters, buffers = stack_module_state([part, copy.deepcopy(part)])
    return vmap(lambda p, b: functional_call(part, (p, b), (x,)))(parameters, buffers)


def ensemble_on_meta(model: Any, x: Tensor) -> Any:
    parameters, buffers = stack_module_state([model, model])
    base = copy.deepcopy(model).to("meta")
    return vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers), buffers


def with_gradients_of_samples(model: Any, x: Tensor) -> Any:
    parameters, buffers = state_of(model.eval())

    def loss(p: Any, one: Tensor) -> Tensor:
        out: Tensor = functional_call(model, (p, buffers), (one[None],)).sum()
        return out

    return vmap(grad(loss), in_dims=(None, 0))(parameters, x)


def mapped_over_images(model: Any, x: Tensor) -> Any:
    return vmap(model.eval())(torch.stack([x, x + 1])), [vmap(model)(x[None]) for _ in range(40)][-1]


def mapped_in_training(model: Any, x: Tensor) -> Any:
    return vmap(model.train())(torch.stack([x, x + 1]))


def in_threads(model: Any, x: Tensor) -> Any:
    found: list[Any] = [None] * 4
    model.eval()

    def work(i: int) -> None:
        with torch.no_grad():
            found[i] = model(x + i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def with_noise(model: Any, x: Tensor) -> Any:
    model.head[0] = nn.Sequential(nn.Flatten(), nn.Dropout(0.5))
    generator = torch.Generator().manual_seed(3)
    return step(model, x + torch.randn(x.shape, generator=generator)), torch.rand(2)


def on_a_subclass_of_tensor(model: Any, x: Tensor) -> Any:
    class Named(Tensor):
        pass

    y = model(x.as_subclass(Named))
    return type(y).__name__, y.detach().as_subclass(Tensor)


def on_one_image_without_batch(model: Any, x: Tensor) -> Any:
    return model.eval()(x[0])


def on_no_images(model: Any, x: Tensor) -> Any:
    return model.eval()(x[:0]), Net().eval()(x[:0]).shape


def on_a_wrong_number_of_channels(model: Any, x: Tensor) -> Any:
    return model(x[:, :3])


def on_one_value_a_channel(model: Any, x: Tensor) -> Any:
    return model.stem[1](x[:1, :, :1, :1])


def on_integers(model: Any, x: Tensor) -> Any:
    return model(x.long())


ROWS: dict[str, Row] = {
    "checkpointed": checkpointed(reentrant=False),
    "checkpointed reentrantly": checkpointed(reentrant=True),
    "an ensemble in training": ensemble(train=True),
    "an ensemble in evaluation": ensemble(train=False),
} | {
    row.__name__.replace("_", " "): row
    for row in (
        stepped,
        evaluated,
        with_frozen_norms,
        with_gradients_toggled,
        with_gradient_of_input,
        with_optimizer,
        with_accumulated_gradients,
        with_scaled_gradients,
        under_autocast,
        with_graph_retained,
        differentiated_twice,
        without_gradients,
        in_inference_mode,
        checkpointed_in_parts,
        with_saved_tensors_packed,
        with_anomalies_detected,
        deterministically,
        called_functionally,
        called_statelessly,
        by_grad,
        by_vjp,
        by_jvp,
        by_jacrev,
        by_jacfwd,
        by_jacrev_in_training,
        by_hessian,
        in_forward_mode,
        by_functional_jacobian,
        with_batched_gradients,
        ensemble_of_parts,
        ensemble_on_meta,
        with_gradients_of_samples,
        mapped_over_images,
        mapped_in_training,
        in_threads,
        with_noise,
        on_a_subclass_of_tensor,
        on_one_image_without_batch,
        on_no_images,
        on_a_wrong_number_of_channels,
        on_one_value_a_channel,
        on_integers,
    )
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's own vmap
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_model_comes_to_what_a_plain_one_does(row: Row, state: str) -> None:
    agree(row, state)
