"""The degrees that a request leaves open, and how far others are from it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoshard.simulator.points import divisors

KEYS = ("pp", "dp", "tp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Candidate:
    """Degrees of one replica, and how many replicas there are."""

    pp: int
    dp: int
    tp: int
    ep: int
    etp: int
    replicas: int

    @property
    def world(self) -> int:
        """Devices of a replica."""
        return self.pp * self.dp * self.tp

    def degrees(self) -> dict[str, int]:
        """The five degrees, as rules and memory take them."""
        return {name: getattr(self, name) for name in KEYS}

    def to_dict(self) -> dict[str, int]:
        """As JSON data."""
        return {**self.degrees(), "replicas": self.replicas}

    def order(self) -> tuple[int, ...]:
        """Fewer devices a replica first, then fewer stages, dp groups and experts' shards."""
        return (self.world, self.pp, self.dp, self.ep)


WIDE_LIMIT = 64
"""Largest cluster of which parts are tried that leave devices idle."""


def candidates(
    fixed: Mapping[str, int], *, num_devices: int, num_layers: int, has_experts: bool, idle: bool = False
) -> list[Candidate]:
    """Every completion of ``fixed`` whose replicas divide the cluster (or at least fit, where what is fixed does not).

    With ``idle``, powers of two and any number of stages come besides, though they leave devices of a small cluster
    idle. Where nothing fits the cluster, or the two views of a stage cannot agree, the one request itself is returned,
    so that it can be said what is wrong with it.
    """
    n, some = num_devices, divisors(num_devices)
    stages = some
    if idle and n <= WIDE_LIMIT:
        some, stages = sorted({*some, *(2**i for i in range(n.bit_length()) if 2**i <= n)}), list(range(1, n + 1))
    stages = [p for p in stages if p <= num_layers]
    fit = [c for c in _all(fixed, n, has_experts, some, stages) if c.world * c.replicas <= n]
    whole = [c for c in fit if n % (c.world * c.replicas) == 0]
    found = (fit if idle else whole or fit) or [_as_asked(fixed, has_experts)]
    return sorted(set(found), key=Candidate.order)


def _all(
    fixed: Mapping[str, int], n: int, has_experts: bool, some: list[int], stages: list[int]
) -> Iterator[Candidate]:
    for pp in [fixed["pp"]] if "pp" in fixed else stages:
        for tp in [fixed["tp"]] if "tp" in fixed else some:
            for dp in [fixed["dp"]] if "dp" in fixed else some:
                if pp * tp * dp > n:
                    continue
                replicas = fixed.get("replicas", max(n // (pp * tp * dp), 1))
                for ep, etp in _expert_degrees(fixed, dp, tp, has_experts):
                    yield Candidate(pp=pp, dp=dp, tp=tp, ep=ep, etp=etp, replicas=replicas)


def _expert_degrees(fixed: Mapping[str, int], dp: int, tp: int, has_experts: bool) -> list[tuple[int, int]]:
    """(ep, etp) with ep * etp = dp * tp; a dense model has (dp, tp) unless more is asked of it."""
    group = dp * tp
    if not has_experts:
        return [(fixed.get("ep", dp), fixed.get("etp", tp))]
    pairs = [(ep, group // ep) for ep in divisors(group)]
    return [(e, t) for e, t in pairs if fixed.get("ep", e) == e and fixed.get("etp", t) == t]


def _as_asked(fixed: Mapping[str, int], has_experts: bool) -> Candidate:
    pp, dp = fixed.get("pp", 1), fixed.get("dp", 1)
    ep, etp = fixed.get("ep"), fixed.get("etp")
    tp = fixed.get("tp") or max((ep or 1) * (etp or 1) // dp, 1)
    if not has_experts:
        ep, etp = ep or dp, etp or tp
    ep = ep or (max(dp * tp // etp, 1) if etp else 1)
    etp = etp or max(dp * tp // ep, 1)
    return Candidate(pp=pp, dp=dp, tp=tp, ep=ep, etp=etp, replicas=fixed.get("replicas", 1))


def distance(candidate: Candidate, fixed: Mapping[str, int], num_devices: int) -> tuple[float, ...]:
    """How far a candidate is from a request: octaves over what was fixed, then idle devices, then its own order."""
    octaves = sum(abs(math.log2(getattr(candidate, k) / fixed[k])) for k in (*KEYS, "replicas") if k in fixed)
    idle = num_devices - candidate.world * candidate.replicas
    return (octaves, idle, *candidate.order())
