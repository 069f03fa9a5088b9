"""The child process of ``isolated``: check one kernel by every rule, and write a JSON row for each dtype.

It writes an empty line once its imports are done. Before each step it writes a JSON list of rule and sample.
If the process dies, the last list shows the step.

python -m nxcore.testing module:function descriptor operator kernel type...
"""

from __future__ import annotations

import importlib
import os
import sys

from nxcore.store.encoding import encoded
from nxcore.testing.cell import cells
from nxcore.testing.rows import held


def main() -> None:
    """Write the rows to the descriptor. A kernel's own output goes to stdout and stderr."""
    source, descriptor, op, label, *types = sys.argv[1:]
    module, _, attribute = source.partition(":")
    registry = getattr(importlib.import_module(module), attribute)()
    of_kernel = {c.type: c for c in cells(registry, ops=[op]) if c.label == label}
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as channel:
        channel.write("\n")
        channel.flush()

        def write(data: object) -> None:
            channel.write(encoded(data) + "\n")
            channel.flush()

        for dtype in types:
            write(held(of_kernel[dtype], lambda rule, sample: write([rule, sample])).to_dict())


if __name__ == "__main__":
    main()
