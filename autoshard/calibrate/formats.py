"""Number formats as the measured tables call them."""

from autoshard.cost.formats import Format, format_of

__all__ = ["Format", "element_bytes", "format_of"]


def element_bytes(word: str) -> float:
    """Bytes of one cached element in the format a table calls ``word``."""
    if word.lower() in {"fp8", "fp8_e4m3", "int8"}:
        return 1.0
    if word.lower() in {"nvfp4", "fp4"}:
        return 0.5625
    return 2.0
