"""Which law prices which kernel: a device's own by dtype, or those fitted to one engine's kernels.

Engines also run the products that read the same tensor (q, k and v; gate and up) as one; a product's share of the time
is then its share of the columns, which keeps costs additive and is exact where the products are split alike.
"""

from dataclasses import dataclass
from typing import Literal

from autoshard.cost.arrays import FloatArray
from autoshard.cost.attention import decode_law_s, mla_decode_law_s, prefill_law_s
from autoshard.cost.formats import Format, dtype_word, format_of
from autoshard.cost.gemm import ACTIVATION_BYTES, gemm_law_s, gemm_s, grouped_gemm_s, grouped_law_s
from autoshard.hardware import Device, KernelKind, KernelLaw
from autoshard.units import dtype_bytes

GemmRole = Literal["dense", "head", "router"]
FRAMEWORKS = ("trtllm", "vllm", "sglang")
"""Engines whose kernels were measured, in the order in which one stands in for another."""


def kernel_law(device: Device, kind: KernelKind, framework: str, rest: str, dtype: str) -> KernelLaw:
    """The law for a framework and the rest of a variant's name, another framework's, or that of the dtype."""
    variants = device.kernels.get(kind, {})
    for word in (framework, *FRAMEWORKS):
        if f"{word}/{rest}" in variants:
            return variants[f"{word}/{rest}"]
    return device.kernel(kind, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Prices the kernels of a device; ``engine`` is whose they are (None: the device's default).

    ``dense`` and ``experts`` are the formats of weights, by the words of `autoshard.cost.formats`; without an engine
    both are ``dtype``'s own.
    """

    device: Device
    dtype: str
    kv_dtype: str
    engine: str | None = None
    dense: str | None = None
    experts: str | None = None

    @property
    def merges(self) -> bool:
        """Whether products of one tensor run as one."""
        return self.engine is not None

    def _format(self, word: str | None) -> tuple[str, Format]:
        word = word or dtype_word(self.dtype)
        return word, format_of(word, self.device)

    def _law(self, kind: KernelKind, rest: str, dtype: str) -> KernelLaw:
        assert self.engine is not None
        return kernel_law(self.device, kind, self.engine, rest, dtype)

    @property
    def _cache(self) -> tuple[str, str]:
        return ("bfloat16", "bfloat16") if dtype_bytes(self.kv_dtype) >= 2 else ("fp8", "float8_e4m3fn")

    def gemm_s(self, m: FloatArray, k: FloatArray, n: FloatArray, role: GemmRole = "dense") -> FloatArray:
        """A product of ``m`` rows; logits and router scores stay in 16 bits, as their weights do."""
        if self.engine is None:
            narrow = role == "head" and dtype_bytes(self.dtype) < ACTIVATION_BYTES
            return gemm_s(self.device, m, k, n, "bfloat16" if narrow or role == "router" else self.dtype)
        word, number = self._format(self.dense if role == "dense" else "bfloat16")
        law = self._law("gemm", word, number.dtype)
        return gemm_law_s(self.device, law, m, k, n, number.dtype, number.weight_bytes)

    def grouped_s(
        self,
        pairs: FloatArray,
        experts_local: FloatArray,
        experts_touched: FloatArray,
        k: FloatArray,
        n: FloatArray,
        rows_moved: FloatArray,
    ) -> FloatArray:
        """One matrix of the routed experts.

        ``rows_moved`` (elements of the rows that all ranks of the group read and write, 0 but for one of a layer's
        matrices) is priced where the engine's law has a share for it.
        """
        if self.engine is None:
            return grouped_gemm_s(self.device, pairs, experts_local, experts_touched, k, n, self.dtype)
        word, number = self._format(self.experts)
        law = self._law("grouped_gemm", word, number.dtype)
        found = grouped_law_s(
            self.device, law, pairs, experts_local, experts_touched, k, n, number.dtype, number.weight_bytes
        )
        if law.all_rows_efficiency > 0:
            rate = self.device.memory_bytes_per_s * law.all_rows_efficiency
            found = found + 2.0 * rows_moved * ACTIVATION_BYTES / rate
        return found

    def decode_s(
        self,
        sequences: FloatArray,
        context: float | FloatArray,
        heads: FloatArray,
        kv_heads: FloatArray,
        qk_dim: float,
        v_dim: float,
    ) -> FloatArray:
        """Attention core of one new token a sequence (`autoshard.cost.attention.attention_decode_s`)."""
        word, dtype = self._cache
        law = self._of("attention_decode", word, dtype)
        size = dtype_bytes(self.kv_dtype)
        return decode_law_s(self.device, law, sequences, context, heads, kv_heads, qk_dim, v_dim, size)

    def mla_decode_s(
        self, sequences: FloatArray, context: float | FloatArray, heads: FloatArray, latent: float, rope: float
    ) -> FloatArray:
        """Absorbed MLA of one new token a sequence (`autoshard.cost.attention.mla_decode_s`)."""
        word, dtype = self._cache
        law = self._of("mla_decode", word, dtype)
        return mla_decode_law_s(
            self.device, law, sequences, context, heads, latent, rope, dtype_bytes(self.kv_dtype)
        )  # fmt: skip

    def prefill_s(
        self,
        sequences: FloatArray,
        tokens: float,
        context: float,
        heads: FloatArray,
        kv_heads: FloatArray,
        qk_dim: float,
        v_dim: float,
    ) -> FloatArray:
        """Attention core over prompts (`autoshard.cost.attention.attention_prefill_s`)."""
        law, size = self._prefill("attention_prefill")
        return prefill_law_s(
            self.device, law, sequences, tokens, context, heads, kv_heads, qk_dim, v_dim, size
        )  # fmt: skip

    def mla_prefill_s(
        self, sequences: FloatArray, tokens: float, context: float, heads: FloatArray, qk_dim: float, v_dim: float
    ) -> FloatArray:
        """MLA's core over prompts (`autoshard.cost.attention.mla_prefill_s`)."""
        law, size = self._prefill("mla_prefill")
        return prefill_law_s(self.device, law, sequences, tokens, context, heads, heads, qk_dim, v_dim, size)

    def _of(self, kind: KernelKind, rest: str, dtype: str) -> KernelLaw:
        return self.device.kernel(kind, dtype) if self.engine is None else self._law(kind, rest, dtype)

    def _prefill(self, kind: KernelKind) -> tuple[KernelLaw, float]:
        """The law and the bytes of a cached element; without an engine prompts are priced with a cache in 16 bits."""
        if self.engine is None:
            return self.device.kernel(kind, "bfloat16"), ACTIVATION_BYTES
        word, dtype = self._cache
        rest = f"bfloat16/{word}" if kind == "attention_prefill" else word
        return self._law(kind, rest, dtype), dtype_bytes(self.kv_dtype)
