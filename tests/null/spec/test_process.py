"""What a toolkit changes of the process is put back; what the program changes stays."""

import warnings

import sympy

from nxcore.spec.process import preserved


class Program(UserWarning):
    """A warning of the program."""


def test_a_filter_is_a_toolkits_where_all_its_categories_are():
    own = sympy.utilities.exceptions.SymPyDeprecationWarning
    toolkits = ("ignore", None, (own,), None, 0)
    mixed = ("ignore", None, (own, Program), None, 0)
    with warnings.catch_warnings():
        with preserved():
            warnings.filters[:0] = [toolkits, mixed]
        assert toolkits not in warnings.filters
        assert mixed in warnings.filters
