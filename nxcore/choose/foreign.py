"""Explanations for a device that isn't present, from imported wisdom and without a tensor on it."""

from __future__ import annotations

import torch

from nxcore.choose.explanation import Explanation, Origin
from nxcore.errors import InvalidInputError, nearest
from nxcore.measure.decision import Decision
from nxcore.spec.problem import Problem
from nxcore.store.files import Store
from nxcore.store.pages import page
from nxcore.store.problems import moved
from nxcore.store.transfer import gathered
from nxcore.store.wisdom import digest, key


def explained(store: Store, problem: Problem, name: str) -> Explanation:
    """Return the explanation of a choice on another device.

    Parameters
    ----------
    store : Store
        Holds the imported wisdom.
    problem : Problem
        The call; its tensors may be on any device, ``meta`` among them.
    name : str
        The device's name, or a unique part of it; see ``nxcore wisdom show``.

    Raises
    ------
    InvalidInputError
        If there is no wisdom of such a device; the message names the nearest.
    """
    environments, pages = gathered(store)
    names = {str(facts.get("name")) for facts in environments.values()}
    meant = [n for n in names if n.lower() == name.lower()] or [n for n in names if name.lower() in n.lower()]
    if len(meant) != 1:
        raise InvalidInputError(
            f"no wisdom of a device named {name!r}{nearest(name, names)}", argument="device"
        )
    of = {digest(facts): facts for facts in environments.values() if str(facts.get("name")) == meant[0]}
    there = moved(problem, torch.device(next(iter(of.values()))["type"]))
    filed = digest(key(there))
    found = [page(document) for (env, name), (_, document) in pages.items() if env in of and name == filed]
    best = max((p for p in found if p), key=lambda p: p.date, default=None)
    if best is None:
        others = sum(env in of and at["op"] == problem.op for (env, _), (at, _) in pages.items())
        reason = f"the problem was not measured on {meant[0]}; {others} other problems of {problem.op} were"
        return Explanation(there, Decision("torch", "prior", reason))
    origin = Origin(best.policy, best.date, best.versions, device=meant[0])
    return Explanation(there, best.decision, origin)
