"""Links between devices: what NVLink or InfiniBand gives each device, and how collectives fill it.

Time of a collective that moves ``W`` bytes per rank over a link of ``B`` bytes/s (see `autoshard.cost.collectives`):
``t = latency + latency_per_rank (n - 1) + W / (efficiency B) (1 + sqrt(saturation / W))``.
The last factor says how slowly the link fills: at ``W = saturation`` it runs at half its best rate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from autoshard.errors import InvalidInputError

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
COLLECTIVE_KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveLaw:
    """Constants of one kind of collective on one link.

    ``latency_s`` and ``latency_per_rank_s`` (for every rank beyond the first) are paid whatever the size;
    ``efficiency`` is the share of the link's nominal rate that very large messages reach; ``saturation_bytes`` the
    bytes per rank at which half of that is reached.
    """

    latency_s: float
    latency_per_rank_s: float = 0.0
    efficiency: float = 1.0
    saturation_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.latency_s < 0 or self.latency_per_rank_s < 0 or self.saturation_bytes < 0:
            raise InvalidInputError(f"latency and saturation of a collective must not be negative: {self}")
        if not 0 < self.efficiency <= 1:
            raise InvalidInputError(f"efficiency of a collective must lie in (0, 1], got {self.efficiency:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A class of links.

    ``bytes_per_s`` is the nominal rate per direction and device. The other numbers hold for every kind of collective
    that ``laws`` does not name.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    latency_per_rank_s: float = 0.0
    efficiency: float = 1.0
    saturation_bytes: float = 0.0
    laws: Mapping[str, CollectiveLaw] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0:
            raise InvalidInputError(f"a link needs a positive bandwidth, got {self.bytes_per_s:g} bytes/s")
        unknown = sorted(set(self.laws) - set(COLLECTIVE_KINDS))
        if unknown:
            raise InvalidInputError(f"unknown collective {unknown[0]!r}: known are {', '.join(COLLECTIVE_KINDS)}")
        self.law("send_recv")  # validates the general numbers

    def law(self, kind: CollectiveKind) -> CollectiveLaw:
        """The constants of ``kind``: its own, or the link's general ones."""
        own = self.laws.get(kind)
        if own is not None:
            return own
        return CollectiveLaw(
            latency_s=self.latency_s,
            latency_per_rank_s=self.latency_per_rank_s,
            efficiency=self.efficiency,
            saturation_bytes=self.saturation_bytes,
        )
