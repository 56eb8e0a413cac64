r"""What a serving engine makes of its kernels: time per output token and to the first, at steady state.

``n`` requests share an attention rank, each with a prompt of ``isl`` tokens and an answer of ``osl``. With ``D`` the
seconds of a decode step of all of them (kernels, collectives, host) and ``P`` those of the passes over one prompt:

.. math:: D = \sum \mathrm{kernels} + \sigma n \qquad
   \mathrm{TPOT} = D + \varphi \frac{(n - 1) P}{\mathit{osl}} \qquad
   \mathrm{TTFT} = (P + D) \left(\pi + \beta (n - 1)\right)

The host costs ``sigma`` for every sequence, and ``sigma_0`` a step where it and the device take turns: engines that
prepare a step while the last one runs, as all do by now, hide it.

While a request makes its ``osl`` tokens each of the other ``n - 1`` brings one prompt, which holds its steps up
(``interference``). Its own prompt takes ``prompt_passes`` times the bare kernels (eager launches, chunks that wait for
a step, tokenising) and waits for a share ``queue_share`` of the others'. On pp stages a request crosses all, others
block one. Both are linear in ``D`` and ``P``, so serving costs stay sums over fused ops.
"""

from dataclasses import dataclass
from datetime import date as Date
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from autoshard.cost.arrays import FloatArray
from autoshard.errors import InvalidInputError
from autoshard.units import US
from autoshard.versions import in_range, parse_version


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLaw:
    """Constants of an engine.

    Attributes:
        name: The engine's.
        kernels: Prefix of its kernels' laws in device files.
        all_reduce: Its own all-reduce, by name in device files.
        step_s: Host time of a step by itself: 0 in versions that prepare a step while the last one runs.
        sequence_s: Host time of a step for every sequence of an attention rank (scheduling, sampling, detokenising).
        interference: Share of the others' prompts that a request's own steps wait for.
        prompt_passes: Time to the first token of a lone request, in passes over its prompt and one step.
        queue_share: More of them for every other request of the rank.
        chunk_tokens: Prompt tokens of one pass.
        routing_skew: How unevenly popular the routed experts are (`autoshard.cost.moe`).
        source: Where the constants come from.
    """

    name: str
    kernels: str
    all_reduce: str
    step_s: float
    sequence_s: float
    interference: float
    prompt_passes: float
    queue_share: float
    chunk_tokens: int
    routing_skew: float
    source: str

    def host_s(self, sequences: FloatArray) -> FloatArray:
        """Host time of a decode step."""
        return self.step_s + self.sequence_s * sequences

    def tpot_weights(self, pp: FloatArray, requests: FloatArray, osl: float) -> tuple[FloatArray, FloatArray]:
        """Weights of a stage's decode step and of its passes over one prompt in the time per output token."""
        return pp, self.interference * (requests - 1.0) / osl

    def ttft_weights(self, pp: FloatArray, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same in the time to the first token."""
        each = self.prompt_passes * pp + self.queue_share * (requests - 1.0)
        return each, each


_UNITS = {"step_us": ("step_s", US), "sequence_us": ("sequence_s", US)}


@lru_cache
def _file() -> dict[str, Any]:
    text = (resources.files("autoshard.cost") / "serving.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def serving_engines() -> tuple[str, ...]:
    """Names of the engines with a serving law."""
    return tuple(_file()["engines"])


def takes_turns(name: str, version: str = "", date: str = "") -> bool:
    """Whether the host and the device take turns in a version of an engine (as it is now where none is given).

    Args:
        name: One of `serving_engines`.
        version: Of the engine, as ``0.12.0``.
        date: Of a run whose version nobody wrote down, as ``2025-11-02``.

    Raises:
        InvalidInputError: for a version or date that cannot be read.
    """
    ended = _file()["engines"][name].get("takes_turns")
    if ended is None:
        return False
    if version:
        return in_range(version, ended["versions"])
    try:
        return bool(date) and Date.fromisoformat(date) < ended["until"]
    except ValueError as error:
        raise InvalidInputError(f"cannot read the date {date!r}: it is written as 2025-11-02") from error


def serving_law(engine: str) -> ServingLaw:
    """The law of an engine as it is now, or of a version of it: ``vllm``, ``vllm==0.12.0``.

    Raises:
        InvalidInputError: for a name that is not one of `serving_engines`, or a version that cannot be read.
    """
    name, given, version = engine.partition("==")
    if name not in serving_engines():
        known = ", ".join(serving_engines())
        raise InvalidInputError(
            f"no serving law for engine {name!r}: known are {known}, or a version of one, as vllm==0.12.0"
        )
    if given:
        parse_version(version)
    fields = {**_file()["general"], **_file()["engines"][name]}
    source = f"{fields.pop('source')}; {fields.pop('measured')}"
    fields.pop("takes_turns", None)
    if not takes_turns(name, version):
        fields["step_us"] = 0.0
    numbers = {_UNITS.get(key, (key, 1))[0]: value * _UNITS[key][1] if key in _UNITS else value
               for key, value in fields.items()}  # fmt: skip
    return ServingLaw(name=engine, source=source, **numbers)
