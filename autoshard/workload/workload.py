"""What is served: the phase, the lengths, the limits and the number formats.

- ``decode``: every sequence makes one token a step with ``context`` tokens in its KV cache.
- ``prefill``: every sequence is a prompt of ``isl`` (or ``context``) tokens; under the causal mask a token sees half of
  the prompt on average.
- ``serve``: both at once, at steady state. Every request has a prompt of ``isl`` tokens and makes ``osl`` tokens; as
  one ends the next begins, so that the number in flight (``concurrency`` over the whole cluster, or what a search finds
  best) stays. Prompts are worked off in chunks between decode steps. Decode steps see ``isl + osl / 2`` tokens on
  average, memory must hold ``isl + osl`` of every sequence.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from autoshard.errors import InvalidInputError
from autoshard.units import DTYPE_BYTES, MS
from autoshard.workload.effects import check_effects

Phase = Literal["decode", "prefill", "serve"]

_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "fp8": "float8_e4m3fn"}
_MOST_TOKENS = 10**9


def normalise_dtype(dtype: str) -> str:
    """The torch name of ``dtype`` (``bf16`` is ``bfloat16``, ``fp8`` is ``float8_e4m3fn``).

    Raises:
        InvalidInputError: for a dtype that is not known; names those that are.
    """
    name = _ALIASES.get(dtype, dtype)
    if name not in DTYPE_BYTES or name in {"int32", "int64", "uint8"}:
        known = [*_ALIASES, *(d for d in DTYPE_BYTES if d not in {"int32", "int64", "uint8"})]
        raise InvalidInputError(f"unknown dtype {dtype!r}: known are {', '.join(known)}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A serving workload.

    ``context``, ``isl`` and ``osl`` are tokens; ``ttft_ms`` (prefill, serve) and ``tpot_ms`` (decode, serve) upper
    limits in milliseconds; ``dtype`` is that of weights and matrix products, ``kv_dtype`` that of the KV cache (aliases
    such as ``bf16`` are stored under their torch names). ``osl`` (needed there, as ``isl`` is), ``concurrency``
    (requests in flight over the whole cluster) and ``engine`` (whose kernels and host overhead are assumed) are for
    phase ``serve``. ``effects`` are the costs that are not additive (`autoshard.workload.effects`), none by default.

    Raises:
        InvalidInputError: on creation, one line with the rule and the value.
    """

    phase: Phase = "decode"
    context: int = 4096
    isl: int | None = None
    osl: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    concurrency: int | None = None
    engine: str | None = None
    effects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.phase not in get_args(Phase):
            raise InvalidInputError(f"unknown phase {self.phase!r}: known are {', '.join(get_args(Phase))}")
        for name in ("context", "isl", "osl", "concurrency"):
            value, what = getattr(self, name), "requests" if name == "concurrency" else "tokens"
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInputError(f"{name} must be a whole number of {what}, at least 1, got {value!r}")
            if value is not None and value > _MOST_TOKENS:
                raise InvalidInputError(f"{name}={value} is more than {_MOST_TOKENS:,} {what}")
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidInputError(f"{name} must be a positive number of milliseconds, got {value!r}")
        self._check_phase()
        object.__setattr__(self, "dtype", normalise_dtype(self.dtype))
        object.__setattr__(self, "kv_dtype", normalise_dtype(self.kv_dtype))
        object.__setattr__(self, "effects", check_effects(self.effects, self.phase))

    def _check_phase(self) -> None:
        """Raise InvalidInputError for what the phase needs and lacks, or has and does not mean."""
        if self.phase == "serve":
            lacking = [f"--{name}" for name in ("isl", "osl") if getattr(self, name) is None]
            if lacking:
                raise InvalidInputError(
                    f"phase 'serve' needs {' and '.join(lacking)}: the tokens of a prompt (isl) and of an answer (osl)"
                )
            return
        for name in ("osl", "concurrency", "engine"):
            value = getattr(self, name)
            if value is not None:
                raise InvalidInputError(f"{name}={value} has no meaning in phase {self.phase!r}: it is for 'serve'")
        if self.phase == "decode" and self.isl is not None:
            raise InvalidInputError(f"isl={self.isl} is for phases 'prefill' and 'serve': decode takes context")
        if self.phase == "prefill" and self.tpot_ms is not None:
            raise InvalidInputError(f"tpot_ms={self.tpot_ms:g} limits decode, not prefill: both are in phase 'serve'")
        if self.phase == "decode" and self.ttft_ms is not None:
            raise InvalidInputError(f"ttft_ms={self.ttft_ms:g} limits prefill, not decode: both are in phase 'serve'")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt (``isl``, or the context where it is not given)."""
        return self.context if self.isl is None else self.isl

    @property
    def answer_tokens(self) -> int:
        """Tokens that a request makes: ``osl``, 1 where it is not given."""
        return 1 if self.osl is None else self.osl

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens of one sequence that enter a step: 1 in decode, the prompt in prefill."""
        return self.prompt_tokens if self.phase == "prefill" else 1

    @property
    def mean_context(self) -> float:
        """Keys that a token attends to, on average over the step (of serving: the decode step)."""
        if self.phase == "serve":
            return self.prompt_tokens + self.answer_tokens / 2
        return float(self.context) if self.phase == "decode" else self.prompt_tokens / 2

    @property
    def cached_tokens_per_sequence(self) -> int:
        """Tokens of one sequence whose keys and values are held in memory, at most."""
        if self.phase == "serve":
            return self.prompt_tokens + self.answer_tokens
        return self.context if self.phase == "decode" else self.prompt_tokens

    @property
    def tpot_s(self) -> float | None:
        """Limit on the time per output token, in seconds."""
        return None if self.tpot_ms is None else self.tpot_ms * MS

    @property
    def ttft_s(self) -> float | None:
        """Limit on the time to the first token, in seconds."""
        return None if self.ttft_ms is None else self.ttft_ms * MS
