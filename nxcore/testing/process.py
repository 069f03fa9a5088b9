"""The rules on the process: a kernel leaves its settings as they are, and is right in a forked child."""

from __future__ import annotations

import os
import signal
import warnings

import torch

from nxcore.spec.exits import RAISED, blamed
from nxcore.testing.cell import Broken, Cell, Declined, Inapplicable
from nxcore.trust.state import UNCHANGED, State, disturbance
from nxcore.trust.truth import Truth, without_out


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


def agrees_in_a_forked_child(cell: Cell) -> None:
    """Agree with the reference in a forked child of a process that has called it, as a DataLoader's workers.

    On the CPU alone: CUDA has no forks.
    """
    if not hasattr(os, "fork") or cell.device.type != "cpu" or cell.machine.simulated:
        raise Inapplicable("a fork is for compiled kernels on the CPU, where the system has it")
    if cell.backend.on_request:  # threads of inductor's and JAX's don't outlive a fork
        raise Inapplicable(f"only on request: {cell.backend.on_request}")
    one = cell.smallest()
    args = without_out(one.spec, one.build())
    call, truth = one.plan(args), Truth.of(one.spec, args)
    if not truth.judge(call(*args)).ok:
        raise Inapplicable("it is wrong in this process too")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a process with other threads
        child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            torch.set_num_threads(1)  # as a DataLoader's worker does: a pool of threads isn't forked
            status = 0 if truth.judge(call(*args)).ok else 2
        finally:  # nothing of the parent's may run here
            os._exit(status)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        how = {2: "it was wrong", -signal.SIGALRM: "it didn't end in a minute"}.get(
            status, f"status {status}"
        )
        raise Broken("agrees_in_a_forked_child", f"in a forked child {how}")
