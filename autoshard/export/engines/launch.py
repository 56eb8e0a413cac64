"""What the engines' exports share: flags that are checked, dtypes, notes, a shell script."""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from autoshard.errors import InvalidInputError
from autoshard.export.artifact import ExportedFile
from autoshard.ir import Mixer
from autoshard.plan import PlanData


@cache
def _flag_lists() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(
        resources.files("autoshard.export.engines").joinpath("flags.json").read_text("utf-8")
    )
    return found


def flag_targets() -> tuple[str, ...]:
    """Engines with a list of flags."""
    return tuple(_flag_lists())


def flag_list(engine: str) -> Mapping[str, Any]:
    """``version``, ``sources`` and ``flags`` of an engine."""
    found: Mapping[str, Any] = _flag_lists()[engine]
    return found


def version_of(engine: str) -> str:
    """The version an engine's flags were read for."""
    return str(flag_list(engine)["version"])


def checked(engine: str, flags: Mapping[str, Any], kind: str = "") -> dict[str, Any]:
    """Flags that have a value, each of which must be on the engine's list (``kind`` is ``env:`` or ``yaml:``)."""
    known = flag_list(engine)["flags"]
    found = {k: v for k, v in flags.items() if v is not None and v is not False}
    unknown = [k for k in found if kind + k not in known]
    assert not unknown, f"{engine} {version_of(engine)} has no flags {unknown}"
    return found


def command_line(flags: Mapping[str, Any], indent: str = "  ") -> str:
    """Flags as the lines of a shell command."""
    parts = [f"--{k}" if v is True else f"--{k} {v}" for k, v in flags.items()]
    return " \\\n".join(indent + p for p in parts)


def yaml_text(values: Mapping[str, Any], head: str) -> str:
    """A flat YAML file with a comment before it."""
    lines = [f"# {line}" for line in head.splitlines()]
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{key}:", *(f"  {k}: {_scalar(v)}" for k, v in value.items())]
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def script(title: str, plan: PlanData, body: str, environment: Mapping[str, str]) -> ExportedFile:
    """``launch.sh``: runs one replica; the model's path is its first argument."""
    d = plan.degrees
    exports = "".join(f"export {k}={v}\n" for k, v in environment.items())
    degrees = f"pp={d.pp} dp={d.dp} tp={d.tp} ep={d.ep} etp={d.etp}"
    text = (
        f"#!/usr/bin/env bash\n# {plan.model.name} on {plan.cluster.name} for {title}: {degrees}\n"
        f"# One of {d.replicas} replicas of {d.num_devices} GPUs. Usage: launch.sh MODEL_OR_CHECKPOINT\n"
        f'set -euo pipefail\ncd "$(dirname "$0")"\nMODEL="$1"\n{exports}{body}\n'
    )
    return ExportedFile(name="launch.sh", text=text)


def lengths(plan: PlanData) -> tuple[int, int]:
    """(longest sequence, most tokens of one step on one dp rank) the plan was made for."""
    w, d = plan.workload, plan.degrees
    if w.phase == "serve":
        return w.cached_tokens_per_sequence, d.batch // d.dp + w.prompt_tokens
    longest = max(w.context if w.phase == "decode" else w.tokens_per_sequence, w.tokens_per_sequence + 1)
    per_rank = d.batch // d.dp
    return longest, max(per_rank * w.tokens_per_sequence, per_rank)


def uneven_stages(plan: PlanData) -> str | None:
    """Layers per stage as ``16,15,15,15``, None when they are equal."""
    return None if len(set(plan.stages)) == 1 else ",".join(map(str, plan.stages))


def nodes_of(plan: PlanData) -> int:
    """Nodes of one replica."""
    return -(-plan.degrees.num_devices // plan.cluster.devices_per_node)


def dtype_flags(plan: PlanData, weights: Mapping[str, Any], kv: Mapping[str, Any], engine: str) -> tuple[Any, Any]:
    """An engine's words for the dtypes of weights and KV cache.

    Raises:
        InvalidInputError: for a dtype the engine was not seen to have.
    """
    w = plan.workload
    for what, dtype, known in (("dtype", w.dtype, weights), ("kv-dtype", w.kv_dtype, kv)):
        if dtype not in known:
            raise InvalidInputError(f"{engine} has no {what} {dtype}: plan with one of {', '.join(known)}")
    return weights[w.dtype], kv[w.kv_dtype]


def notes_of(plan: PlanData, exchange: str = "") -> tuple[str, ...]:
    """What a reader should know whichever the engine; ``exchange`` is its setting of how tokens reach their experts."""
    d = plan.degrees
    found = []
    if d.replicas > 1:
        found.append(f"the plan is {d.replicas} replicas: start the command once for each, behind a load balancer")
    mixers = sorted({f"{b.name}/{op.name}" for b, op in plan.graph.all_ops() if isinstance(op, Mixer)})
    if mixers:
        found.append(f"{', '.join(mixers)}: the engine shards its mixers its own way, the plan has them whole")
    if plan.strategy.exchange:
        setting = f" ({exchange})" if exchange else ""
        found.append(f"tokens go to their experts by all_to_all: which kernel does is the engine's setting{setting}")
    return tuple(found)
