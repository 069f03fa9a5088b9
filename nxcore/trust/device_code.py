"""Device code as text that comments and formatting don't change, with the files that it includes.

No compiler runs, so the text is the same on every machine.
"""

from __future__ import annotations

import re

SUFFIXES = frozenset({".cu", ".cuh", ".c", ".cpp", ".h", ".hpp"})

_SPLICE = re.compile(r"\\\r?\n")
_TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/|[^\S\n]+)
    |(?P<line>\n)
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'
      |[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|['.\w])*
      |<<=|>>=|<=>|\.\.\.|->\*?|::|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||\#\#|[-+*/%&|^]=|.)""",
    re.VERBOSE | re.DOTALL,
)
_INCLUDE = re.compile(r'^#\s*include\s*"([^"]+)"$')


def normalised(text: str) -> str:
    r"""Return a text without comments, its tokens one space apart: a line for each directive, one between.

    >>> normalised('#define N  4 // rows\nint  x=N ;\n/* the end */')
    '# define N 4\nint x = N ;'
    """
    lines: list[list[str]] = [[]]
    for found in _TOKEN.finditer(_SPLICE.sub("", text)):
        if found["line"]:
            if lines[-1][:1] == ["#"]:
                lines.append([])
        elif part := found["text"]:
            if part == "#" and lines[-1] and _begins_line(found):
                lines.append([])
            lines[-1].append(part)
    return "\n".join(" ".join(tokens) for tokens in lines if tokens)


def _begins_line(found: re.Match[str]) -> bool:
    """Return whether a token is the first of its line."""
    return not found.string[: found.start()].rpartition("\n")[2].strip()


def includes(text: str) -> list[str]:
    r"""Return the files that a normalised text includes by names in quotes.

    >>> includes(normalised('#include "channel.cuh"\n#include <cuda_fp16.h>'))
    ['channel.cuh']
    """
    return [found[1] for line in text.split("\n") if (found := _INCLUDE.match(line))]
