"""``benchmarks/search_floor.py``: what the groups of a search step need, and which kernels are of which."""

import json
from pathlib import Path

import torch

from benchmarks import search_floor
from tests.nas import darts

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/results/nvidia-h200/2026-11-26-none-search-step.json"


def test_multiply_adds_are_those_of_the_layers():
    counted = {}

    def hook(block):
        stride = block[1].stride[0]

        def count(conv, _, out):
            each = conv.weight[0].numel() * out.numel()
            counted[stride] = counted.get(stride, 0) + each

        for conv in block[1:3]:
            conv.register_forward_hook(count)

    net = darts.Network(4, 10, layers=3, steps=2)
    for module in net.modules():
        chain = getattr(module, "op", ())
        for first in range(0, len(chain) - 3, 4):
            hook(chain[first : first + 4])
    rows = torch.ones(5, 8)
    net(torch.ones(2, 3, 8, 8), rows, rows)
    need = search_floor.needs(4, 2, layers=3, steps=2, side=8)
    assert need["their outputs"].multiply_adds == counted[1]
    strided = need["both at stride 2"].multiply_adds
    assert 3 * counted[2] < strided < 4 * counted[2], "outputs, and two to three times as much for gradients"


def test_each_kernel_of_a_record_is_of_a_group_that_takes_no_less_than_it_needs():
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = search_floor.table(record, "patched", 4.8, 33.5)
    assert all(ms > need for _, ms, _, need in rows)
    kernels = record["rows"]["patched"]["kernels"]
    assert abs(sum(k["ms"] for k in kernels) - sum(ms for _, ms, _, _ in rows)) < 1e-9
    ours = [k["kernel"] for k in kernels if search_floor.group(k["kernel"]) == "all else"]
    assert not [k for k in ours if any(word in k for word in ("conv2d_", "norm", "pool"))]


def test_the_page_has_the_table_of_its_record(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["search_floor", str(RECORD)])
    search_floor.main()
    page = (ROOT / "docs/performance/search_step.md").read_text(encoding="utf-8")
    assert RECORD.name in page
    assert capsys.readouterr().out in page
