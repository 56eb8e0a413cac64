"""A strategy: degrees, the residual's layout and one sharding choice per fused op."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.sharding.degrees import Degrees
from autoshard.sharding.layout import Layout
from autoshard.sharding.option import Choice

RESIDUAL = "model/residual"
"""Key of the residual's layout among the choices: 0 = hidden dim and 1 = tokens split over tp, None = replicated."""

RESIDUAL_LAYOUTS: Mapping[Choice, Layout] = {None: Layout.REPLICATED, 0: Layout.SHARDED, 1: Layout.TOKENS}
"""Layout of the residual stream under each choice of `RESIDUAL`."""

DISPATCH = "model/dispatch"
"""Key of how tokens reach their experts: 0 = all_to_all of (token, expert) rows, None = all tokens are gathered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One point of the search space.

    ``choices`` has a pair ``("<block>/<op>", choice)`` for every op that has a choice of its own, plus `RESIDUAL`
    and, where experts can be split, `DISPATCH`. ``stages`` are the layers of every pipeline stage; empty for the even
    partition. ``uneven`` allows heads and widths that do not divide, to be filled up with zeros.
    """

    degrees: Degrees
    choices: tuple[tuple[str, Choice], ...]
    stages: tuple[int, ...] = ()
    uneven: bool = False

    def choice(self, key: str) -> Choice:
        """The choice under ``key``; replicated when the key is absent."""
        return dict(self.choices).get(key)

    @property
    def residual(self) -> Layout:
        """Layout of the residual stream over tp."""
        return RESIDUAL_LAYOUTS.get(self.choice(RESIDUAL), Layout.REPLICATED)

    @property
    def exchange(self) -> bool:
        """Whether tokens are exchanged with the ranks of their experts, not gathered."""
        return self.choice(DISPATCH) == 0
