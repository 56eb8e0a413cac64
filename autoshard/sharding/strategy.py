"""A strategy: degrees, the residual's layout and one sharding choice per fused op."""

from dataclasses import dataclass

from autoshard.sharding.degrees import Degrees
from autoshard.sharding.layout import Layout
from autoshard.sharding.option import Choice

RESIDUAL = "model/residual"
"""Key of the residual's layout among the choices: 0 = hidden-sharded over tp, None = replicated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One point of the search space.

    ``choices`` has a pair ``("<block>/<op>", choice)`` for every op that has a choice of its own, plus `RESIDUAL`.
    ``stages`` are the layers of every pipeline stage; empty for the even partition.
    """

    degrees: Degrees
    choices: tuple[tuple[str, Choice], ...]
    stages: tuple[int, ...] = ()

    def choice(self, key: str) -> Choice:
        """The choice under ``key``; replicated when the key is absent."""
        return dict(self.choices).get(key)

    @property
    def residual(self) -> Layout:
        """Layout of the residual stream over tp."""
        return Layout.SHARDED if self.choice(RESIDUAL) == 0 else Layout.REPLICATED
