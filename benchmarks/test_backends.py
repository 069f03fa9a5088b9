"""Every backend on every operator's real workloads: pytest benchmarks/test_backends.py --benchmark-only."""


def test_backends(nxcore_bench):
    nxcore_bench()
