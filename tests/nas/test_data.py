"""Images come normalised, in parts that share none, from every kind of source; chance has a generator."""

import io
import pickle

import pytest
import torch

from nxcore.errors import InvalidInputError
from nxcore.nas import data
from nxcore.nas.data import Split

np = pytest.importorskip("numpy", reason="an extra")


def pillow():
    return pytest.importorskip("PIL.Image", reason="an extra")


def rows(images):
    return {tuple(row) for row in images.flatten(1).tolist()}


def test_digits_are_normalised_and_in_parts_that_share_none():
    pytest.importorskip("sklearn", reason="an extra")
    found = data.load("digits", seed=3)
    assert found.classes == tuple("0123456789")
    assert [len(p.labels) for p in (found.train, found.validation, found.held_out)] == [719, 719, 359]
    assert found.both.images.shape == (1438, 1, 8, 8)
    assert found.both.images.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert found.both.images.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)
    parts = [rows(p.images) for p in (found.train, found.validation, found.held_out)]
    assert len(set.union(*parts)) == sum(map(len, parts))
    again, other = data.load("digits", seed=3), data.load("digits", seed=4)
    assert torch.equal(found.held_out.images, again.held_out.images)
    assert not torch.equal(found.held_out.labels, other.held_out.labels)


def test_an_image_folder_has_a_class_a_folder(tmp_path):
    image = pillow()
    for label, (name, colour) in enumerate([("blue", (0, 0, 255)), ("red", (255, 0, 0))]):
        (tmp_path / name).mkdir()
        for i in range(4 + label):
            image.new("RGB", (9, 5), colour).save(tmp_path / name / f"{i}.png")
        (tmp_path / name / "notes.txt").write_text("not an image")
    found = data.load(str(tmp_path), side=8)
    assert found.classes == ("blue", "red")
    assert [len(p.labels) for p in (found.train, found.validation, found.held_out)] == [3, 4, 2]
    for images, labels in (found.both, found.held_out):
        assert images.shape[1:] == (3, 8, 8)
        assert torch.equal(images[:, 0, 0, 0] > images[:, 2, 0, 0], labels == 1), "red is red"


def batch(folder, name, seed, protocol=2):
    drawn = np.random.default_rng(seed)
    held = {b"data": drawn.integers(0, 256, (4, 3072), dtype=np.uint8), b"labels": [0, 1, 2, 9]}
    (folder / name).write_bytes(pickle.dumps(held, protocol))
    return torch.from_numpy(held[b"data"]).view(4, 3, 32, 32)


@pytest.mark.parametrize("protocol", [2, 5])
def test_cifar10_is_read_from_its_batches(tmp_path, protocol):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    trained = torch.cat([batch(folder, f"data_batch_{i}", i, protocol) for i in range(1, 6)]).float()
    tested = batch(folder, "test_batch", 6, protocol).float()
    found = data.load("cifar10", tmp_path)
    assert found.classes[9] == "truck"
    assert len(found.train.labels) == len(found.validation.labels) == 10
    mean, deviation = (
        trained.mean((0, 2, 3), keepdim=True),
        trained.std((0, 2, 3), keepdim=True, correction=0),
    )
    torch.testing.assert_close(found.held_out.images, (tested - mean) / deviation, atol=1e-4, rtol=0)
    assert found.held_out.labels.tolist() == [0, 1, 2, 9]


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_a_pickle_that_names_a_function_is_refused(tmp_path, capsys):
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (tmp_path / name).write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(InvalidInputError, match=r"data_batch_1 names builtins.print"):
        data.load("cifar10", tmp_path)
    assert capsys.readouterr().out == ""


