"""A reduced model's weights really quantised: the checkpoint that ranks load their shards from, and the reference.

Experts (and for fp8 the other matrices, the head apart) are quantised by blocks as published checkpoints are, written
to safetensors, and dequantised in the plainest way for the unsharded reference, tensor by tensor: nothing of what ranks
read with is used. What is proved is that shards cut on blocks with their scales are the parts of the whole.

fp8: the scale of a block is its largest magnitude over 448, the largest e4m3. mxfp4: the scale of a group is the power
of two below its largest magnitude, over 4 [OCP Microscaling Formats 1.0, section 6.3]; numbers go to the nearest of
e2m1.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from autoshard.ir import ExpertsLinear, Linear, OpGraph

Form = Literal["fp8", "mxfp4"]
_LARGEST_E4M3 = 448.0
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_GROUP = 32
_REFERENCE = "reference"
_EXPERT = re.compile(r"\.\d+\.[^.]+\.weight$")


def form_of(config: Mapping[str, Any]) -> Form | None:
    """Which of the two formats a config says its checkpoint is in; None for any other, or none."""
    given = config.get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    if given.get("quant_method") == "fp8" and given.get("weight_block_size"):
        return "fp8"
    return "mxfp4" if given.get("quant_method") == "mxfp4" else None


def quantise_fp8(weight: Tensor, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(e4m3 codes, scales of every begun block) of a matrix (out, in)."""
    rows, columns = (-(-n // b) for n, b in zip(weight.shape, block, strict=True))
    full = weight.new_zeros(rows * block[0], columns * block[1], dtype=torch.float32)
    full[: weight.shape[0], : weight.shape[1]] = weight
    largest = full.reshape(rows, block[0], columns, block[1]).abs().amax((1, 3)).clamp(min=1e-12)
    scales = largest / _LARGEST_E4M3
    codes = weight.to(torch.float32) / _spread(scales, block, weight.shape)
    return codes.to(torch.float8_e4m3fn), scales


def dequantise_fp8(codes: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """The matrix in float32."""
    return codes.to(torch.float32) * _spread(scales, block, codes.shape)


def _spread(scales: Tensor, block: tuple[int, int], shape: torch.Size) -> Tensor:
    full = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return full[: shape[0], : shape[1]]


def quantise_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(bytes (experts, out, groups, 16), scales (experts, out, groups)) of experts' matrices (experts, in, out)."""
    grouped = torch.unflatten(weight.to(torch.float32).transpose(1, 2), 2, (-1, _GROUP))
    exponents = torch.floor(torch.log2(grouped.abs().amax(-1).clamp(min=2.0**-100))) - 2
    scaled = grouped / torch.exp2(exponents)[..., None]
    distance = (scaled.abs()[..., None] - torch.tensor(_E2M1)).abs()
    codes = distance.argmin(-1) + 8 * (scaled < 0)
    pairs = torch.unflatten(codes, -1, (-1, 2))
    return (pairs[..., 0] + 16 * pairs[..., 1]).to(torch.uint8), (exponents + 127).to(torch.uint8)


def dequantise_mxfp4(codes: Tensor, scales: Tensor) -> Tensor:
    """The experts' matrices (experts, in, out) in float32, number by number."""
    numbers = torch.cat((torch.tensor(_E2M1), -torch.tensor(_E2M1)))
    low, high = numbers[(codes % 16).long()], numbers[(codes // 16).long()]
    values = torch.stack((low, high), -1).flatten(-2) * torch.exp2(scales.to(torch.float32) - 127)[..., None]
    return values.flatten(-2).transpose(1, 2)


def write_checkpoint(
    model: nn.Module, graph: OpGraph, form: Form, block: tuple[int, int], folder: Path
) -> dict[str, int]:
    """Write ``model`` quantised into ``folder``, and beside it the reference: every weight dequantised, in float32.

    Returns:
        How many tensors were quantised, and how many were kept.
    """
    from safetensors.torch import load_file, save_file
    from transformers.utils import logging

    logging.disable_progress_bar()  # of a model of kilobytes, over this program's own line
    model.save_pretrained(folder)  # type: ignore[operator]
    stored: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        stored |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    wanted = _quantised_names(graph, {name for name, _ in model.named_parameters()})
    written: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if not wanted(name, tensor, form):
            written[name] = plain[name] = tensor
        elif form == "mxfp4":
            codes, scales = quantise_mxfp4(tensor)
            written |= {f"{name}_blocks": codes, f"{name}_scales": scales}
            plain[name] = dequantise_mxfp4(codes, scales)
        else:
            codes, scales = quantise_fp8(tensor, block)
            written |= {name: codes, f"{name}_scale_inv": scales}
            plain[name] = dequantise_fp8(codes, scales, block)
    save_file({k: v.contiguous() for k, v in written.items()}, folder / "model.safetensors")
    data = json.loads((folder / "config.json").read_text("utf-8"))
    method = {"quant_method": "fp8", "weight_block_size": list(block)} if form == "fp8" else {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps({**data, "quantization_config": method}))
    _write_reference(model, plain, folder / _REFERENCE)
    return {"quantised": len(written) - len(plain), "kept": 2 * len(plain) - len(written)}


def _quantised_names(graph: OpGraph, own: set[str]) -> Callable[[str, Tensor, Form], bool]:
    """Whether a stored tensor is quantised: experts, stacked or one by one; for fp8 the other matrices too."""
    dense = {p.fqn for _, op, _, p in graph.parameters() if isinstance(op, Linear) and not op.is_head}
    banks = {p.fqn for _, op, _, p in graph.parameters() if isinstance(op, ExpertsLinear) and len(p.shape) == 3}

    def wanted(name: str, tensor: Tensor, form: Form) -> bool:
        if form == "mxfp4":
            return name in banks
        return tensor.ndim == 2 and (name in dense or (name not in own and _EXPERT.search(name) is not None))

    return wanted


def _write_reference(model: nn.Module, plain: Mapping[str, Tensor], folder: Path) -> None:
    """The weights under the model's own names, renamed and stacked by transformers' own loading."""
    from safetensors.torch import save_file

    folder.mkdir()
    save_file({k: v.contiguous() for k, v in plain.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
    again = type(model).from_pretrained(folder, dtype=torch.float32)  # type: ignore[attr-defined]
    tensors = {name: p.detach().clone() for name, p in again.named_parameters()}
    save_file(tensors, folder / "model.safetensors")


def load_reference(model: nn.Module, folder: Path) -> None:
    """Give a whole model the dequantised weights of a checkpoint of `write_checkpoint`."""
    from safetensors.torch import load_file

    plain = load_file(folder / _REFERENCE / "model.safetensors")
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(plain[name])
