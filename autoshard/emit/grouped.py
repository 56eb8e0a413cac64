"""One matrix product per expert over rows sorted by expert."""

import torch
import torch.nn.functional as F
from torch import Tensor


def grouped_linear(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """(rows, in), weights (experts, in, out), rows per expert (experts,) -> (rows, out).

    Rows are sorted by expert; those after the last expert's (other ranks') come out undefined. On GPUs one grouped
    kernel without a host synchronisation; elsewhere, and for dtypes or widths it does not take, a loop over experts.
    """
    if _grouped_kernel_takes(rows, weight):
        return F.grouped_mm(rows, weight, offs=counts.cumsum(0).to(torch.int32))
    out: Tensor = _one_by_one(rows, weight, counts)
    return out


# An operator of its own, so that what reads the counts is one node whose shape is known without them: fake tensors and
# torch.compile pass over it.
@torch.library.custom_op("autoshard::grouped_linear", mutates_args=())
def _one_by_one(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    out = rows.new_zeros(rows.shape[0], weight.shape[2])
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            out[start : start + count] = rows[start : start + count] @ weight[expert]
        start += count
    return out


@_one_by_one.register_fake
def _(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:  # noqa: ARG001
    return rows.new_empty(rows.shape[0], weight.shape[2])


def _grouped_kernel_takes(rows: Tensor, weight: Tensor) -> bool:
    aligned = all(n * rows.element_size() % 16 == 0 for n in (rows.shape[1], weight.shape[2]))  # the kernel's strides
    return rows.is_cuda and rows.dtype is torch.bfloat16 and aligned and torch.cuda.get_device_capability() >= (8, 0)
