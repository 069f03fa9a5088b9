"""Compilers: modes and backends of ``torch.compile`` as candidates for a whole program."""
