"""Images to search on: scikit-learn's digits, CIFAR-10, a folder of images; split, normalised, augmented."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.errors import InvalidInputError

HELD_OUT = 0.2
"""The share held out of training, for sources without a test set."""

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
SHARE, THREADS = 512, 8
"""JPEG files that a thread decodes at a time, and threads: Python's lock is held for half of the time."""

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Split(NamedTuple):
    """Images, float32 (N, C, H, W), and their labels, int64 (N,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Data:
    """A set of images in three disjoint splits.

    Attributes
    ----------
    name : str
        The source.
    classes : tuple of str
        The name of each label.
    train, validation : Split
        The images for the weights and for the architecture; retraining uses both.
    held_out : Split
        The images of the final evaluation; nothing is fitted to or chosen by them.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    validation: Split
    held_out: Split

    def to(self, device: torch.device | str) -> Data:
        """Return the data with all splits on ``device``."""

        def moved(part: Split) -> Split:
            return Split(part.images.to(device), part.labels.to(device))

        train, validation = moved(self.train), moved(self.validation)
        return replace(self, train=train, validation=validation, held_out=moved(self.held_out))

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return sum(part.images.nbytes for part in (self.train, self.validation, self.held_out))

    @property
    def counts(self) -> list[int]:
        """The number of images in each split."""
        return [len(part.labels) for part in (self.train, self.validation, self.held_out)]

    @property
    def both(self) -> Split:
        """The splits ``train`` and ``validation`` together."""
        return Split(*(torch.cat(pair) for pair in zip(self.train, self.validation, strict=True)))


class Pixels(NamedTuple):
    """A source's images as bytes, and its test set where it has one."""

    classes: tuple[str, ...]
    images: Tensor
    labels: Tensor
    test: tuple[Tensor, Tensor] | None = None


def load(source: str, root: str | Path | None = None, *, seed: int = 0, side: int = 32) -> Data:
    """Return a set of images, in splits that depend only on ``seed``.

    Every channel has mean 0 and standard deviation 1 over the images that are not held out.

    Parameters
    ----------
    source : str
        ``digits``, ``cifar10``, or a folder that has one folder of images for each class.
    root : path, optional
        For ``cifar10``: the folder of its Python batches, or an ``.npz`` of its images as JPEG files. The
        latter holds ``classes`` and, for ``train`` and ``test``, the arrays ``*_jpeg`` (all files
        concatenated), ``*_offset`` and ``*_label``.
    seed : int
        The seed of the splits.
    side : int
        Height and width to which the images of a folder are scaled.

    Raises
    ------
    InvalidInputError
        If the source is unknown, or its files have another form.
    """
    if source == "digits":
        pixels = _digits()
    elif source == "cifar10":
        if root is None:
            raise InvalidInputError(
                "root must be cifar10's folder of batches or its .npz, got None", argument="root"
            )
        pixels = _packed(Path(root)) if Path(root).suffix == ".npz" else _batches(Path(root))
    elif Path(source).is_dir():
        pixels = _folder(Path(source), side)
    else:
        raise InvalidInputError(
            f"source must be digits, cifar10 or a folder that exists, got {source!r}", argument="source"
        )
    return _split(source, pixels, seed)


