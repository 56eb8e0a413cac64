"""Costs that are not additive: what a step takes is then no sum over ops, and the exact search gives a bound.

============= ==================================================================================================
overlap       a collective runs while ops that do not wait for it compute
two-batch     a microbatch runs as two halves, one computing while the other's tokens travel to or from experts
contention    collectives in flight at the same time share the links they cross
skew          experts are unevenly popular, in some layers more than in others
============= ==================================================================================================

`autoshard.simulator.effects` has the formulas.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from autoshard.errors import InvalidInputError

Effect = Literal["overlap", "two-batch", "contention", "skew"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)


def parse_effects(text: str | None) -> tuple[str, ...]:
    """``"overlap,two-batch"``, or ``"all"`` or ``"none"``, as names; what they may be is checked by `check_effects`."""
    if text is None or text.strip() == "none":
        return ()
    return EFFECTS if text.strip() == "all" else tuple(name.strip() for name in text.split(",") if name.strip())


def check_effects(effects: Sequence[str], phase: str) -> tuple[str, ...]:
    """The effects once each, in the order of `EFFECTS`.

    Raises:
        InvalidInputError: for an unknown one, any in phase ``serve``, or contention where nothing is concurrent.
    """
    for name in effects:
        if name not in EFFECTS:
            raise InvalidInputError(f"unknown effect {name!r}: known are {', '.join(EFFECTS)}, all and none")
    if effects and phase == "serve":
        raise InvalidInputError(
            f"effects {', '.join(effects)} are for phases 'decode' and 'prefill': 'serve' has none of them"
        )
    if "contention" in effects and not {"overlap", "two-batch"} & set(effects):
        raise InvalidInputError(
            "effect 'contention' needs 'overlap' or 'two-batch': without them no two collectives are in flight at once"
        )
    return tuple(name for name in EFFECTS if name in effects)
