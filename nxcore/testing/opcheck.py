"""The rules of torch's compiler: its own check of an operator, and a graph of one."""

from __future__ import annotations

from nxcore.interop.library import check, compiled
from nxcore.interop.schema import Unfit
from nxcore.testing.cell import Broken, Cell, Inapplicable
from nxcore.trust.gate import brief
from nxcore.trust.truth import Truth, without_out


def passes_opcheck(cell: Cell) -> None:
    """Pass ``torch.library.opcheck``: change and return no argument, return the shapes of the spec."""
    one = cell.smallest()
    args = without_out(one.spec, one.build())
    try:
        check(one.spec, one.plan(args), args)
    except Unfit as error:
        raise Inapplicable(f"torch has no schema for {one.spec.name}: {error}") from error
    except Exception as error:
        raise Broken(
            "passes_opcheck", f"sample {one.sample.name if one.sample else None}: {str(error)[:400]}"
        ) from error


def agrees_when_compiled(cell: Cell) -> None:
    """Agree with the reference as a node of a graph of ``torch.compile``."""
    if cell.machine.simulated:
        raise Inapplicable("simulated: it is checked where it is compiled")
    one = cell.smallest()
    args = without_out(one.spec, one.build())
    try:
        result = compiled(one.spec, one.plan(args), args)
    except Unfit as error:
        raise Inapplicable(f"torch has no schema for {one.spec.name}: {error}") from error
    except Exception as error:
        raise Broken("agrees_when_compiled", f"raised {brief(error)}") from error
    one.judge("agrees_when_compiled", Truth.of(one.spec, args), result)
