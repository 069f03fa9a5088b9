"""``nxcore search``: search an architecture on images, then train it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nxcore.cli import interruption
from nxcore.store.encoding import decoded, encoded

if TYPE_CHECKING:
    import torch

    from nxcore.nas import Genotype, Mutation, Preset, Trainer
    from nxcore.nas.data import Data

ASKED, RESULT, PICTURE, CURVE = "search.json", "result.json", "genotype.svg", "curve.html"
COMPARED = "compare.html"
USUAL: dict[str, Any] = {"data": "digits", "side": 32, "preset": "tiny", "seed": 0, "grow": [], "set": []}
"""The options of a new search that aren't the preset's."""
SHARE = 0.25
"""The share of a GPU's free memory that images may take."""


def begun(asked: dict[str, Any], output: Path, device: str | None) -> Trainer:
    """Return a new search, and write its options into its folder."""
    import dataclasses

    from nxcore.cli import render
    from nxcore.errors import InvalidInputError, one_of
    from nxcore.nas import PRESETS, Trainer
    from nxcore.nas.checkpoint import CHECKPOINT
    from nxcore.nas.process_group import place

    rank, _ = place()
    if rank == 0 and (output / CHECKPOINT).exists():
        raise InvalidInputError(
            f"output must be a new folder, but {output} holds a search; --resume {output} continues it",
            argument="output",
        )
    if asked["preset"] not in PRESETS:
        raise InvalidInputError(one_of("preset", asked["preset"], PRESETS), argument="preset")
    changed = {
        name: asked[name]
        for name in ("epochs", "retrain_epochs", "skips", "budget_s", "remedy")
        if asked.get(name) is not None
    }
    changed |= settings(asked["set"])
    changed["mutations"] = tuple(map(mutation, asked["grow"]))
    if asked["space"] is not None:
        changed["primitives"] = operations(asked["space"])
    preset = dataclasses.replace(PRESETS[asked["preset"]], **changed)
    genotype = None if asked["genotype"] is None else entrant(asked, preset)
    found, at = images(asked, device)
    trainer = Trainer(found, preset, seed=asked["seed"], device=at)
    if genotype is not None:
        trainer.train(genotype)
    if rank == 0:
        (render.folder(output, "--output") / ASKED).write_text(
            encoded(asked, indent=2) + "\n", encoding="utf-8"
        )
    return trainer


