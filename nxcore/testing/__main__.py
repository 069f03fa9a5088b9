"""The child of ``isolated``: hold one kernel to every rule, and write a row of JSON for each element type.

An empty line comes first, once all is imported. Before each step comes a JSON list of its rule and sample:
if the process dies, the last one tells in what.

python -m nxcore.testing module:function descriptor operator kernel type...
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from nxcore.testing.cell import cells
from nxcore.testing.rows import held


def main() -> None:
    """Write the rows; what a kernel prints goes elsewhere."""
    source, descriptor, op, label, *types = sys.argv[1:]
    module, _, attribute = source.partition(":")
    registry = getattr(importlib.import_module(module), attribute)()
    asked = {c.type: c for c in cells(registry, ops=[op]) if c.label == label}
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as channel:
        channel.write("\n")
        channel.flush()

        def write(data: object) -> None:
            channel.write(json.dumps(data) + "\n")
            channel.flush()

        for dtype in types:
            write(held(asked[dtype], lambda rule, sample: write([rule, sample])).to_dict())


if __name__ == "__main__":
    main()
