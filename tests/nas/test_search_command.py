"""nxcore search from end to end, with the least that can be searched; and what it draws."""

import dataclasses
import html
import itertools
import json
import re
import sys
from xml.etree import ElementTree as ET

import pytest
import torch

from nxcore import nas
from nxcore.cli import epochs
from nxcore.errors import InvalidInputError
from nxcore.nas import Genotype, Trainer, picture
from nxcore.report.page import plotly
from tests.nas.test_trainer import LEAST, images, same
from tests.null.cli.commands import command
from tests.null.observe.test_bar import Terminal
from tests.stand_ins import stand_in
from tests.table import for_each

sys_has = stand_in(sys)
trainer_has = stand_in(Trainer)

GENOTYPE = Genotype(
    (("sep_conv_3x3", 1), ("skip_connect", 0), ("dil_conv_5x5", 2), ("max_pool_3x3", 0)),
    (2, 3),
    (("avg_pool_3x3", 1), ("max_pool_3x3", 0), ("conv_7x1_1x7", 2), ("skip_connect", 1)),
    (2, 3),
)


@pytest.fixture(autouse=True)
def _least(monkeypatch):
    pytest.importorskip("sklearn", reason="an extra")
    least = dataclasses.replace(LEAST, batch=240, retrain_batch=480, flip=False, retrain_epochs=1)
    monkeypatch.setattr(nas, "PRESETS", {"tiny": least})


def run(*words, status=0):
    return command("search", *words, status=status).output


def test_seeds_go_on_where_they_were_interrupted_and_end_with_the_bits_of_each_alone(
    tmp_path, trainer_has, request
):
    """Their steps alternate, and each draws the paths that it drops from torch's own random state."""
    torch.use_deterministic_algorithms(True)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    together, four = tmp_path / "together", tmp_path / "4"
    text = run("-o", tmp_path / "3", "--seed", 3)
    assert re.search(r"warm-up 1/3, .*\nsearch 2/3, .* validation .*\nsearch 3/3, .*\nretraining 1/1, ", text)
    assert re.search(r"normal +2 = \w+ of [01]  \w+ of [01]\n", text)
    assert re.search(r"[\d.]+% of 359 held-out images", text)
    assert not re.search("retraining.*entropy", text), "none is searched"
    result = json.loads(run("-o", four, "--seed", 4, "--json"))
    assert sorted(p.name for p in four.iterdir()) == sorted(
        ["search.json", *(name.rpartition("/")[2] for name in result["files"])]
    )

    steps = Trainer.steps

    def interrupted(trainer):
        if len(trainer.history) == 2:
            raise KeyboardInterrupt
        return steps(trainer)

    trainer_has(steps=interrupted)
    assert "--resume" in run("-o", together, "--seed", 3, "--seeds", 2, status=130)
    assert len((together / "seed-3" / "metrics.jsonl").read_text().splitlines()) == 2
    trainer_has(steps=steps)
    with pytest.raises(
        InvalidInputError, match=r"output must be a new folder, .* --resume \S+ continues them"
    ):
        run("-o", together, "--seeds", 2)
    text = run("--resume", together)
    assert re.search(r"seed-3: retraining 1/1, .*\nseed-4: retraining 1/1, ", text)
    assert len(re.findall(r"seed-[34] +none +retraining +4 ", text)) == 2, "one table of both"
    for seed in (3, 4):
        folders = tmp_path / str(seed), together / f"seed-{seed}"
        states = [torch.load(folder / "checkpoint.pt") | {"stops": ()} for folder in folders]
        assert same(*states), "to the bit"
    assert [found["phase"] for found in json.loads(run("--resume", together, "--json"))] == ["done"] * 2
    with pytest.raises(InvalidInputError, match=r"output must be a new folder, .* --resume .* continues it"):
        run("-o", four)
    found = json.loads(run("--resume", together / "seed-4", "--json"))
    for name in ("phase", "genotype", "entropy", "held_out_accuracy"):
        assert found[name] == result[name], "one that is done tells it again"
    assert ET.parse(four / "genotype.svg").getroot().tag.endswith("svg")
    (drawn,) = re.findall('<div data-history="(.*?)">', (four / "curve.html").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (four / "metrics.jsonl").read_text().splitlines()]
    assert json.loads(html.unescape(drawn)) == rows


def test_one_that_was_interrupted_in_its_first_epoch_begins_anew(tmp_path, trainer_has):
    def interrupted(trainer):
        raise KeyboardInterrupt

    trainer_has(steps=interrupted)
    for _ in range(2):
        assert "no epoch has ended yet" in run("-o", tmp_path, status=130)


def test_a_supernet_grows_between_the_epochs_that_it_is_told(tmp_path):
    text = run("-o", tmp_path / "it", "--grow", "2:node", "--grow", "1:widen:3")
    assert re.search(
        r"mutation, .* s: widen 3, [\d,]+ weights, scores changed by \d\.\de-\d\d\nsearch 2/3", text
    )
    assert re.search(r"search 2/3, .*\nmutation, .* s: node, ", text)
    assert json.loads((tmp_path / "it" / "result.json").read_text())["epochs"] == 4
    assert "mutation" in (tmp_path / "it" / "curve.html").read_text(encoding="utf-8")


def test_a_genotype_is_trained_without_a_search(tmp_path):
    first, again = tmp_path / "random", tmp_path / "again"
    text = run("--genotype", "random", "--seed", 4, "-o", first)
    assert text.startswith("retraining 1/1, ")
    found = json.loads((first / "result.json").read_text())
    assert found["phase"] == "done"
    repeated = json.loads(run("--genotype", first / "result.json", "--seed", 4, "-o", again, "--json"))
    for name in ("genotype", "held_out_accuracy"):
        assert repeated[name] == found[name]


