"""A reader of JSON as the standard has it: Python's own also takes ``Infinity`` and ``NaN``."""

import json
from typing import Any


def strict(text: str) -> Any:
    """Return the data of a whole text of JSON.

    Raises
    ------
    ValueError
        If it isn't JSON, or has a number that JSON lacks.
    """

    def refused(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refused)
