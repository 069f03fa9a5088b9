"""Parts: what runs each graph of a model and the code between them, what that saves, and why torch does."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from nxcore.nn import watching
from nxcore.nn.exchange import with_watch
from nxcore.program import front


@dataclass(frozen=True, slots=True)
class Part:
    """A graph of a model, or its other code.

    Attributes
    ----------
    part : str
        What it is.
    by : str
        What runs it: ``replay``, the name of an entrant, or ``torch``.
    passes : dict of str to int
        The passes that have rewritten the graph -> how many nodes each has put there.
    saved_ms : float
        The milliseconds that a call saves, as timed before it served; 0 of an entrant's, and of torch's.
    why : str
        Why torch runs it; of a replay how fast that was found to be.
    """

    part: str
    by: str = "torch"
    passes: dict[str, int] = field(default_factory=dict)
    saved_ms: float = 0.0
    why: str = ""


def parts_of(model: nn.Module) -> tuple[Part, ...]:
    """Return the parts of a model whose calls are replayed, or might be; none of any other."""
    own = getattr(model, "_orig_mod", model)
    programs, whole = [*front.replays_of(own)], watching.whole_of(own)
    found = [
        Part(f"graph of {p.count} operations", r.by, p.passes, r.saved_ms, r.reason) for p, r in programs
    ]
    breaks = dict.fromkeys(p.broken for p, _ in programs if p.broken)
    found += [Part("code between graphs", why=why) for why in breaks]
    if whole is not None and not found:
        seen = with_watch(watching.stepped(own))
        why = whole.state.removeprefix("runs: ") if seen else "its class was changed since accelerate"
        found.append(Part("the model", why=why))
    return tuple(found)
