"""Reports: a page made of records that compares the backends. May import distributed, offline and below.

``records`` reads and joins, ``figures`` computes all numbers, ``page`` and ``markdown`` write. None of them
needs torch, so that a record can be read on a machine that couldn't have made it.
"""
