"""Call every CUDA C++ kernel once on every sample of its operator, under compute-sanitizer.

    make sanitize
    compute-sanitizer --tool memcheck --error-exitcode 1 python benchmarks/sanitize.py [OPERATOR ...]

Each tensor gets its own memory from the driver, so that an access past its end doesn't hit another tensor.
The results are not compared: the conformance tests do that.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

# As set: the sanitizer needs to see each allocation.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # before torch allocates

import torch

from nxcore.registry.discovery import discover
from nxcore.spec.problem import Problem
from nxcore.spec.spec import FLOATS


def main() -> int:
    """Call the kernels; return 1 if there are none."""
    registry, calls = discover(strict=True), Counter[str]()
    device = torch.device("cuda")
    for name in sys.argv[1:] or registry.ops:
        spec = registry.ops[name]
        for backend, kernel in registry.kernels(name):
            if backend.name != "cuda":
                continue
            for sample in spec.samples:
                if sample.tags & {"bench", "huge"}:
                    continue
                for dtype in FLOATS:
                    args = sample.build(spec, device, dtype)
                    problem = Problem.of(spec, args)
                    if not problem.view and kernel.takes(problem):
                        kernel.plan(problem)(*args)
                        torch.cuda.synchronize()
                        calls[name] += 1
    print(", ".join(f"{name} {count}" for name, count in calls.items()) or "no CUDA C++ kernel can run here")
    return int(not calls)


if __name__ == "__main__":
    sys.exit(main())
