"""What would make a request possible that no degrees serve: each change is tried, and only what works is named."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autoshard.api.candidates import Candidate
from autoshard.api.verdict import Request, any_plan, with_cluster, with_scheme
from autoshard.engines import find_scheme

FACTORS = (1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Of the cluster's devices, tried in order."""
SHORTEST = 256
LAUNCH = {"max_num_seqs": 256, "fraction": 0.95}
"""Settings tried alone, then together: sampling buffers grow with the first, the cache with the second."""
SCHEMES = ("fp8", "fp8_block", "int4")
"""Weights of fewer bits, tried in order."""


def relaxations(request: Request) -> list[dict[str, Any]]:
    """The smallest change of each kind that makes some degrees legal and fitting.

    Kinds are devices, context, KV format, weights and what the launch sets; each has what was changed to which
    ``value``, a ``message``, and the ``degrees`` that were found to work with it.
    """
    found = []
    for kind in (_devices, _context, _kv_dtype, _weights, _launch):
        for value, text, changed in kind(request):
            plan = any_plan(changed)
            if plan is not None and kind is _context:
                value, text, plan = _longest(request, value, text, plan)
            if plan is not None:
                found.append({"change": kind.__name__[1:], "value": value, "message": text, "degrees": plan.to_dict()})
                break
    return found


def _devices(request: Request) -> Iterator[tuple[Any, str, Request]]:
    cluster = request.launch.cluster
    for factor in FACTORS:
        count = int(cluster.num_devices * factor)
        if count > cluster.num_devices:
            more = replace(cluster, name=f"{cluster.device.name}x{count}", num_devices=count)
            yield count, f"{count} devices instead of {cluster.num_devices}", with_cluster(request, more)


def _context(request: Request) -> Iterator[tuple[Any, str, Request]]:
    tokens, most = request.context, request.launch.positions
    if 0 < most < tokens:
        tokens = most
        yield tokens, f"a context of {tokens:,} tokens, which the config allows", replace(request, context=tokens)
    while tokens > SHORTEST:
        tokens = max(tokens // 2, SHORTEST)
        yield tokens, f"a context of {tokens:,} tokens", replace(request, context=tokens)


def _longest(request: Request, tokens: int, text: str, plan: Candidate) -> tuple[int, str, Candidate]:
    """The longest context, in steps of a sixteenth, between one that works and twice that."""
    step = max(tokens // 16, 1)
    works, fails = 0, min(16, (request.context - tokens) // step + 1)
    while fails - works > 1:
        middle = (works + fails) // 2
        longer = tokens + middle * step
        found = any_plan(replace(request, context=longer))
        if found is None:
            fails = middle
        else:
            works, plan, text = middle, found, f"a context of {longer:,} tokens"
    return tokens + works * step, text, plan


def _kv_dtype(request: Request) -> Iterator[tuple[Any, str, Request]]:
    if request.kv_dtype in ("bfloat16", "float16", "float32"):
        yield "fp8", "a KV cache in fp8 (--kv-dtype fp8)", replace(request, kv_dtype="float8_e4m3fn")


def _weights(request: Request) -> Iterator[tuple[Any, str, Request]]:
    for name in SCHEMES:
        scheme = find_scheme(name)
        if scheme.bits < request.launch.scheme.bits:
            yield name, f"weights in {name} (--quant {name})", with_scheme(request, scheme)


def _launch(request: Request) -> Iterator[tuple[Any, str, Request]]:
    """Fewer sequences at once and a larger share of the memory, where the engine has such settings."""
    engine, set_already = request.launch.engine, request.launch.options
    free = {k: v for k, v in LAUNCH.items() if k in engine.options and not set_already[k]}
    for names in (*((k,) for k in free), *((tuple(free),) if len(free) > 1 else ())):
        changes = {k: free[k] for k in names}
        launch = replace(request.launch, options={**set_already, **changes})
        text = " and ".join(f"{k}={v:g}" for k, v in changes.items())
        yield changes, f"launching with {text}", replace(request, launch=launch)
