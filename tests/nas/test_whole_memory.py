"""The memory of captures: what a backward pass may reuse of what was saved for it."""

import pytest

from nxcore.graphs.recorder import Pool
from nxcore.nas import whole
from nxcore.nas.watch import PART
from tests.nas.switches import switch
from tests.nas.test_whole import captured

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("decided")]


def test_that_of_a_whole_network_is_its_own(monkeypatch):
    """What is saved for the backward pass is as much as the pass needs besides."""
    switch(monkeypatch, whole, on=True)
    _, patched, tape = captured()
    there, back = tape.pools[-2:]
    assert isinstance(there, Pool)
    assert back is there
    (captures,) = vars(patched)[PART]._captures.values()
    assert freed(captures[0]._recorded._nodes)


def test_cells_share_it_and_keep_what_is_saved(monkeypatch):
    switch(monkeypatch, whole, on=False)
    _, patched, tape = captured()
    assert set(tape.pools) == {None}
    (captures,) = vars(patched.cells[0])[PART]._captures.values()
    assert not freed(captures[0]._recorded._nodes)


def freed(node):
    """Return whether what ``node`` and those before it have saved is freed."""
    nodes, seen = [node], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes.extend(before for before, _ in node.next_functions)
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    getattr(node, name)
                except RuntimeError as error:  # that a replay has written into it is another one
                    if "second time" in str(error):
                        return True
    return False
