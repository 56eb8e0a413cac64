"""A link: how fast bytes cross it, and what a collective over it costs besides.

Time of a collective that moves ``W`` bytes per rank over a link of ``B`` bytes/s (see `autoshard.cost.collectives`):
``t = latency + latency_per_rank (n - 1) + step W / (W + step_bytes) + W / (efficiency B) (1 + sqrt(saturation / W))``.
The last factor says how slowly the link fills: at ``W = saturation`` it runs at half its best rate. The step is the
cost of leaving the protocol for small messages.
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

    ``latency_s`` and ``latency_per_rank_s`` (for every rank beyond the first) are paid whatever the size, ``step_s``
    by messages much larger than ``step_bytes``; ``efficiency`` is the share of the link's nominal rate that very large
    messages reach; ``saturation_bytes`` the bytes per rank at which half of that is reached. ``by_ranks`` gives
    constants for some group sizes, each without ranks of its own: between them the constants are interpolated in the
    logarithm of the size, beyond them the nearest hold (the latency goes on growing as between the last two).
    """

    latency_s: float
    latency_per_rank_s: float = 0.0
    efficiency: float = 1.0
    saturation_bytes: float = 0.0
    step_s: float = 0.0
    step_bytes: float = 0.0
    by_ranks: tuple[tuple[int, "CollectiveLaw"], ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if min(self.latency_s, self.latency_per_rank_s, self.saturation_bytes, self.step_s, self.step_bytes) < 0:
            raise InvalidInputError(f"latency and saturation of a collective must not be negative: {self}")
        if not 0 < self.efficiency <= 1:
            raise InvalidInputError(f"efficiency of a collective must lie in (0, 1], got {self.efficiency:g}")
        sizes = [size for size, _ in self.by_ranks]
        if sizes != sorted(set(sizes)) or any(size < 2 for size in sizes):
            raise InvalidInputError(f"group sizes of a collective's constants must rise from 2, got {sizes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A class of links.

    ``bytes_per_s`` is the nominal rate per direction and device. The other numbers hold for every kind of collective
    that ``laws`` does not name. ``engine_laws`` are the one- and two-shot all-reduces that engines bring along, by
    name (``vllm_graph``, ``vllm_eager``, ...). ``eager_latency_s`` is what launching a collective from Python adds to
    replaying it in a graph.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    latency_per_rank_s: float = 0.0
    efficiency: float = 1.0
    saturation_bytes: float = 0.0
    eager_latency_s: float = 0.0
    laws: Mapping[str, CollectiveLaw] = field(default_factory=dict, hash=False)
    engine_laws: Mapping[str, CollectiveLaw] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0:
            raise InvalidInputError(f"a link needs a positive bandwidth, got {self.bytes_per_s:g} bytes/s")
        if self.eager_latency_s < 0:
            raise InvalidInputError(f"eager latency must not be negative, got {self.eager_latency_s:g} s")
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
