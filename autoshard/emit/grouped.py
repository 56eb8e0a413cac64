"""One matrix product per expert over rows sorted by expert."""

import torch
import torch.nn.functional as F
from torch import Tensor


def grouped_linear(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """(rows, in), weights (experts, in, out), rows per expert (experts,) -> (rows, out).

    Rows are sorted by expert; those after the last expert's (other ranks') come out undefined. On GPUs one grouped
    kernel without a host synchronisation; elsewhere, and for dtypes or widths it does not take, a loop over experts.
    The loop depends on data, which ``torch.compile`` cannot capture: while compiling, every row is multiplied with a
    copy of its expert's matrix instead.
    """
    if _grouped_kernel_takes(rows, weight):
        return F.grouped_mm(rows, weight, offs=counts.cumsum(0).to(torch.int32))
    if torch.compiler.is_compiling():
        places = torch.arange(rows.shape[0], device=rows.device)
        expert = torch.searchsorted(counts.cumsum(0), places, right=True).clamp(max=weight.shape[0] - 1)
        return torch.bmm(rows[:, None], weight[expert])[:, 0]
    out = rows.new_zeros(rows.shape[0], weight.shape[2])
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            out[start : start + count] = rows[start : start + count] @ weight[expert]
        start += count
    return out


def _grouped_kernel_takes(rows: Tensor, weight: Tensor) -> bool:
    aligned = all(n * rows.element_size() % 16 == 0 for n in (rows.shape[1], weight.shape[2]))  # the kernel's strides
    return rows.is_cuda and rows.dtype is torch.bfloat16 and aligned and torch.cuda.get_device_capability() >= (8, 0)
