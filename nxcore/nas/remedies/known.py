"""The remedies by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from nxcore.errors import InvalidInputError, one_of
from nxcore.nas.remedies.early_stop import EarlyStop
from nxcore.nas.remedies.gumbel import Gumbel
from nxcore.nas.remedies.partial import Partial
from nxcore.nas.remedies.perturbation import Perturbation
from nxcore.nas.remedies.remedy import Remedy
from nxcore.nas.remedies.skip_decay import SkipDecay

if TYPE_CHECKING:
    from nxcore.nas.preset import Preset

REMEDIES: Mapping[str, type[Remedy]] = MappingProxyType(
    {
        "none": Remedy,
        "skip_decay": SkipDecay,
        "partial": Partial,
        "gumbel": Gumbel,
        "early_stop": EarlyStop,
        "perturbation": Perturbation,
    }
)
"""Name -> remedy."""


def made(preset: Preset) -> Remedy:
    """Return the remedy of a preset.

    Raises
    ------
    InvalidInputError
        If none has this name, or the preset has what it can't do.
    """
    if preset.remedy not in REMEDIES:
        raise InvalidInputError(one_of("remedy", preset.remedy, REMEDIES), argument="remedy")
    return REMEDIES[preset.remedy](preset)