def entrant(asked: dict[str, Any], preset: Preset) -> Genotype:
    """Return the genotype that is trained without a search: a random one, or that of a search."""
    import torch

    from nxcore.errors import InvalidInputError
    from nxcore.nas.genotype import Genotype, drawn

    if idle := [f"--{name}" for name in ("epochs", "grow", "skips") if asked[name]]:
        raise InvalidInputError(
            f"--genotype trains without a search; remove {', '.join(idle)}", argument="genotype"
        )
    if asked["genotype"] == "random":
        draw = torch.Generator().manual_seed(asked["seed"])
        return drawn(preset.primitives, preset.steps, preset.multiplier, draw)
    try:
        return Genotype.of(decoded(Path(asked["genotype"]).read_text(encoding="utf-8"))["genotype"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"genotype must be random or a search's {RESULT}, got {asked['genotype']}: {error}",
            argument="genotype",
        ) from error


def mutation(text: str) -> Mutation:
    """Parse ``EPOCH:KIND[:SIZE]``."""
    from nxcore.errors import InvalidInputError
    from nxcore.nas import Mutation

    epoch, _, rest = text.partition(":")
    kind, _, size = rest.partition(":")
    if not epoch.isdigit() or not (size.isdigit() or (kind == "node" and not size)):
        raise InvalidInputError(
            f"grow must be EPOCH:widen:C, EPOCH:deepen:PLACE or EPOCH:node, got {text!r}", argument="grow"
        )
    named: Any = kind
    return Mutation(int(epoch), named, int(size or 0))


def settings(texts: list[str]) -> dict[str, Any]:
    """Parse settings of a preset, each ``NAME=VALUE`` with a value as JSON writes it."""
    from nxcore.errors import InvalidInputError
    from nxcore.nas import Preset

    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        kind = type(getattr(Preset(), name, None))
        try:
            found[name] = decoded(value)
        except ValueError:
            kind = str
        if kind not in (bool, int, float) or type(found[name]) not in (kind, *[int] * (kind is float)):
            raise InvalidInputError(
                f"set must be NAME=VALUE with a number or truth value of a Preset, got {text!r}",
                argument="set",
            )
    return found


def operations(text: str) -> tuple[str, ...]:
    """Return the operations of a space, given as its name or as two distinct ones or more, with commas."""
    from nxcore.errors import InvalidInputError, nearest
    from nxcore.nas import OPS, PRIMITIVES

    names = {"darts": PRIMITIVES, "all": tuple(OPS)}.get(text) or tuple(text.split(","))
    unknown = next((name for name in names if name not in OPS), None)
    if unknown is not None or len({*names} - {"none"}) < 2 or len({*names}) < len(names):
        raise InvalidInputError(
            f"space must be darts, all, or two or more distinct operations, comma-separated, got {text!r}"
            + (nearest(unknown, OPS) if unknown else ""),
            argument="space",
        )
    return names


def several(folder: Path) -> dict[str, Any] | None:
    """Return the options of a run of several seeds; None for any other folder."""
    files = sorted(folder.glob(f"seed-*/{ASKED}"))
    return decoded(files[0].read_text(encoding="utf-8")) if files else None


IMAGES = {"data": str, "root": str | None, "seed": int, "side": int | None}
"""The options of a search that its images follow from, with their types."""


def resumed(folder: Path, device: str | None) -> Trainer:
    """Return a search as it was after its last epoch."""
    from nxcore.errors import InvalidInputError
    from nxcore.nas import Trainer
    from nxcore.nas.checkpoint import CHECKPOINT

    if not (folder / CHECKPOINT).is_file() or not (folder / ASKED).is_file():
        raise InvalidInputError(f"resume must be the folder of a search, got {folder}", argument="resume")
    try:
        asked = decoded((folder / ASKED).read_text(encoding="utf-8"))
        which = {name: asked[name] for name in IMAGES}
    except (ValueError, KeyError, TypeError) as error:
        why = f"{folder / ASKED} must be a search's: {type(error).__name__}: {error}"
        raise InvalidInputError(why, argument="resume") from error
    if odd := [name for name, kinds in IMAGES.items() if not isinstance(which[name], kinds)]:
        why = f"{folder / ASKED} must be a search's, got {odd[0]} {which[odd[0]]!r}"
        raise InvalidInputError(why, argument="resume")
    found, at = images(which, device)
    return Trainer.restore(folder / CHECKPOINT, found, device=at)


def images(asked: dict[str, Any], device: str | None) -> tuple[Data, torch.device]:
    """Return the images and the device; the images are on it unless they exceed ``SHARE`` of its memory."""
    import torch

    from nxcore.nas import data
    from nxcore.spec.device import available

    found = data.load(asked["data"], asked["root"], seed=asked["seed"], side=asked["side"])
    at = available(device)
    if at.type == "cuda" and found.nbytes > SHARE * torch.cuda.mem_get_info(at)[0]:
        return found, at
    return found.to(at), at


def report(trainer: Trainer, folder: Path) -> dict[str, Any]:
    """Return the result of a search, and write it and its pictures into the folder."""
    from nxcore.cli import render
    from nxcore.nas.checkpoint import CHECKPOINT, METRICS
    from nxcore.nas.picture import drawn, genotype_svg, page

    history = trainer.history
    (folder / PICTURE).write_text(genotype_svg(trainer.genotype), encoding="utf-8")
    files = [PICTURE, CURVE, METRICS, CHECKPOINT, RESULT]
    (folder / CURVE).write_text(page("Architecture search", drawn("history", history)), encoding="utf-8")
    found = {
        "phase": trainer.phase,
        "genotype": trainer.genotype._asdict(),
        "entropy": next((row["entropy"] for row in reversed(history) if "entropy" in row), None),
        "held_out_accuracy": history[-1].get("held_out_accuracy"),
        "held_out_images": len(trainer.data.held_out.labels),
        "seconds": sum(row["seconds"] for row in history),
        "epochs": sum(row["phase"] != "mutation" for row in history),
        "files": [str(folder / name) for name in files],
    }
    (folder / RESULT).write_text(render.dumps(found), encoding="utf-8")
    return found


def compare(folder: Path) -> None:
    """Show the searches below a folder, and write a page of them there."""
    from nxcore.cli import render
    from nxcore.nas import runs

    found = runs.searches(folder, ASKED)
    shown = render.table(*runs.COLUMNS, right=runs.COLUMNS[3:])
    for run in found:
        shown.add_row(*run.row)
    render.show(shown)
    (folder / COMPARED).write_text(runs.compared(found), encoding="utf-8")
    render.console().print(f"written: {folder / COMPARED}", markup=False, soft_wrap=True)


def search(
    data: Annotated[
        str | None,
        typer.Option(
            help="digits, cifar10, or a folder with a subfolder of images for each class.",
            show_default="digits",
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Where cifar10 is: the folder of its batches, or an .npz file.")
    ] = None,
    side: Annotated[
        int | None,
        typer.Option(help="Scale a folder's images to this side length.", min=8, show_default="32"),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="tiny or darts.", show_default="tiny")] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="darts (8 operations), all (10), or names separated by commas.",
            show_default="the preset's",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of the search.", show_default="the preset's", min=1)
    ] = None,
    retrain_epochs: Annotated[
        int | None, typer.Option(help="Epochs of the final training.", show_default="the preset's", min=0)
    ] = None,
    skips: Annotated[
        int | None,
        typer.Option(help="End the search before a cell has more skip connections.", min=0),
    ] = None,
    grow: Annotated[
        list[str] | None,
        typer.Option(help="Grow the supernet after EPOCH: EPOCH:widen:C, EPOCH:deepen:PLACE or EPOCH:node."),
    ] = None,
    remedy: Annotated[
        str | None,
        typer.Option(
            help="none, skip_decay, partial, gumbel, early_stop or perturbation.", show_default="none"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of nxcore.nas.Preset: retrain_C=64.")
    ] = None,
    genotype: Annotated[
        str | None,
        typer.Option(help="Train a genotype without a search: random, or the result.json of a search."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Seconds of training, half for the search.", min=0)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.", show_default="0")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Search with so many seeds at once, each in a folder of its own.", min=2),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. By default cuda if available.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="How kernels are chosen: see nxcore.policy.", show_default="frozen; on cuda, the session's"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder.", show_default="search")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the search in this folder.")] = None,
    compared: Annotated[
        Path | None, typer.Option("--compare", help="Show the searches in this folder, and write a page.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Search an architecture on images (DARTS), then train it.

    Writes metrics.jsonl, a checkpoint after every epoch, genotype.svg, curve.html and result.json.
    `torchrun -m nxcore search` splits every batch over ranks, one GPU each.
    Exit status 130 if interrupted; --resume continues after the last complete epoch.
    """
    from nxcore import distributed
    from nxcore.cli import epochs as shown
    from nxcore.cli import render, trainings
    from nxcore.errors import InvalidInputError
    from nxcore.nas.checkpoint import CHECKPOINT
    from nxcore.report.page import plotly
    from nxcore.spec.device import available

    if compared is not None:
        compare(compared)
        return
    asked: dict[str, Any] = {
        "data": str(Path(data).absolute()) if data and Path(data).is_dir() else data,
        "root": None if root is None else str(root.absolute()),
        "side": side,
        "preset": preset,
        "space": space,
        "epochs": epochs,
        "retrain_epochs": retrain_epochs,
        "skips": skips,
        "grow": grow or None,
        "remedy": remedy,
        "set": settings or None,
        "genotype": genotype,
        "budget_s": budget,
        "seed": seed,
        "seeds": seeds and [(seed or 0) + place for place in range(seeds)],
    }
    if resume and (
        given := [name for name, value in (asked | {"output": output}).items() if value is not None]
    ):
        why = f"--resume takes its options from the search; remove {', '.join(given)}"
        raise InvalidInputError(why, argument="resume")
    plotly()  # its pages need it: the end of a search is too late to say so
    folder = resume or output or Path("search")
    usual = {name: value for name, value in USUAL.items() if asked[name] is None}
    before = several(folder)
    if before and not resume:
        why = f"output must be a new folder, but {folder} holds searches; --resume {folder} continues them"
        raise InvalidInputError(why, argument="output")
    asked = before or asked if resume else asked | usual
    of = asked["seeds"]
    folders = {folder / f"seed-{own}": own for own in of} if of else {folder: asked["seed"]}

    def begin(at: Path) -> Trainer:
        if resume and (not of or (at / CHECKPOINT).exists()):
            return resumed(at, device)
        return begun(asked | {"seed": folders[at]}, at, device)

    with distributed.ranks() as (rank, _):
        how = [*folders], available(device), policy
        trainers, interrupted = trainings.followed(begin, *how, quiet=json or rank > 0)
    found = [report(trainer, at) for at, trainer in trainers.items() if trainer.history and rank == 0]
    if found and json:
        render.json(found if of else found[0])
    elif found:
        compare(folder) if of else shown.found(found[0])
    if interrupted:
        on = f"continue with nxcore search --resume {folder}" if found else "no epoch has ended yet"
        render.error(f"interrupted: {on}")
        raise typer.Exit(interruption.STATUS)
