"""What users fix: degrees (``tp=8,ep=8``) and sharding choices (``q=0,layers/o=1,residual=none``)."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from autoshard.errors import InvalidInputError
from autoshard.ir import OpGraph
from autoshard.sharding import DISPATCH, RESIDUAL, Choice, degree_reasons, partition
from autoshard.sharding.legality import choice_key, choice_keys, model_choices
from autoshard.sharding.space import options
from autoshard.sharding.wider import KV_SEQUENCE, WIDER, check_wider
from autoshard.simulator import PINNABLE

CHOICES: Mapping[str, Choice] = {"0": 0, "1": 1, "none": None, "null": None, "r": None, "-": None}
"""How a choice is written: 0 shards the output, 1 what is contracted, none replicates."""


def parse_fix(fix: str | Mapping[str, int] | None) -> dict[str, int]:
    """Fixed degrees from ``"tp=8,ep=8"`` or a mapping.

    Raises:
        InvalidInputError: for an unknown degree, or a value that is no whole number of at least 1.
    """
    found: dict[str, int] = {}
    for key, value in _pairs(fix, "fix", "tp=8,ep=8"):
        if key not in PINNABLE:
            raise InvalidInputError(f"cannot fix {key!r}: degrees are {', '.join(PINNABLE)}{_near(key, PINNABLE)}")
        text = str(value).strip()
        if not (text.isdecimal() and int(text) >= 1) or isinstance(value, bool):
            raise InvalidInputError(f"{key}={value} must be a whole number of at least 1")
        found[key] = int(text)
    return found


def parse_pin(pin: str | Mapping[str, Choice] | None) -> dict[str, Choice]:
    """Pinned choices by op name or ``<block>/<op>``, not yet matched to a model.

    Raises:
        InvalidInputError: for a choice that is not 0, 1 or none.
    """
    found: dict[str, Choice] = {}
    for key, value in _pairs(pin, "pin", "q=0,o=1,layers/k=none"):
        text = "none" if value is None else str(value).strip().lower()
        if text not in CHOICES:
            raise InvalidInputError(
                f"{key}={value}: a choice is 0 (shard the output), 1 (shard what is contracted) or none (replicate)"
            )
        found[key] = CHOICES[text]
    return found


def parse_options(options: str | Mapping[str, object] | None) -> dict[str, object]:
    """What a launch sets besides degrees, from ``"mtp=1,fraction=0.95"`` or a mapping.

    Raises:
        InvalidInputError: for a text that is not written so.
    """
    return dict(_pairs(options, "option", "mtp=1,fraction=0.95"))


def parse_stages(stages: str | Sequence[int] | None, fixed: dict[str, int]) -> tuple[int, ...]:
    """Layers of every pipeline stage from ``"20,12"`` or numbers; ``fixed`` then gets that many stages as its pp.

    Raises:
        InvalidInputError: for something else than whole numbers of at least 1, or another pp in ``fixed``.
    """
    if stages is None:
        return ()
    texts = [t.strip() for t in stages.split(",")] if isinstance(stages, str) else [str(n) for n in stages]
    if not all(t.isdecimal() and int(t) >= 1 for t in texts) or not texts:
        raise InvalidInputError(f"cannot read stages {stages!r}: layers of every stage, written as 20,12, or even")
    if fixed.setdefault("pp", len(texts)) != len(texts):
        raise InvalidInputError(f"stages {stages!r} are {len(texts)} stages, pp={fixed['pp']} is fixed")
    return tuple(int(t) for t in texts)


def parse_space(space: str | Sequence[str] | None) -> tuple[str, ...]:
    """Parts of the wider space from ``"kv-sequence"`` or names. Raises InvalidInputError for an unknown one."""
    if space is None:
        return ()
    parts = tuple(p.strip() for p in space.split(",")) if isinstance(space, str) else tuple(space)
    check_wider(parts, "decode")
    return parts


def check_stages(graph: OpGraph, stages: tuple[int, ...]) -> None:
    """Check a partition against the model. Raises InvalidInputError when its layers are not the model's."""
    if stages and sum(stages) != len(graph.layers):
        even = ",".join(str(n) for n in partition(len(graph.layers), min(len(stages), len(graph.layers))))
        raise InvalidInputError(
            f"stages {','.join(map(str, stages))} deal out {sum(stages)} layers, {graph.model_name} has"
            f" {len(graph.layers)}; the even partition is {even}"
        )


