"""The rule of torch's own check of an operator."""

from __future__ import annotations

from nxcore.interop.library import check
from nxcore.interop.schema import Unfit
from nxcore.testing.cell import Broken, Cell, Inapplicable
from nxcore.trust.truth import without_out


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
