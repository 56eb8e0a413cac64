"""How quantised weights are stored: bits an element, scales a block or group, and which matrices are covered.

The figures are in ``data/quantisation.yaml``, each with its source.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from autoshard.errors import InvalidInputError

Covered = Literal["linear", "experts"]
"""``linear``: projections and dense FFNs, not the head; ``experts``: routed experts. Nothing else is ever quantised."""


class Scheme(BaseModel):
    """A way to store weights.

    ``block`` x ``block`` elements, or ``group`` elements along the contracted dim, share a scale of ``scale_bytes``;
    with neither, one scale a matrix. ``covers`` is empty for the plain 16 and 32 bit formats, where ``bits`` is that of
    every matrix.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    bits: Annotated[int, Field(ge=2, le=64)]
    block: Annotated[int, Field(ge=0)] = 0
    group: Annotated[int, Field(ge=0)] = 0
    scale_bytes: Annotated[float, Field(ge=0)] = 0.0
    covers: tuple[Covered, ...] = ("linear", "experts")
    compute_dtype: str
    aliases: tuple[str, ...] = ()
    source: str

    @property
    def is_quantised(self) -> bool:
        """Whether weights take fewer than 16 bits."""
        return self.bits < 16

    def element_bytes(self) -> float:
        """Bytes of one element, without scales."""
        return self.bits / 8

    def matrix_bytes(self, shape: Sequence[int]) -> tuple[float, float]:
        """(elements', scales') bytes of a tensor whose last two dims are (out, in) or (in, out).

        A 4-bit group runs along the contracted dim; as groups divide it, only the number of elements matters.
        """
        count = math.prod(shape)
        matrices = math.prod(shape[:-2])
        if self.block:
            blocks = matrices * math.ceil(shape[-2] / self.block) * math.ceil(shape[-1] / self.block)
            return count * self.element_bytes(), blocks * self.scale_bytes
        if self.group:
            return count * self.element_bytes(), count / self.group * self.scale_bytes
        return count * self.element_bytes(), matrices * self.scale_bytes


@lru_cache(maxsize=1)
def schemes() -> Mapping[str, Scheme]:
    """Every scheme by name."""
    text = (resources.files("autoshard.engines") / "data" / "quantisation.yaml").read_text(encoding="utf-8")
    return {name: Scheme(name=name, **fields) for name, fields in yaml.safe_load(text).items()}


def find_scheme(name: str) -> Scheme:
    """The scheme called ``name``, by its name or an alias.

    Raises:
        InvalidInputError: for an unknown one; names those that are known.
    """
    wanted = name.strip().lower().replace("-", "_")
    for scheme in schemes().values():
        if wanted in (scheme.name, *scheme.aliases):
            return scheme
    known = ", ".join(f"{s.name} ({', '.join(s.aliases)})" if s.aliases else s.name for s in schemes().values())
    raise InvalidInputError(f"unknown quantisation {name!r}: known are {known}")


def scheme_of_config(given: Mapping[str, Any] | None) -> Scheme:
    """The scheme that a config's ``quantization_config`` describes; bf16 where there is none.

    Raises:
        InvalidInputError: for a method that is not known.
    """
    if not given:
        return find_scheme("bf16")
    method = str(given.get("quant_method", "")).lower()
    if method == "fp8":
        return find_scheme("fp8_block" if given.get("weight_block_size") else "fp8")
    if method in ("gptq", "awq", "auto_round") and int(given.get("bits", 4)) == 4:
        return find_scheme("int4")
    if method == "modelopt":
        algorithm = str(given.get("quant_algo", "")).lower()
        return find_scheme("nvfp4" if "fp4" in algorithm else "fp8")
    if method == "mxfp4":
        return find_scheme("mxfp4")
    raise InvalidInputError(f"the config is quantised by {method!r}: say what that means with --quant (or quant=)")
