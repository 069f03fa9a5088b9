"""What each of two ranks does: every case is a function that raises where something is wrong."""

import contextlib
import copy
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

import nxcore
from nxcore.nn import modules
from nxcore.nn import whole as models
from tests.nn.tape import Tape
from tests.null import fakes

RANKS = 2
BATCH = 6
SPLIT = ("add", "avg_pool2d", "depthwise_conv2d", "max_pool2d", "softmax_sum")


def image(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Blend(nn.Module):
    """Layers that call nxcore: modules, an operator, and one with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.pools = nn.ModuleList([nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)])
        self.logits = nn.Parameter(image(3, seed=7))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(x)
        x = self.blend((x, *(pool(x) for pool in self.pools)), self.logits)
        return self.head(x.mean((2, 3)))

    def blend(self, xs: Any, logits: Tensor) -> Tensor:
        return fakes.SPECS["softmax_sum"].reference(xs, logits)


class Ours(Blend):
    """The same by nxcore."""

    def blend(self, xs: Any, logits: Tensor) -> Tensor:
        return modules._softmax_sum(xs, logits)


def trained(model: nn.Module, x: Tensor, steps: int = 3) -> dict[str, Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return {
        name.removeprefix("module."): p.full_tensor() if isinstance(p, DTensor) else p.detach()
        for name, p in model.named_parameters()
    }


def of_networks(device: torch.device, wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Train on a rank's half of a batch and compare with plain torch, wrapped alike, and on all of it."""
    torch.manual_seed(0)
    plain = Blend().to(device)
    ours = Ours().to(device)
    ours.load_state_dict(plain.state_dict())
    assert {"depthwise", "pools.0", "pools.1"} <= set(
        nxcore.accelerate(ours).replaced
    )  # on a GPU the head too
    x = image(BATCH, 4, 8, 8).to(device)
    half = x.chunk(RANKS)[distributed.get_rank()]
    alone = trained(copy.deepcopy(plain), x)
    got, want = trained(wrap(ours), half), trained(wrap(plain), half)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value)
        torch.testing.assert_close(got[name], alone[name])


def ddp(mesh: Any, device: torch.device) -> None:
    of_networks(device, lambda m: DistributedDataParallel(m, [device] if device.type == "cuda" else None))


def replayed(mesh: Any, device: torch.device) -> None:
    """Train with replays, whose gradients come together at the end of a backward pass."""
    tape = Tape()
    if device.type == "cpu":
        vars(models)["available"], vars(models)["recorder_of"] = (lambda: True), (lambda _: tape)
    torch.manual_seed(0)
    plain = nn.Sequential(*(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()) for _ in "abc"))
    ours = copy.deepcopy(plain).to(device)
    x = image(BATCH, 4, 32, 32).chunk(RANKS)[distributed.get_rank()].to(device)
    gpus = [device] if device.type == "cuda" else None
    nets = [DistributedDataParallel(m, gpus, bucket_cap_mb=1e-3) for m in (ours, plain.to(device))]
    nxcore.accelerate(nets[0])
    with nxcore.policy("frozen"):
        got, want = (trained(net, x, 12) for net in nets)
    (found,) = nxcore.status(nets[0]).parts
    assert found.by == "replay", found.why
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(plain.named_buffers()))


