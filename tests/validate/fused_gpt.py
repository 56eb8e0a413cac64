"""GPTs with one projection for q, k and v, as people write them, with a cache."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    hidden_size: int = 64
    num_heads: int = 8
    num_kv_heads: int = 8
    vocab_size: int = 256
    num_layers: int = 2
    style: str = "split_c"


@dataclass
class KVCache:
    held: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self.held:
            k, v = (torch.cat(pair, 2) for pair in zip(self.held[layer], (k, v), strict=True))
        self.held[layer] = (k, v)
        return k, v


class Attention(nn.Module):
    """``split(C)`` of the width of the input (nanoGPT), or parts of unequal widths (grouped queries)."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.layer, self.style = layer, config.style
        self.n_head, self.n_kv_head = config.num_heads, config.num_kv_heads
        self.head_dim = config.hidden_size // config.num_heads
        self.width, self.kv_width = config.hidden_size, config.num_kv_heads * self.head_dim
        self.c_attn = nn.Linear(config.hidden_size, self.width + 2 * self.kv_width)
        self.c_proj = nn.Linear(self.width, config.hidden_size)

    def forward(self, x: Tensor, cache: KVCache | None) -> Tensor:
        B, T, C = x.shape
        if self.style == "split_c":
            q, k, v = self.c_attn(x).split(C, dim=2)
            q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        elif self.style == "across":  # a norm over all heads: no rank can do that on its own
            q, k, v = F.normalize(self.c_attn(x), dim=-1).split(C, dim=2)
            q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        else:
            q, k, v = self.c_attn(x).split([self.width, self.kv_width, self.kv_width], dim=2)
            q = q.view(B, T, self.n_head, self.head_dim).transpose(1, 2)
            k, v = (t.view(B, T, self.n_kv_head, self.head_dim).transpose(1, 2) for t in (k, v))
        if cache is not None:
            k, v = cache.append(self.layer, k, v)
        mask = torch.ones(T, k.shape[2], dtype=torch.bool, device=x.device).tril(k.shape[2] - T)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return self.c_proj(out.transpose(1, 2).reshape(B, T, -1))


class Block(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.hidden_size), nn.LayerNorm(config.hidden_size)
        self.attn = Attention(config, layer)
        self.c_fc = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.c_out = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, cache: KVCache | None) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class FusedGPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.h = nn.ModuleList(Block(config, i) for i in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids: Tensor, cache: KVCache | None = None) -> Tensor:
        x = self.wte(input_ids)
        for block in self.h:
            x = block(x, cache)
        return self.lm_head(self.ln_f(x))


def build(**sizes: Any) -> FusedGPT:
    return FusedGPT(Config(**sizes))
