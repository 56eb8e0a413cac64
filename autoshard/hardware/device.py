"""One accelerator: its datasheet, and how much of it each kind of kernel reaches."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoshard.errors import InvalidInputError
from autoshard.hardware.dispatch_law import DispatchLaw
from autoshard.hardware.kernel_law import KERNEL_KINDS, KernelKind, KernelLaw

DEFAULT_UNITS = 132
"""Compute units where a device file says none: those of an H100 SXM [datasheet]."""

_RELATIVES: Mapping[str, KernelKind] = {
    "mla_decode": "attention_decode",
    "mla_prefill": "attention_prefill",
    "scan": "memory",
}
"""Kinds that a device file may leave out, and whose constants they take then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator.

    ``flops_per_s`` is the dense peak by torch dtype name; ``memory_bytes`` what a program can use of its memory;
    ``num_units`` its streaming multiprocessors or compute units. ``kernels[kind]`` maps a dtype to the constants of a
    kind of kernel, and a variant such as ``vllm/fp8_block`` to those of one engine's kernel; a dtype that a kind does
    not list takes ``bfloat16``'s. ``dispatch`` maps ``<mode>/dispatch`` and ``<mode>/combine`` to the constants of
    DeepEP-style all-to-alls.
    """

    name: str
    flops_per_s: Mapping[str, float] = field(hash=False)
    memory_bytes: float
    memory_bytes_per_s: float
    kernels: Mapping[str, Mapping[str, KernelLaw]] = field(hash=False)
    num_units: int = DEFAULT_UNITS
    dispatch: Mapping[str, DispatchLaw] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.memory_bytes <= 0 or self.memory_bytes_per_s <= 0 or self.num_units < 1:
            raise InvalidInputError(f"device {self.name}: memory size, bandwidth and units must be positive")
        if not self.flops_per_s or min(self.flops_per_s.values()) <= 0:
            raise InvalidInputError(f"device {self.name}: needs a positive FLOP/s for at least one dtype")
        for kind in KERNEL_KINDS:
            if "bfloat16" not in self.kernels.get(kind, {}) and (kind in self.kernels or kind not in _RELATIVES):
                raise InvalidInputError(f"device {self.name}: kernel {kind!r} lacks its bfloat16 constants")

    def peak_flops_per_s(self, dtype: str) -> float:
        """Dense peak of ``dtype``.

        Raises:
            InvalidInputError: if the device has no arithmetic in it.
        """
        if dtype not in self.flops_per_s:
            known = ", ".join(self.flops_per_s)
            raise InvalidInputError(f"device {self.name} does not compute in {dtype}: it has {known}")
        return self.flops_per_s[dtype]

    def kernel(self, kind: KernelKind, dtype: str = "bfloat16", variant: str | None = None) -> KernelLaw:
        """Constants of ``kind``: the variant's, else those of the dtype, else bfloat16's."""
        laws = self.kernels[kind] if kind in self.kernels else self.kernels[_RELATIVES[kind]]
        if variant is not None and variant in laws:
            return laws[variant]
        return laws.get(dtype, laws["bfloat16"])