@pytest.mark.parametrize(
    ("space", "names"),
    [("darts", nas.PRIMITIVES), ("all", tuple(nas.OPS)), ("max_pool_3x3,skip_connect", None)],
)
def test_it_searches_the_space_that_it_is_told(space, names, tmp_path, trainer_has):
    seen = []
    steps = Trainer.steps
    trainer_has(steps=lambda t: (seen.append(t.preset.primitives), steps(t))[1])
    found = json.loads(run("-o", tmp_path / "it", "--space", space, "--json"))
    names = names or tuple(space.split(","))
    assert set(seen) == {names}
    genotype = found["genotype"]
    assert {name for name, _ in genotype["normal"] + genotype["reduce"]} <= {*names}


@for_each(
    ("words", "message"),
    [
        (("--preset", "tinny"), "preset must be one of tiny, got 'tinny'; did you mean 'tiny'"),
        (("--resume", "nowhere"), "resume must be the folder of a search, got nowhere"),
        (("--resume", "nowhere", "--seed", "0"), "--resume takes its options from the search; remove seed"),
        (("--space", "skip_connect,sep_conv_3"), "space must be .*; did you mean 'sep_conv_3x3'"),
        (
            ("--space", "none,skip_connect"),
            "space must be .* two or more distinct operations, .* got 'none,skip_connect'",
        ),
        (("--space", "skip_connect,skip_connect"), "space must be .* distinct"),
        (("--grow", "2:widen"), "grow must be EPOCH:widen:C, .* got '2:widen'"),
        (("--genotype", "nowhere"), "genotype must be random or a search's result.json, got nowhere"),
        (("--genotype", "random", "--grow", "2:node"), "--genotype trains without a search; remove --grow"),
        (("--data", "nowhere"), "source must be digits, cifar10 or a folder that exists, got 'nowhere'"),
    ],
)
def test_what_it_refuses(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=message):
        run(*words)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_terminal_shows_the_last_epochs_as_a_table_or_the_last_of_each_run(monkeypatch, sys_has):
    preset = dataclasses.replace(LEAST, mutations=(nas.Mutation(2, "deepen", 0),))
    rows = list(Trainer(images(), preset).run())
    sys_has(stdout=Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with epochs.watching(rows[:1], lambda: 63) as show:
        for row in rows[1:]:
            show(row)
    first, _, last = sys.stdout.getvalue().rpartition("phase ")
    assert "warm-up: 1 of 3 epochs" in first
    assert "; next epoch: 0 s so far, 63 problems decided" in first
    assert "next epoch" not in last, "all have been"
    assert all(
        word in last
        for word in ("warm-up", "search", "deepen", "retraining", "3/3", "retraining: 2 of 2 epochs")
    )
    with epochs.watching([]) as show:
        for row, run in itertools.product(rows, ("seed-0", "seed-1")):
            show({"run": run, **row})
    last = sys.stdout.getvalue().rpartition("phase")[2]
    assert len(re.findall("seed-[01] +retraining +2/2 .*━{6}", last)) == 2, "a bar each"


def test_before_the_first_epoch_it_tells_what_takes_so_long(monkeypatch, sys_has, capsys):
    with epochs.watching([], lambda: 63):
        pass
    assert "the first epoch also compiles and measures kernels, once" in capsys.readouterr().out
    with epochs.watching([]):
        pass
    assert capsys.readouterr().out == ""
    sys_has(stdout=Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with epochs.watching([], lambda: 63):
        pass
    assert "first epoch: 0 s so far, 63 problems decided" in sys.stdout.getvalue()


def test_a_genotype_is_drawn_with_every_operation_once():
    root = ET.fromstring(picture.genotype_svg(GENOTYPE))
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    for name in {name for name, _ in GENOTYPE.normal + GENOTYPE.reduce}:
        assert texts.count(name) == sum(n == name for n, _ in GENOTYPE.normal + GENOTYPE.reduce)
    assert texts.count("out") == 2
    arcs = [e for e in root.iter() if e.tag.endswith("path")]
    assert len(arcs) == 8 + 4, "an arc an operation, one a state that is concatenated"
    labels = [(e.get("x"), e.get("y")) for e in root.iter() if e.tag.endswith("text")]
    assert len(set(labels)) == len(labels), "no two in one place"
    assert all(0 < float(y) < float(root.get("height")) for _, y in labels)


def test_searches_are_compared_on_one_page(tmp_path):
    found, straight = (tmp_path / name for name in ("found", "straight"))
    run("-o", found, "--seed", 3, "--remedy", "skip_decay")
    run("-o", straight, "--retrain-epochs", 0)
    text = run("--compare", tmp_path)
    assert re.search(r"found +skip_decay +retraining +4 +\d +[\d.]+% ", text)
    assert re.search(r"straight +none +search +3 +\d", text)
    page = (tmp_path / "compare.html").read_text(encoding="utf-8").replace(plotly(), "")
    assert page.count("<div data-history=") == 2
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "it needs no network"
    cells = re.findall(r"<svg xmlns=\S+ font.*?</svg>", page, re.DOTALL)
    assert [ET.fromstring(part).tag[-3:] for part in cells] == ["svg"] * 2
    with pytest.raises(InvalidInputError, match="compare must be a folder with searches in it"):
        run("--compare", tmp_path / "nowhere")
