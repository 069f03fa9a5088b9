"""Captured calls that need a gradient have the winners under capture, whichever the eager ones are."""

import torch

from nxcore.call import gradient_route
from nxcore.choose import chooser, contenders
from nxcore.choose.contenders import AGAIN
from nxcore.measure.timing import REGIMES, Timing
from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

TIMES = {"torch": (80, 40), "light": (5, 30), "late": (60, 2)}  # of the host, of the device
OPS = {
    "max_pool2d": ("max_pool2d_with_offsets", "max_pool2d_backward"),
    "avg_pool2d": ("avg_pool2d", "avg_pool2d_backward"),
}


class Machine:
    """A device that can capture, with a kernel that wins eagerly and one that wins under capture."""

    def __init__(self, name, joined_us):
        self.name, self.capturing, self.joined_us, self.runs = name, False, joined_us, []
        ops = OPS[name]
        specs = [
            fakes.replace(spec, idioms={}, yardsticks={}) if spec.name in ops else spec
            for spec in SPECS.values()
        ]
        backends = [
            fakes.backend(
                label,
                *(
                    fakes.kernel(op, self.noted(label, op), graph_safe=True, target=f"{label}-{op}:plan")
                    for op in ops
                ),
            )
            for label in ("light", "late")
        ]
        settings = Settings(cache=None, policy="measure", audit=False)
        self.session = Session(settings, fakes.registry(*backends, specs=specs), fakes.QUICK)

    def noted(self, label, op):
        def run(*args):
            self.runs.append((label, op))
            return SPECS[op].reference(*args)

        return run

    def race(self, calls, device, **how):
        def timing(label):
            joined = (self.joined_us, self.joined_us)
            host, device = joined if "+" in label else TIMES["torch" if label == AGAIN else label]
            return Timing(tuple([device] * 20), tuple([host] * 20))

        return {label: timing(label) for label in (*calls, how["again"])}

    def step(self):
        """Call and differentiate; return who served both ways."""
        x = torch.randn(1, 2, 6, 6, requires_grad=True)
        self.runs.clear()
        out = self.session.op(self.name)(x, 3, 1, 1)
        (grad,) = torch.autograd.grad(out.sum(), x)
        want = getattr(torch.nn.functional, self.name)(x, 3, 1, 1)
        torch.testing.assert_close(grad, torch.autograd.grad(want.sum(), x)[0])
        return [label for label, _ in self.runs] or ["torch"]


@for_each("name", OPS)
@for_each(("joined_us", "served"), [(5, "light"), (300, "torch")], ids=["kernels", "torch"])
def test_a_captured_step_has_the_kernels_that_win_under_capture(
    monkeypatch, cuda_answers, name, joined_us, served
):
    machine = Machine(name, joined_us)
    fakes.raced(monkeypatch, machine.race)
    for module in (contenders, gradient_route):
        monkeypatch.setattr(module, "regimes", lambda problem: REGIMES)
    for module in (chooser, gradient_route):
        monkeypatch.setattr(module, "capturing", lambda problem: machine.capturing)
    cuda_answers(is_current_stream_capturing=lambda: machine.capturing)
    for _ in range(4):
        machine.step()
    for _ in range(2):
        assert set(machine.step()) == {served}, "eager"
        machine.capturing = True
        assert machine.step() == ["late", "late"]
        machine.capturing = False
    machine.session._forget()
    machine.step()  # new plans, of what is known
    machine.step()
    machine.capturing = True
    assert machine.step() == ["late", "late"]
