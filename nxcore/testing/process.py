"""The rule on what surrounds a kernel: it leaves settings of the process and thread as they are."""

from __future__ import annotations

import torch

from nxcore.spec.exits import RAISED, blamed
from nxcore.testing.cell import Broken, Cell, Declined, Inapplicable
from nxcore.trust.state import UNCHANGED, State, disturbance
from nxcore.trust.truth import without_out


def leaves_the_process_alone(cell: Cell) -> None:
    """Change no setting of the process or thread, by its planner or a call.

    The settings are ``FACTS`` in ``nxcore/trust/state.py``. Those that each thread has its own value of, such
    as torch's number of threads, are compared around every plan and call of all rules: a toolkit may change
    one once, at its first.
    """
    one = cell.smallest()
    args = one.build()
    inputs = without_out(one.spec, args)

    def run() -> None:
        one.planned(args, anew=True)(*args)  # not by ``plan``, whose own settings would hide the kernel's

    with torch.no_grad():
        before = State.now(one.device)
        try:
            run()
        except (Broken, Declined, Inapplicable):
            raise
        except RAISED as raised:
            error = blamed(raised)
            raise Broken("raises_nothing", f"raised {type(error).__name__}: {error}") from raised
        why = disturbance(before, one.device, run, lambda: one.spec.reference(*inputs))
    if why:
        raise Broken("leaves_the_process_alone", f"{UNCHANGED}: {why}")
