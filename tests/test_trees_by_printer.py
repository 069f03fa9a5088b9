"""``benchmarks/random_trees.py``: each tree is some process's, and a line says what came of a printer's."""

from __future__ import annotations

from benchmarks import random_trees


def test_every_tree_is_of_one_printer_and_one_process():
    wanted = {"cuda": 205, "cupy": 90, "torch": 10}
    found = [chunk for i in range(4) for chunk in random_trees.chunks(wanted, i, 4)]
    for printer, trees in wanted.items():
        assert sum(len(seeds) for of, seeds in found if of == printer) == trees
    every = sorted(seed for _, seeds in found for seed in seeds)
    assert every == list(range(305))


def test_printers_take_turns_so_that_an_ended_run_has_some_of_each():
    order = [printer for printer, _ in random_trees.chunks({"cuda": 800, "cupy": 160}, 0, 1)]
    assert "cupy" in order[:6]
    assert order[-3:].count("cupy") <= 1


def test_the_table_has_counts_failures_and_errors():
    rows = [
        {"printer": "cuda", "trees": 40, "agreed": 38, "ill": 1, "failed": ["cuda, seed 7: x + y"]},
        {"printer": "cuda", "trees": 40, "error": "cuda, trees 40 to 79: ValueError()"},
    ]
    cuda = "cuda: 40 of 120 trees: 38 agree, 1 too ill-conditioned to compare, 1 fail"
    assert random_trees.table({"cuda": 120, "torch": 40}, rows) == [
        f"{cuda}, 40 not compared after an error",
        "torch: 0 of 40 trees: 0 agree, 0 too ill-conditioned to compare, 0 fail",
        "cuda, seed 7: x + y",
        "cuda, trees 40 to 79: ValueError()",
    ]