def write_packed(file, sides):
    """Write a file of as many JPEGs as there are sides, and two more for the test."""
    image = pillow()

    def packed(sides):
        files = []
        for i, side in enumerate(sides):
            stream = io.BytesIO()
            image.new("RGB", (side, side), (10 * i, 0, 255)).save(stream, "JPEG", quality=95)
            files.append(np.frombuffer(stream.getvalue(), np.uint8))
        return np.concatenate(files), np.cumsum([0, *map(len, files)]).astype(np.uint32)

    arrays = {"classes": np.array(["a", "b"])}
    for name, of in (("train", sides), ("test", (32, 32))):
        arrays[f"{name}_jpeg"], arrays[f"{name}_offset"] = packed(of)
        arrays[f"{name}_label"] = np.arange(len(of), dtype=np.uint8) % 2
    np.savez(file, **arrays)


def test_packed_jpegs_of_several_sizes_are_refused(tmp_path):
    write_packed(tmp_path / "packed.npz", (32, 32, 30, 32))
    with pytest.raises(InvalidInputError, match=r"must be \(32, 32\), as the first, got \(30, 30\)"):
        data.load("cifar10", tmp_path / "packed.npz")


@pytest.mark.parametrize("share", [4, data.SHARE])
def test_cifar10_is_read_from_packed_jpegs(share, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "SHARE", share)  # files of several threads keep their order
    write_packed(tmp_path / "packed.npz", (32,) * 6)
    found = data.load("cifar10", tmp_path / "packed.npz")
    assert found.classes == ("a", "b")
    assert found.both.images.shape == (6, 3, 32, 32)
    assert found.both.images.is_contiguous()
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.both.images[:, 0, 0, 0].argsort(), order.argsort())
    assert found.held_out.labels.tolist() == [0, 1]
    reds = found.held_out.images[:, 0, 0, 0]
    assert reds[0] < reds[1], "the second is redder"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("nowhere",), "source must be digits, cifar10 or a folder that exists, got 'nowhere'"),
        (("cifar10",), "root must be cifar10's folder"),
        (("cifar10", "."), "must hold data_batch_1, data_batch_2, .*test_batch"),
    ],
)
def test_what_is_not_there_is_named(given, message):
    with pytest.raises(InvalidInputError, match=message):
        data.load(*given)


def images(n=200, side=6):
    return torch.arange(1.0, 1 + n * 2 * side * side).view(n, 2, side, side)


def test_augmented_images_are_shifted_and_mirrored_wholes():
    x = images()
    out = data.augment(x, torch.Generator().manual_seed(0), pad=1, flip=True)
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    seen = set()
    for i in range(len(x)):
        for dy in range(3):
            for dx in range(3):
                window = padded[i, :, dy : dy + 6, dx : dx + 6]
                for flipped in (False, True):
                    if torch.equal(out[i], window.flip(-1) if flipped else window):
                        seen.add((dy, dx, flipped))
                        break
    assert len(seen) == 18, "every shift, mirrored and not, and nothing else"


def test_a_hole_is_a_square_in_all_channels():
    out = data.augment(
        torch.ones(300, 2, 6, 6), torch.Generator().manual_seed(0), pad=0, flip=False, cutout=3
    )
    holes = out.eq(0).sum((2, 3))
    assert torch.equal(holes[:, 0], holes[:, 1])
    assert set(holes.unique().tolist()) == {4, 6, 9}, "whole, at a border, in a corner"


def test_chance_is_the_generators():
    x = images(20)
    first, second = (data.augment(x, torch.Generator().manual_seed(s), cutout=2) for s in (1, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, data.augment(x, torch.Generator().manual_seed(2), cutout=2))


def test_batches_have_one_size_and_ranks_share_none():
    part = Split(torch.arange(23.0).view(23, 1, 1, 1), torch.arange(23))
    found = [
        torch.cat(
            [b.labels for b in data.batches(part, 4, torch.Generator().manual_seed(0), rank=r, world=2)]
        )
        for r in range(2)
    ]
    assert [len(f) for f in found] == [8, 8]
    assert len(torch.cat(found).unique()) == 16
    few = list(data.batches(part, 64, torch.Generator().manual_seed(0)))
    assert [len(b.labels) for b in few] == [23]
    assert torch.equal(few[0].images.flatten(), few[0].labels.float()), "an image keeps its label"