def pins_for(graph: OpGraph, pinned: Mapping[str, Choice], wider: Sequence[str] = ()) -> dict[str, Choice]:
    """Pinned choices by the keys of a model's strategies; a bare op name means that op in every block.

    Choices may be of the parts ``wider`` of the wider space.

    Raises:
        InvalidInputError: for an op the model does not have, one without a choice of its own, or a choice it lacks.
    """
    keys = choice_keys(graph)
    found: dict[str, Choice] = {}
    for name, choice in pinned.items():
        for key in _matching(graph, name, keys):
            _check_offered(graph, key, choice, name, wider)
            found[key] = choice
    return found


def check_degrees(graph: OpGraph, fixed: Mapping[str, int], *, uneven: bool = False) -> None:
    """Check each fixed degree against the model, before the cluster is asked which combinations there are.

    Raises:
        InvalidInputError: for one that the model's heads, experts or layers do not allow; names the nearest that works.
    """
    pp, tp, ep = (fixed.get(n, 1) for n in ("pp", "tp", "ep"))
    reasons = degree_reasons(graph, pp=pp, dp=1, tp=tp, ep=ep, uneven=uneven)
    broken = [r.message for r in reasons if r.rule not in ("mesh nesting", "dense ep")]
    if broken:
        raise InvalidInputError("; ".join(broken))


def _matching(graph: OpGraph, name: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    for key in (RESIDUAL, DISPATCH):
        if name in (key, key.partition("/")[2]) and key in keys:
            return (key,)
    if name in ("dispatch", DISPATCH):
        raise InvalidInputError(f"cannot pin {name!r}: {graph.model_name} has no experts that ranks could share")
    matched = tuple(key for key in keys if name in (key, key.partition("/")[2]))
    if matched:
        return matched
    for block, op in graph.all_ops():
        if name in (op.name, f"{block.name}/{op.name}"):
            decided = choice_key(graph, block, op)
            why = f"pin {decided} instead" if decided in keys else "it follows the residual"
            raise InvalidInputError(f"cannot pin {name!r}: it has no choice of its own, {why}")
    names = list(dict.fromkeys(key.partition("/")[2] for key in keys))
    hint = _near(name, (*names, *keys))
    raise InvalidInputError(f"cannot pin {name!r}: {graph.model_name} has no such op; ops are {', '.join(names)}{hint}")


def _check_offered(graph: OpGraph, key: str, choice: Choice, name: str, wider: Sequence[str]) -> None:
    model = model_choices(graph, {"tp": 1, "ep": 1})
    if key in model:
        offered: set[Choice] = set(model[key])
        beyond = False
    else:
        block, op = next((b, o) for b, o in graph.all_ops() if f"{b.name}/{o.name}" == key)
        offered = {option.choice for option in options(block, op, wider)}
        beyond = choice in {option.choice for option in options(block, op, WIDER)}
    if choice not in offered:
        known = ", ".join("none" if c is None else str(c) for c in sorted(offered, key=str))
        more = f"; {choice} is in the wider space: add --space {KV_SEQUENCE}" if beyond else ""
        raise InvalidInputError(f"cannot pin {name}={choice}: the choices of {key} are {known}{more}")


def _pairs(given: str | Mapping[str, object] | None, what: str, example: str) -> Iterable[tuple[str, object]]:
    if given is None:
        return ()
    if not isinstance(given, str):
        return tuple(given.items())
    pairs: list[tuple[str, object]] = []
    for item in given.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise InvalidInputError(f"cannot read {item.strip()!r} of --{what} {given!r}: it is written as {example}")
        if key in dict(pairs):
            raise InvalidInputError(f"--{what} {given!r} gives {key} twice")
        pairs.append((key, value))
    return pairs


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""