def augment(
    images: Tensor, generator: torch.Generator, *, pad: int = 4, flip: bool = True, cutout: int = 0
) -> Tensor:
    """Return a batch of images on the same device, each shifted, mirrored and cut out at random.

    Parameters
    ----------
    images : Tensor
        Shape (N, C, H, W), normalised: pixels that are cut out become 0, the mean.
    generator : torch.Generator
        A generator on the images' device.
    pad : int
        The largest shift in pixels, vertically and horizontally; zeros fill the border.
    flip : bool
        Whether each image is mirrored with probability 1/2.
    cutout : int
        The side of the square that is cut out; at the border, part of it is outside the image. DeVries,
        Taylor 2017, arXiv:1708.04552.
    """
    n, channels, height, width = images.shape
    device = images.device

    def draw(high: int) -> Tensor:
        return torch.randint(high, (n, 1), generator=generator, device=device)

    y, x = torch.arange(height, device=device), torch.arange(width, device=device)
    rows, columns = draw(2 * pad + 1) + y, draw(2 * pad + 1) + x
    if flip:
        columns = torch.where(draw(2) == 1, columns.flip(1), columns)
    padded = functional.pad(images, (pad, pad, pad, pad))
    at = torch.arange(n, device=device)[:, None, None, None]
    each = torch.arange(channels, device=device)[None, :, None, None]
    out = padded[at, each, rows[:, None, :, None], columns[:, None, None, :]]
    if cutout:
        above, left = draw(height) - cutout // 2, draw(width) - cutout // 2
        hit = ((y >= above) & (y < above + cutout))[:, :, None] & ((x >= left) & (x < left + cutout))[:, None]
        out = out.masked_fill(hit[:, None], 0.0)
    return out


