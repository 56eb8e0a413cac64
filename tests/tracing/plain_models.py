"""Mixtures of experts as people write them in plain PyTorch: the experts differ, the rest is the same."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN, INNER, EXPERTS, TOP_K, VOCAB = 32, 48, 8, 2, 64


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(HIDDEN, INNER, bias=False)
        self.w3 = nn.Linear(HIDDEN, INNER, bias=False)
        self.w2 = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class _Routed(nn.Module):
    """A router over experts; ``run`` is how they are run."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, HIDDEN)
        weights, chosen = self.gate(flat).softmax(-1).topk(TOP_K, dim=-1)
        return self.run(flat, weights / weights.sum(-1, keepdim=True), chosen).reshape(x.shape)


class WhereLoop(_Routed):
    """``where`` and ``index_add_`` over a ``ModuleList``, skipping experts without tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            slot, token = torch.where(mask[i] > 0)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        return out


class MaskLoop(WhereLoop):
    """Boolean masks, ``if mask.any()``, assignment through the mask."""

    def run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = chosen == i
            rows = mine.any(-1)
            if rows.any():
                share = (weights * mine).sum(-1, keepdim=True)
                out[rows] += expert(x[rows]) * share[rows]
        return out


class CountLoop(WhereLoop):
    """Experts are left out where the number of their tokens, as a tensor or as an integer, is zero."""

    def run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = chosen == i
            if mine.sum() == 0 or not torch.count_nonzero(mine).item() > 0:
                continue
            token, slot = torch.nonzero(mine, as_tuple=True)
            out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        return out


class DenseLoop(WhereLoop):
    """Every expert on every token, weighted."""

    def run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        scores = torch.zeros(x.shape[0], EXPERTS, dtype=x.dtype, device=x.device).scatter(1, chosen, weights)
        return sum(expert(x) * scores[:, i : i + 1] for i, expert in enumerate(self.experts))


class Fused(_Routed):
    """Three-dimensional weights, one expert's slice after the other, over the experts that were hit."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(EXPERTS, 2 * INNER, HIDDEN))
        self.down = nn.Parameter(torch.zeros(EXPERTS, HIDDEN, INNER))

    def run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for hit in (mask.sum((-1, -2)) > 0).nonzero():
            i = hit[0]
            slot, token = torch.where(mask[i] > 0)
            gate, up = F.linear(x[token], self.up[i]).chunk(2, -1)
            part = F.linear(F.silu(gate) * up, self.down[i])
            out.index_add_(0, token, part * weights[token, slot, None])
        return out


class Rows(_Routed):
    """Flat weights of which every expert takes its rows: by numbers, or as one of equal chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(EXPERTS * 2 * INNER, HIDDEN))
        self.down = nn.Parameter(torch.zeros(EXPERTS * HIDDEN, INNER))

    def run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        downs = self.down.chunk(EXPERTS)
        for i in range(EXPERTS):
            token, slot = torch.where(chosen == i)
            rows = self.up[i * 2 * INNER : (i + 1) * 2 * INNER]
            gate, up = F.linear(x[token], rows).chunk(2, -1)
            out.index_add_(0, token, F.linear(F.silu(gate) * up, downs[i]) * weights[token, slot, None])
        return out


class HitLoop(WhereLoop):
    """Modules of a list, over the experts that were hit."""

    def run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for hit in (mask.sum((-1, -2)) > 0).nonzero():
            i = int(hit.item())
            slot, token = torch.where(mask[i])
            out.index_add_(0, token, self.experts[i](x[token]) * weights[token, slot, None])
        return out


class Spare(Fused):
    """Some rows of the router stand for no expert: their tokens pass. The first weight has rows for them all the same.

    Twelve rows of which four are spare: of three choices two fall on an expert.
    """

    rows, top_k = EXPERTS + EXPERTS // 2, 3

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, self.rows, bias=False)
        self.up = nn.Parameter(torch.zeros(self.rows, 2 * INNER, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, HIDDEN)
        weights, chosen = self.gate(flat).softmax(-1).topk(self.top_k, dim=-1)
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, self.rows).permute(2, 1, 0)
        for hit in (mask.sum((-1, -2)) > 0).nonzero():
            i = int(hit.item())
            slot, token = torch.where(mask[i])
            part = flat[token]
            if i < EXPERTS:
                gate, up = F.linear(part, self.up[i]).chunk(2, -1)
                part = F.linear(F.silu(gate) * up, self.down[i])
            out.index_add_(0, token, part * weights[token, slot, None])
        return out.reshape(x.shape)


class SplitLoop(Fused):
    """Tokens sorted by expert and split by how many each has."""

    def run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        counts = torch.zeros(x.shape[0], EXPERTS, device=x.device).scatter(1, chosen, 1).long().sum(0).tolist()
        order = chosen.flatten().sort(0)[1]
        token = order.div(TOP_K, rounding_mode="trunc")
        parts = [F.linear(part, self.up[i]) for i, part in enumerate(x[token].split(counts))]
        gate, up = torch.cat(parts).chunk(2, -1)
        parts = [F.linear(part, self.down[i]) for i, part in enumerate((F.silu(gate) * up).split(counts))]
        return torch.zeros_like(x).index_add(0, token, torch.cat(parts) * weights.flatten()[order][:, None])


class Einsum(Fused):
    """All experts on all tokens by einsum."""

    def run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        scores = torch.zeros(x.shape[0], EXPERTS, dtype=x.dtype, device=x.device).scatter(1, chosen, weights)
        gate, up = torch.einsum("th,efh->tef", x, self.up).chunk(2, -1)
        return torch.einsum("tef,ehf,te->th", F.silu(gate) * up, self.down, scores)


class Block(nn.Module):
    def __init__(self, experts: type[_Routed]) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.proj = nn.Linear(HIDDEN, HIDDEN)
        self.moe = experts()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.proj(mixed)
        return x + self.moe(self.norm2(x))


class Plain(nn.Module):
    """A decoder with a tied head."""

    def __init__(self, experts: type[_Routed], layers: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Block(experts) for _ in range(layers))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.head.weight = self.table.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class _MultiheadLayer(nn.Module):
    def __init__(self, *, need_weights: bool, batch_first: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.attention = nn.MultiheadAttention(HIDDEN, 4, batch_first=batch_first)
        self.ffn_norm = nn.LayerNorm(HIDDEN)
        self.experts = Einsum()
        self.need_weights = need_weights
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x) if self.batch_first else self.norm(x).transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        out = self.attention(h, h, h, attn_mask=mask, need_weights=self.need_weights)[0]
        x = x + (out if self.batch_first else out.transpose(0, 1))
        return x + self.experts(self.ffn_norm(x))


class PlainMultihead(nn.Module):
    """Layers around ``nn.MultiheadAttention``, with a mask, in either layout, with or without its weights returned."""

    def __init__(self, *, need_weights: bool = False, batch_first: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, HIDDEN)
        kwargs = {"need_weights": need_weights, "batch_first": batch_first}
        self.layers = nn.ModuleList(_MultiheadLayer(**kwargs) for _ in range(2))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
