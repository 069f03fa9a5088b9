"""Records of measurements to a page that compares the backends. May import distributed, offline and below.

``records`` reads and joins, ``figures`` derives every number that is shown, ``page`` and ``markdown`` write.
Nothing here needs torch: a record can be read where it couldn't have been made.
"""
