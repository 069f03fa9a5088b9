"""What is in force around a call, or happens to it later: transforms, copies, forks, written outs."""

import copy
import pickle

import pytest
import torch

import nxcore
from nxcore.errors import InvalidInputError
from nxcore.registry.discovery import PluginWarning, discover
from tests import fresh


def test_a_module_that_holds_an_operator_is_copied_and_pickled() -> None:
    op = nxcore.op("softmax_sum", backend="numba")
    assert copy.deepcopy({"op": op})["op"] is op
    assert pickle.loads(pickle.dumps(op)) is op


def test_autograd_notices_an_out() -> None:
    weight, x = torch.randn(8, requires_grad=True), torch.ones(8)
    product = (weight * x).sum()
    with torch.no_grad():
        nxcore.op("add", backend="numba")(x, x, out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_an_inference_tensor_is_not_written_outside_inference_mode() -> None:
    with torch.inference_mode():
        out = torch.zeros(8)
    with pytest.raises(InvalidInputError, match="out must not be an inference tensor"):
        nxcore.op("add", backend="numba")(torch.ones(8), torch.ones(8), out=out)


def test_an_out_of_another_type_in_an_inputs_memory_is_refused() -> None:
    x = torch.arange(2000.0)
    with pytest.raises(InvalidInputError, match="out must not overlap an input in part"):
        nxcore.op("add")(x, x, out=x.view(torch.float16)[:2000])


def test_backward_under_autocast_is_the_chosen_backends() -> None:
    xs = [torch.randn(40, requires_grad=True) for _ in range(2)]
    out = nxcore.op("softmax_sum", backend="numba")(xs, torch.zeros(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out.sum().backward()
    torch.testing.assert_close(xs[0].grad, torch.full((40,), 0.5))


def test_a_preference_holds_for_the_backward_pass_too() -> None:
    session = nxcore.Session()
    x, y = torch.randn(64, 50, requires_grad=True), torch.randn(50, requires_grad=True)
    with session.use("numba"):
        out = session.op("add")(x, y)
    out.sum().backward()
    rules = {k[0].op: c.decision.rule for k, c in session.chooser.choices.items()}
    assert rules == {"add": "preferred", "add_backward": "preferred"}


def test_a_default_device_does_not_keep_a_kernel_from_being_verified() -> None:
    x = torch.ones(4)
    with torch.device("meta"):
        got = nxcore.Session().op("add", backend="numba")(x, x)
    assert torch.equal(got, torch.full((4,), 2.0))


def test_a_name_that_no_plugin_has_is_said() -> None:
    with pytest.warns(
        PluginWarning, match="names 'trition', but there is no plugin of that name; did you mean 'triton'"
    ):
        discover(disable=frozenset({"trition"}))


LOADER = """
import torch, nxcore
from torch.utils.data import DataLoader, Dataset
nxcore.ops.sum(torch.ones(3))
(torch.randn(3000, 1000) + 1).sum()  # torch's own threads are up when the workers fork
class Rows(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        with nxcore.use("numba"):
            return nxcore.op("sum")(torch.full((400, 1000), float(i)), 0)[:10]
if __name__ == "__main__":
    for i, batch in enumerate(DataLoader(Rows(), batch_size=None, num_workers=2, timeout=300)):
        assert float(batch[0]) == 400.0 * i
    print("done")
"""


def test_a_forked_worker_of_a_data_loader_is_served() -> None:
    done = fresh.run("-c", LOADER, timeout=200)
    assert done.stdout.strip().endswith("done"), done.stderr[-1500:]