def fsdp(mesh: Any, device: torch.device) -> None:
    def wrap(model: nn.Module) -> nn.Module:
        fully_shard(model.depthwise, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    of_networks(device, wrap)


CALLS: dict[str, tuple[str, Callable[[], tuple[Any, ...]], dict[int, tuple[int | None, ...]]]] = {
    # name: operator, arguments, and for each dimension of the result where its tensors are cut
    "add": ("add", lambda: (image(5, 4, 8, 8), image(5, 4, 8, 8, seed=1)), {0: (0, 0), 1: (1, 1), 3: (3, 3)}),
    "bias": ("add", lambda: (image(5, 4, 8, 8), image(4, 1, 1, seed=1)), {0: (0, None), 1: (1, 0)}),
    "number": ("add", lambda: (image(5, 4), 2.0), {0: (0,), 1: (1,)}),
    "max": ("max_pool2d", lambda: (image(5, 4, 8, 8), 3, 2, 1), {0: (0,), 1: (1,)}),
    "average": ("avg_pool2d", lambda: (image(5, 4, 8, 8), 3, 2, 1), {0: (0,), 1: (1,)}),
    "depthwise": (
        "depthwise_conv2d",
        lambda: (image(5, 4, 8, 8), image(4, 1, 3, 3, seed=1), 1, 1),
        {0: (0, None), 1: (1, 0)},
    ),
    "blend": (
        "softmax_sum",
        lambda: ((image(5, 4, 6), image(5, 4, 6, seed=1)), image(2, seed=2)),
        {0: (0, 0, None), 1: (1, 1, None)},
    ),
    "stacked": ("softmax_sum", lambda: (image(3, 5, 4), image(3, seed=2)), {0: (1, None), 1: (2, None)}),
}


def of_call(name: str, place: Callable[[int, Tensor], list[Any]], mesh: Any, device: torch.device) -> DTensor:
    """Call an operator with placed arguments; hold result and gradients to those of the whole call."""
    op, make, _ = CALLS[name]
    given = make()
    wholes = [t.to(device).requires_grad_() for t in fakes.leaves(list(given))]
    shared = [
        distribute_tensor(t.detach().clone(), mesh, place(i, t)).requires_grad_()
        for i, t in enumerate(wholes)
    ]
    operator = OPERATORS[op]
    RAN.clear()
    result = operator(*filled(given, shared))
    want = fakes.SPECS[op].reference(*fakes.SPECS[op].bind(*filled(given, wholes)))
    torch.testing.assert_close(result.full_tensor(), want)
    if device.type == "cpu":
        assert RAN, "torch's rules served the call"
    cotangent = image(*want.shape, seed=9).to(device)
    want.backward(cotangent)
    result.backward(distribute_tensor(cotangent, mesh, result.placements))
    for got, whole in zip(shared, wholes, strict=True):
        torch.testing.assert_close(got.grad.full_tensor(), whole.grad)
    return result


def filled(given: tuple[Any, ...], tensors: list[Tensor]) -> tuple[Any, ...]:
    rest = iter(tensors)
    return tuple(
        tuple(next(rest) for _ in v) if isinstance(v, tuple) else next(rest) if isinstance(v, Tensor) else v
        for v in given
    )


def calls(mesh: Any, device: torch.device) -> None:
    for name, (_, _, ways) in CALLS.items():
        for result, cut in ways.items():
            placed = [Replicate() if dim is None else Shard(dim) for dim in cut]
            out = of_call(name, lambda i, t, placed=placed: [placed[i]], mesh, device)
            assert out.placements == (Shard(result),), (name, out.placements)


def whole(mesh: Any, device: torch.device) -> None:
    """What every rank has whole stays so; what is cut across a window is gathered."""
    for name in CALLS:
        out = of_call(name, lambda i, t: [Replicate()], mesh, device)
        assert out.placements == (Replicate(),), name
    out = of_call("max", lambda i, t: [Shard(2)], mesh, device)
    assert out.placements == (Replicate(),)
    of_call("depthwise", lambda i, t: [Shard(1) if i == 0 else Replicate()], mesh, device)


def partial(mesh: Any, device: torch.device) -> None:
    """Of terms that nobody has added up yet, the sum is pooled."""
    x = image(4, 4, 8, 8).to(device)
    terms = DTensor.from_local(x, mesh, [Partial()])
    got = OPERATORS["max_pool2d"](terms, 2).full_tensor()
    torch.testing.assert_close(got, nn.functional.max_pool2d(RANKS * x, 2))


def strict(mesh: Any, device: torch.device) -> None:
    """A backend that is asked for serves every rank's part."""
    if device.type == "cuda":
        x = distribute_tensor(image(4, 6).to(device), mesh, [Shard(0)])
        torch.testing.assert_close(nxcore.op("add", backend="cuda")(x, x).full_tensor(), 2 * x.full_tensor())


def explained(mesh: Any, device: torch.device) -> None:
    x = distribute_tensor(image(4, 6).to(device), mesh, [Shard(0)])
    assert "every rank chooses a kernel for its own shards" in str(nxcore.explain("add", x, x))
    assert "subclass of Tensor" in str(nxcore.explain("sum", x))


def architecture(mesh: Any, device: torch.device) -> None:
    """A search's gradients are those of the joined batch; its ranks stay alike, to the bit."""
    from nxcore.nas import ArchitectureParameters, SearchNetwork, Trainer, bilevel
    from nxcore.nas.data import Split
    from nxcore.nas.process_group import mean
    from nxcore.nas.step import Passes
    from tests.nas.test_trainer import LEAST, images

    torch.manual_seed(0)
    net = (
        SearchNetwork(C=2, num_classes=2, layers=2, steps=1, multiplier=1, in_channels=1).double().to(device)
    )
    net.eval()  # in training batch norms would know a rank's images alone
    arch = ArchitectureParameters(steps=1, multiplier=1).double().to(device)
    whole = Split(image(8, 1, 8, 8).double().to(device), torch.arange(8).to(device) % 2)
    own = Split(*(t.chunk(RANKS)[distributed.get_rank()] for t in whole))
    with nxcore.policy("frozen"):
        for found in (bilevel.first_order, lambda *a: bilevel.second_order(*a[:2], own, a[2], 0.0)):
            torch.testing.assert_close(
                mean(found(net, arch, own).gradient), bilevel.first_order(net, arch, whole).gradient
            )
        trainer = Trainer(images().to(device), LEAST)
        rows = list(trainer.run())
    trainer.net.drop_path_prob = 0.0
    seen = []
    for graphed in (True, False):  # in this order: DDP holds on to nodes of the stream that it was made on
        passes = Passes(trainer.net, trainer.arch, graphed=graphed)
        passes.of_weights(Split(*(t.chunk(RANKS)[distributed.get_rank()] for t in images().to(device).both)))
        seen.append([p.grad.clone() for p in trainer.net.parameters()])
    torch.testing.assert_close(*seen)
    told = [trainer.state_dict()[name] for name in ("genotype", "history", "arch", "optimizer")]
    told = tree_map(lambda v: v.cpu() if isinstance(v, torch.Tensor) else v, told)  # their devices differ
    assert [row["phase"] for row in rows] == ["warm-up", "search", "search", "retraining", "retraining"]
    assert told[2]["logits"].isfinite().all()
    everywhere: list[Any] = [None] * RANKS
    distributed.all_gather_object(
        everywhere, [str(told), *(p.detach().cpu() for p in trainer.net.parameters())]
    )
    for one in everywhere[1:]:
        assert one[0] == everywhere[0][0]
        assert all(map(torch.equal, one[1:], everywhere[0][1:]))


OPERATORS: dict[str, Any] = {}
RAN: list[str] = []


def serve(device: torch.device) -> Any:
    """Have real kernels serve on CUDA, and on the CPU torch's references in disguise: nothing to compile."""
    if device.type == "cuda":
        OPERATORS.update({name: nxcore.op(name) for name in SPLIT})
        return nxcore.use("cuda", "triton")

    def noting(name: str) -> fakes.FakeKernel:
        def run(*args: object) -> object:
            RAN.append(name)
            return fakes.SPECS[name].reference(*args)

        return fakes.kernel(name, run)

    session = fakes.session(fakes.backend("fake", *map(noting, fakes.SPECS)))
    OPERATORS.update({name: session.op(name) for name in SPLIT})
    for name, operator in OPERATORS.items():
        setattr(modules, f"_{name}", operator)
    return session.use("fake")


def main(kind: str, folder: str, cases: list[str], rank: int) -> None:
    """Run these cases as one of two ranks, and write down which failed and how."""
    torch.set_num_threads(1)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    method = f"file://{folder}/store"
    distributed.init_process_group(
        "nccl" if kind == "cuda" else "gloo", init_method=method, rank=rank, world_size=RANKS
    )
    mesh = init_device_mesh(kind, (RANKS,))
    failures = {}
    for name in cases:
        with serve(device) if name != "replayed" else contextlib.nullcontext():
            try:
                globals()[name](mesh, device)
            except Exception:  # noqa: BLE001  it is shown by the test of that name
                failures[name] = traceback.format_exc()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(failures), encoding="utf-8")
    os._exit(0)  # at exit a rank would wait for one that failed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:-1], int(sys.argv[-1]))
