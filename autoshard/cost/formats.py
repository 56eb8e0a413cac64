"""Number formats of weights, as engines and measured tables call them."""

from dataclasses import dataclass

from autoshard.errors import InvalidInputError
from autoshard.hardware import Device


@dataclass(frozen=True, slots=True)
class Format:
    """Arithmetic in ``dtype``, weights of ``weight_bytes`` an element (None: as wide as the arithmetic)."""

    dtype: str
    weight_bytes: float | None = None


_BF16, _FP8 = "bfloat16", "float8_e4m3fn"
FORMATS = {
    "bfloat16": Format(_BF16),
    "bf16": Format(_BF16),
    "float16": Format(_BF16),
    "half": Format(_BF16),
    "fp8": Format(_FP8),
    "fp8_static": Format(_FP8),
    "fp8_block": Format(_FP8),
    "int8": Format(_FP8),
    "sq": Format(_FP8),
    "int8_wo": Format(_BF16, 1.0),
    "int4_wo": Format(_BF16, 0.53),
    "w4a16_mxfp4": Format(_BF16, 0.53),
    "w4afp8": Format(_FP8, 0.53),
    "w4a8_mxfp4_mxfp8": Format(_FP8, 0.53),
    "nvfp4": Format(_FP8, 0.5625),  # arithmetic in 4 bits is not modelled
}
"""Word -> format."""


def format_of(word: str, device: Device) -> Format:
    """The format called ``word``, in arithmetic that ``device`` has (16 bits where it lacks float8).

    Raises:
        InvalidInputError: for a word that is not known.
    """
    found = FORMATS.get(word.lower())
    if found is None:
        raise InvalidInputError(f"unknown number format {word!r} in the table: known are {', '.join(FORMATS)}")
    if found.dtype not in device.flops_per_s:
        stored = found.weight_bytes if found.weight_bytes is not None else 1.0
        return Format(_BF16, stored)
    return found


def dtype_word(dtype: str) -> str:
    """What engines call weights of a torch dtype: float8 means block-quantised, anything else 16 bits."""
    return "fp8_block" if dtype.startswith("float8") else "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """How an engine stores dense weights and those of routed experts, in words; None follows the workload's dtype."""

    dense: str | None = None
    experts: str | None = None


MODEL_FORMATS = Formats()
"""Everything in the workload's dtype."""