def orders(
    part: Split, size: int, generator: torch.Generator, *, rank: int = 0, world: int = 1
) -> Iterator[Tensor]:
    """Yield the indices of a split's images in batches of ``size``, in an order drawn on the split's device.

    Images that do not fill a last batch are left out of this epoch; a smaller split is one batch. Each
    ``world``-th batch from ``rank`` on is yielded; all ranks get the same number.
    """
    count = len(part.labels)
    order = torch.randperm(count, generator=generator, device=part.labels.device)
    size = min(size, count // world)
    rounds = count // (size * world)
    yield from order[: rounds * world * size].view(-1, size)[rank::world]


def batches(
    part: Split, size: int, generator: torch.Generator, *, rank: int = 0, world: int = 1
) -> Iterator[Split]:
    """Yield a split's images in batches: see ``orders``.

    >>> images = nas.data.Split(torch.randn(5, 3, 8, 8), torch.arange(5))
    >>> [len(batch.labels) for batch in nas.data.batches(images, 2, torch.Generator())]
    [2, 2]
    """
    for places in orders(part, size, generator, rank=rank, world=world):
        yield Split(part.images[places], part.labels[places])


def _split(name: str, pixels: Pixels, seed: int) -> Data:
    images, labels, test = pixels.images, pixels.labels, pixels.test
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    if test is None:
        kept = len(order) - round(HELD_OUT * len(order))
        test = images[order[kept:]], labels[order[kept:]]
        order = order[:kept]
    images, labels = _unit(images[order]), labels[order]
    deviation, mean = torch.std_mean(images, dim=(0, 2, 3), keepdim=True, correction=0)

    def part(of: Tensor, classes: Tensor) -> Split:
        return Split((of - mean) / deviation.clamp_min(1e-6), classes.long())

    half = len(labels) // 2
    if not half or not len(test[1]):
        raise InvalidInputError(
            f"{name} must have at least 3 images, got {len(pixels.labels)}", argument="source"
        )
    return Data(
        name,
        pixels.classes,
        part(images[:half], labels[:half]),
        part(images[half:], labels[half:]),
        part(_unit(test[0]), test[1]),
    )


def _unit(images: Tensor) -> Tensor:
    return images.float() / 255.0


def _digits() -> Pixels:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise _missing("digits", "scikit-learn") from error
    found = load_digits()
    # The 16 grey values are scaled to bytes, as in the other sources.
    images = torch.from_numpy(found.images).mul(255 / 16)[:, None]
    return Pixels(tuple(str(c) for c in found.target_names), images, torch.from_numpy(found.target))


def _folder(folder: Path, side: int) -> Pixels:
    image = _pillow()
    classes = sorted(p for p in folder.iterdir() if p.is_dir())
    files = [
        (file, label)
        for label, of_class in enumerate(classes)
        for file in sorted(of_class.rglob("*"))
        if file.suffix.lower() in SUFFIXES
    ]
    if len(classes) < 2 or not files:
        raise InvalidInputError(
            f"{folder} must hold folders of images for at least two classes, got {len(classes)} "
            f"folders with {len(files)} images",
            argument="source",
        )
    images = []
    for file, _ in files:
        with image.open(file) as opened:
            images.append(_bytes(opened.convert("RGB").resize((side, side))))
    labels = torch.tensor([label for _, label in files])
    return Pixels(tuple(p.name for p in classes), torch.stack(images), labels)


def _packed(file: Path) -> Pixels:
    import numpy as np

    image = _pillow()
    with np.load(file, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}

    def part(name: str) -> tuple[Tensor, Tensor]:
        jpeg, offset = arrays[f"{name}_jpeg"].tobytes(), arrays[f"{name}_offset"].tolist()
        count = len(offset) - 1
        with image.open(io.BytesIO(jpeg[offset[0] : offset[1]])) as opened:
            width, height = opened.size

        def decoded(first: int) -> Any:
            # One picture of all of them: an array of each costs more than its decoding.
            places = range(first, min(first + SHARE, count))
            strip = image.new("RGB", (width, height * len(places)))
            for row, i in enumerate(places):
                with image.open(io.BytesIO(jpeg[offset[i] : offset[i + 1]])) as opened:
                    if opened.size != (width, height):
                        raise InvalidInputError(
                            f"images of {file} must be {(width, height)}, as the first, got {opened.size}",
                            argument="root",
                        )
                    strip.paste(opened, (0, height * row))
            return np.asarray(strip).reshape(-1, height, width, 3)

        with ThreadPoolExecutor(THREADS) as pool:  # Pillow decodes without Python's lock
            images = np.concatenate(list(pool.map(decoded, range(0, count, SHARE))))
        planes = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        return planes, torch.from_numpy(arrays[f"{name}_label"])

    try:
        return Pixels(tuple(map(str, arrays["classes"])), *part("train"), part("test"))
    except KeyError as error:
        raise InvalidInputError(
            f"{file} must hold an array {error}, see nxcore.nas.data.load", argument="root"
        ) from error


def _batches(folder: Path) -> Pixels:
    inner = folder / "cifar-10-batches-py"
    folder = inner if inner.is_dir() else folder
    names = [f"data_batch_{i}" for i in range(1, 6)]
    if missing := [n for n in (*names, "test_batch") if not (folder / n).is_file()]:
        raise InvalidInputError(f"{folder} must hold {', '.join(missing)}", argument="root")

    def part(files: Sequence[str]) -> tuple[Tensor, Tensor]:
        held = [_unpickled(folder / file) for file in files]
        images = torch.cat([torch.from_numpy(h[b"data"]) for h in held]).view(-1, 3, 32, 32)
        return images, torch.tensor([label for h in held for label in h[b"labels"]])

    return Pixels(CIFAR10, *part(names), part(["test_batch"]))


def _unpickled(file: Path) -> dict[bytes, Any]:
    """Read a pickle of lists, bytes and arrays; raise if it names anything else."""
    import codecs

    import numpy as np

    empty: Any = np.empty(0)
    allowed: dict[str, Any] = {"ndarray": np.ndarray, "dtype": np.dtype, "encode": codecs.encode}
    # numpy's functions for arrays; their module depends on numpy's version
    allowed |= {f.__name__: f for f in (empty.__reduce__()[0], empty.__reduce_ex__(5)[0])}

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module.partition(".")[0] not in ("numpy", "_codecs") or name not in allowed:
                raise InvalidInputError(
                    f"{file} names {module}.{name}, which no batch of CIFAR-10 contains", argument="root"
                )
            return allowed[name]

    with file.open("rb") as opened:
        found = Reader(opened, encoding="bytes").load()
    if not isinstance(found, dict) or not {b"data", b"labels"} <= found.keys():
        raise InvalidInputError(f"{file} must hold data and labels", argument="root")
    return found


def _bytes(image: Any) -> Tensor:
    width, height = image.size
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(height, width, -1).permute(2, 0, 1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise _missing("images in files", "Pillow") from error
    return Image


def _missing(what: str, package: str) -> InvalidInputError:
    return InvalidInputError(f"{what} needs {package}: pip install {package.lower()}", argument="source")
