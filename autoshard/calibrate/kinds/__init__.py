"""The kinds of measured tables, by the name that ``--kind`` takes. Adding one is adding a file and a line here."""

from collections.abc import Mapping

from autoshard.calibrate.kinds.attention import DECODE, PREFILL
from autoshard.calibrate.kinds.collectives import CUSTOM_ALL_REDUCE, NCCL
from autoshard.calibrate.kinds.deepep import DEEPEP
from autoshard.calibrate.kinds.gemm import GEMM
from autoshard.calibrate.kinds.kind import TableKind
from autoshard.calibrate.kinds.mla import MLA
from autoshard.calibrate.kinds.moe import MOE

KINDS: Mapping[str, TableKind] = {
    kind.name: kind for kind in (GEMM, MOE, DECODE, PREFILL, MLA, NCCL, CUSTOM_ALL_REDUCE, DEEPEP)
}

__all__ = ["KINDS", "TableKind"]
