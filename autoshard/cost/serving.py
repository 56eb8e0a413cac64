r"""What a serving engine makes of its kernels: time per output token and to the first, at steady state.

``n`` requests share an attention rank, each with a prompt of ``isl`` tokens and an answer of ``osl``. With ``D`` the
seconds of a decode step of all of them (kernels, collectives, host) and ``P`` those of the passes over one prompt:

.. math:: D = \sum \mathrm{kernels} + \sigma n \qquad
   \mathrm{TPOT} = D + \varphi \frac{(n - 1) P}{\mathit{osl}} \qquad
   \mathrm{TTFT} = (P + D) \left(\pi + \beta (n - 1)\right)

While a request makes its ``osl`` tokens each of the other ``n - 1`` brings one prompt, which holds its steps up
(``interference``). Its own prompt takes ``prompt_passes`` times the bare kernels (eager launches, chunks that wait for
a step, tokenising) and waits for a share ``queue_share`` of the others'. On pp stages a request crosses all, others
block one. Both are linear in ``D`` and ``P``, so serving costs stay sums over fused ops.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from autoshard.cost.arrays import FloatArray
from autoshard.errors import InvalidInputError
from autoshard.units import US


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLaw:
    """Constants of an engine.

    Attributes:
        name: The engine's.
        kernels: Prefix of its kernels' laws in device files.
        all_reduce: Its own all-reduce, by name in device files.
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
    sequence_s: float
    interference: float
    prompt_passes: float
    queue_share: float
    chunk_tokens: int
    routing_skew: float
    source: str

    def host_s(self, sequences: FloatArray) -> FloatArray:
        """Host time of a decode step."""
        return self.sequence_s * sequences

    def tpot_weights(self, pp: FloatArray, requests: FloatArray, osl: float) -> tuple[FloatArray, FloatArray]:
        """Weights of a stage's decode step and of its passes over one prompt in the time per output token."""
        return pp, self.interference * (requests - 1.0) / osl

    def ttft_weights(self, pp: FloatArray, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same in the time to the first token."""
        each = self.prompt_passes * pp + self.queue_share * (requests - 1.0)
        return each, each


_UNITS = {"sequence_us": ("sequence_s", US)}


@lru_cache
def _file() -> dict[str, Any]:
    text = (resources.files("autoshard.cost") / "serving.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def serving_engines() -> tuple[str, ...]:
    """Names of the engines with a serving law."""
    return tuple(_file()["engines"])


def serving_law(name: str) -> ServingLaw:
    """The law of an engine.

    Raises:
        InvalidInputError: for a name that is not one of `serving_engines`.
    """
    if name not in serving_engines():
        raise InvalidInputError(f"no serving law for engine {name!r}: known are {', '.join(serving_engines())}")
    given = {**_file()["general"], **_file()["engines"][name]}
    source = f"{given.pop('source')}; {given.pop('measured')}"
    numbers = {_UNITS.get(key, (key, 1))[0]: value * _UNITS[key][1] if key in _UNITS else value
               for key, value in given.items()}  # fmt: skip
    return ServingLaw(name=name, source=source, **numbers)
