"""Versions of engines, and ranges of them such as ``>=0.9,<0.27``."""

import operator
import re
from collections.abc import Callable, Mapping
from itertools import zip_longest

from autoshard.errors import InvalidInputError

_TESTS: Mapping[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers of a version; what follows them (``rc1``, ``.dev0``) is dropped.

    Raises:
        InvalidInputError: for a text that does not start with a number.
    """
    match = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    if match is None:
        raise InvalidInputError(f"cannot read the version {text!r}: it is written as 0.11.2")
    return tuple(int(n) for n in match[1].split("."))


def _compare(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for x, y in zip_longest(a, b, fillvalue=0):
        if x != y:
            return 1 if x > y else -1
    return 0


def in_range(version: str, limits: str) -> bool:
    """Whether a version meets all comma-separated limits; an empty text has none.

    Raises:
        InvalidInputError: for a limit that is not ``>= <= == < >`` and a version.
    """
    own = parse_version(version)
    for limit in filter(None, (part.strip() for part in limits.split(","))):
        match = re.match(r"(>=|<=|==|<|>)(.+)", limit)
        if match is None:
            raise InvalidInputError(f"cannot read the version limit {limit!r}: it is written as >=0.9,<0.27")
        if not _TESTS[match[1]](_compare(own, parse_version(match[2])), 0):
            return False
    return True
