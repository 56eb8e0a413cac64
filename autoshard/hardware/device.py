"""One accelerator: its datasheet, and how much of it each kind of kernel reaches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from autoshard.errors import InvalidInputError

KernelKind = Literal["gemm", "grouped_gemm", "attention_decode", "attention_prefill", "memory"]
KERNEL_KINDS: tuple[KernelKind, ...] = get_args(KernelKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaw:
    """Roofline constants of one kind of kernel: shares of the peak rates, and the floor that any launch costs.

    Launches are those of a replayed CUDA graph; an eager launch costs the host more, which is not modelled here.
    """

    compute_efficiency: float
    memory_efficiency: float
    launch_s: float

    def __post_init__(self) -> None:
        if not (0 < self.compute_efficiency <= 1 and 0 < self.memory_efficiency <= 1):
            raise InvalidInputError(f"efficiencies of a kernel must lie in (0, 1]: {self}")
        if self.launch_s < 0:
            raise InvalidInputError(f"the launch time of a kernel must not be negative, got {self.launch_s:g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator.

    ``flops_per_s`` is the dense peak by torch dtype name; ``memory_bytes`` what a program can use of its memory;
    ``kernels[kind][dtype]`` the constants of a kind of kernel. A dtype that a kind does not list takes ``bfloat16``'s.
    """

    name: str
    flops_per_s: Mapping[str, float] = field(hash=False)
    memory_bytes: float
    memory_bytes_per_s: float
    kernels: Mapping[str, Mapping[str, KernelLaw]] = field(hash=False)

    def __post_init__(self) -> None:
        if self.memory_bytes <= 0 or self.memory_bytes_per_s <= 0:
            raise InvalidInputError(f"device {self.name}: memory size and bandwidth must be positive")
        if not self.flops_per_s or min(self.flops_per_s.values()) <= 0:
            raise InvalidInputError(f"device {self.name}: needs a positive FLOP/s for at least one dtype")
        for kind in KERNEL_KINDS:
            if "bfloat16" not in self.kernels.get(kind, {}):
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

    def kernel(self, kind: KernelKind, dtype: str = "bfloat16") -> KernelLaw:
        """Constants of ``kind`` in ``dtype``, or in bfloat16 where that dtype was not measured."""
        laws = self.kernels[kind]
        return laws.get(dtype, laws["bfloat16"])
