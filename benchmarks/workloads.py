"""The problems of whole models' steps, as files that ``nxcore tune --from-trace`` measures on any device.

    python benchmarks/workloads.py [--device cuda] [--output benchmarks/workloads] [NAME ...]

Each model runs forward and backward once, in float32 and in bfloat16 autocast, in both memory layouts: on a
GPU with all images, on the CPU with two, where the batch in the recorded problems is then set to the real
one. Modules run their operators though torch serves them, so that the problems behind those of a kernel are
recorded too. A CPU runs other layers in half precision than a GPU. The
models of torchvision need torchvision; those of the search are nxcore's own and, for ``nas.patch``, the
network of the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import nxcore
from nxcore import nas
from nxcore.errors import InvalidInputError
from nxcore.nn import embedding, modules, norms, softmaxes
from nxcore.store.encoding import encoded

sys.path.append(str(Path(__file__).parents[1]))
from tests.nas import darts  # the plain network, which is no part of the package

IMAGES = 2
"""Images of the recorded step: no other extent of these models is 2 in front of three others."""

SEP3, SEP5, DIL5, SKIP, POOL = "sep_conv_3x3", "sep_conv_5x5", "dil_conv_5x5", "skip_connect", "max_pool_3x3"
NORMAL = [(SEP3, 0), (SEP3, 1), (SEP3, 0), (SEP5, 1), (SEP3, 1), (SKIP, 0), (SKIP, 0), (DIL5, 2)]
REDUCE = [(POOL, 0), (POOL, 1), (SKIP, 2), (POOL, 1), (POOL, 0), (SKIP, 2), (SKIP, 2), (POOL, 1)]
FOUND = nas.Genotype(NORMAL, (2, 3, 4, 5), REDUCE, (2, 3, 4, 5))
"""Cells in the style of those that the paper of DARTS found."""

LAYOUTS = (torch.contiguous_format, torch.channels_last)
Kind = tuple[torch.memory_format, bool]
KINDS: tuple[Kind, ...] = tuple(itertools.product(LAYOUTS, (False, True)))
"""Memory layouts, each without and with autocast."""


def torchvisions(name: str) -> nn.Module:
    """Return a model of torchvision, accelerated."""
    from torchvision import models

    model: nn.Module = getattr(models, name)()
    nxcore.accelerate(model, watch=False)
    return model


class Search(nn.Module):
    """A search network with its architecture's weights: nxcore's, or DARTS' own under ``nas.patch``."""

    def __init__(self, network: Callable[[], nn.Module] = nas.SearchNetwork) -> None:
        super().__init__()
        self.network = network()
        self.normal, self.reduce = (nn.Parameter(1e-3 * torch.randn(14, 8)) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        """Return the scores."""
        return self.network(x, self.normal.softmax(-1), self.reduce.softmax(-1))


def patched() -> nn.Module:
    """Return the network of DARTS' own layout under ``nas.patch``."""
    model = darts.Network(16, 10, 8, 4)
    nas.patch(model, watch=False)
    return Search(lambda: model)


MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "search-patched": (patched, 64, 32),
    "search": (Search, 64, 32),
    "found": (functools.partial(nas.EvalNetwork, FOUND), 96, 32),
} | {
    name: (functools.partial(torchvisions, name), 64, 224)
    for name in ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "regnet_y_800mf")
}
"""Name -> constructor, batch, and extent of the images."""


def step(model: nn.Module, x: Tensor) -> None:
    """Run forward and backward."""
    scores = model(x)
    scores = scores[0] if isinstance(scores, tuple) else scores
    scores.float().square().mean().backward()


def _operator(_module: nn.Module, operator: Any, *args: Any) -> Any:
    try:
        return operator.run(*args)
    except InvalidInputError:
        return None


@contextlib.contextmanager
def by_operators() -> Iterator[None]:
    """Have modules run their operators, whoever serves these."""
    with (
        mock.patch.object(modules, "by_kernel", _operator),
        mock.patch.object(softmaxes, "by_kernel", _operator),
        mock.patch.object(norms, "by_kernel", _operator),
        mock.patch.object(embedding, "by_kernel", _operator),
    ):
        yield


def recorded(name: str, device: str = "cpu", kinds: Sequence[Kind] = KINDS) -> Iterator[dict[str, Any]]:
    """Yield the lines of a model's problems, with their numbers of calls in a step of each kind."""
    build, batch, extent = MODELS[name]
    counts: Counter[str] = Counter()
    for layout, half in kinds:
        torch.manual_seed(0)
        with torch.device(device):  # what is accelerated depends on it
            model = build()
        model = model.to(memory_format=layout)
        images = IMAGES if device == "cpu" else batch
        x = torch.randn(images, 3, extent, extent).to(device, memory_format=layout)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.jsonl"
            with (
                by_operators(),
                nxcore.policy("frozen"),
                nxcore.record(path),
                torch.autocast(device, torch.bfloat16, enabled=half),
            ):
                step(model, x)
            for text in path.read_text(encoding="utf-8").splitlines():
                line = json.loads(text)
                line = rebatched(line, batch) if device == "cpu" else line
                count = line.pop("count")
                counts[encoded(line, sort_keys=True)] += count
    for text, count in counts.most_common():
        yield json.loads(text) | {"count": count}


def rebatched(value: Any, batch: int) -> Any:
    """Return a line with the batch of every image, and of every size of images, replaced."""
    if isinstance(value, dict):
        return {key: rebatched(v, batch) for key, v in value.items()}
    if isinstance(value, list):
        if len(value) == 4 and value[0] == IMAGES and all(isinstance(v, int) for v in value):
            return [batch, *value[1:]]
        return [rebatched(v, batch) for v in value]
    return value


def main() -> None:
    """Record the models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[*MODELS], metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "workloads")
    given = parser.parse_args()
    given.output.mkdir(exist_ok=True)
    for name in given.names:
        lines = [encoded(line, sort_keys=True) for line in recorded(name, given.device)]
        (given.output / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(lines)} problems")


if __name__ == "__main__":
    main()
