"""What is served: the phase, the lengths, the limits and the number formats.

- ``decode``: every sequence makes one token a step with ``context`` tokens in its KV cache.
- ``prefill``: every sequence is a prompt of ``isl`` (or ``context``) tokens; under the causal mask a token sees half of
  the prompt on average.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from autoshard.errors import InvalidInputError
from autoshard.units import DTYPE_BYTES, MS

Phase = Literal["decode", "prefill"]

_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "fp8": "float8_e4m3fn"}
_MOST_TOKENS = 10**9
_LATER = "comes with phase 'serve' in a later version"


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

    ``context`` and ``isl`` are tokens; ``ttft_ms`` (prefill) and ``tpot_ms`` (decode) upper limits in milliseconds;
    ``dtype`` is that of weights and matrix products, ``kv_dtype`` that of the KV cache (aliases such as ``bf16`` are
    stored under their torch names). ``osl`` is reserved for phase ``serve``.

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

    def __post_init__(self) -> None:
        if self.phase not in get_args(Phase):
            raise InvalidInputError(f"unknown phase {self.phase!r}: known are decode and prefill; serve comes later")
        for name in ("context", "isl", "osl"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInputError(f"{name} must be a whole number of tokens, at least 1, got {value!r}")
            if value is not None and value > _MOST_TOKENS:
                raise InvalidInputError(f"{name}={value} is more than {_MOST_TOKENS:,} tokens")
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidInputError(f"{name} must be a positive number of milliseconds, got {value!r}")
        if self.osl is not None:
            raise InvalidInputError(f"osl={self.osl} has no meaning in phase {self.phase!r}: it {_LATER}")
        if self.phase == "decode" and self.isl is not None:
            raise InvalidInputError(f"isl={self.isl} is for phase 'prefill': decode takes context; both {_LATER}")
        if self.phase == "prefill" and self.tpot_ms is not None:
            raise InvalidInputError(f"tpot_ms={self.tpot_ms:g} limits decode, not prefill: both together {_LATER}")
        if self.phase == "decode" and self.ttft_ms is not None:
            raise InvalidInputError(f"ttft_ms={self.ttft_ms:g} limits prefill, not decode: both together {_LATER}")
        object.__setattr__(self, "dtype", normalise_dtype(self.dtype))
        object.__setattr__(self, "kv_dtype", normalise_dtype(self.kv_dtype))

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens of one sequence that enter a step: 1 in decode, the prompt in prefill."""
        if self.phase == "decode":
            return 1
        return self.context if self.isl is None else self.isl

    @property
    def mean_context(self) -> float:
        """Keys that a token attends to, on average over the step."""
        return float(self.context) if self.phase == "decode" else self.tokens_per_sequence / 2

    @property
    def cached_tokens_per_sequence(self) -> int:
        """Tokens of one sequence whose keys and values are held in memory."""
        return self.context if self.phase == "decode" else self.tokens_per_sequence

    @property
    def tpot_s(self) -> float | None:
        """Limit on the time per output token, in seconds."""
        return None if self.tpot_ms is None else self.tpot_ms * MS

    @property
    def ttft_s(self) -> float | None:
        """Limit on the time to the first token, in seconds."""
        return None if self.ttft_ms is None else self.ttft_ms * MS
