"""GPT-MoE: a readable mixture-of-experts GPT in plain PyTorch, and the plain counterpart of the Hugging Face models.

Pre-LN blocks of grouped-query attention with rotary positions and a mixture of GELU experts. Every module works on a
tensor-parallel shard of itself: attention reads the number of local heads off the width it is given, experts the
number of local experts off their weights. The experts are written densely (every expert on every token, weighted by
the router), which is the definition and not the fast way.

Shape letters: b batch, s sequence, t = b s tokens, h hidden, d head_dim, e experts, f intermediate, k chosen experts.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class GPTMoEConfig:
    """Sizes of a GPT-MoE, under the names Hugging Face configs use.

    Raises:
        ValueError: for sizes that do not go together.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    vocab_size: int
    max_position_embeddings: int = 32768
    rope_theta: float = 10000.0
    layer_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of num_key_value_heads "
                f"({self.num_key_value_heads})"
            )
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) must lie between 1 and num_experts "
                f"({self.num_experts})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {self.head_dim}")


@dataclass
class KVCache:
    """Keys and values of the tokens seen so far, per layer, each (b, kv_heads, s, d)."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens cached so far, by any layer: a pipeline stage has some layers only."""
        return next((int(keys.shape[2]) for keys in self.keys.values()), 0)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys and values (b, kv_heads, s, d) of ``layer``; returns all of them."""
        if layer in self.keys:
            key = torch.cat((self.keys[layer], key), dim=2)
            value = torch.cat((self.values[layer], value), dim=2)
        self.keys[layer], self.values[layer] = key, value
        return key, value


class Rotary(nn.Module):
    """Rotary position embedding in its half-split form."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines (s, d) for ``positions`` (s,); angles are computed in float64 on a real device."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        exponents = torch.arange(0, self.head_dim, 2, device=positions.device).to(wide) / self.head_dim
        angles = positions.to(wide)[:, None] * (1.0 / self.theta**exponents)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x`` (b, heads, s, d) turned by the angles of ``cos`` and ``sin`` (s, d)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal grouped-query attention; the numbers of local heads follow from the widths of q, k and v."""

    def __init__(self, config: GPTMoEConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        width, kv_width = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        cache: KVCache | None = None,
    ) -> Tensor:
        """(b, s, h) -> (b, s, h); ``mask`` (s, s_total) is True where a token may look."""
        q = rearrange(self.q_proj(hidden_states), "b s (n d) -> b n s d", d=self.head_dim)
        k = rearrange(self.k_proj(hidden_states), "b s (n d) -> b n s d", d=self.head_dim)
        v = rearrange(self.v_proj(hidden_states), "b s (n d) -> b n s d", d=self.head_dim)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            k, v = cache.append(self.layer_idx, k, v)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return self.o_proj(rearrange(out, "b n s d -> b s (n d)"))  # type: ignore[no-any-return]


class Router(nn.Module):
    """Scores every expert and keeps the best ``top_k``, their weights summing to one."""

    def __init__(self, config: GPTMoEConfig) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """(t, h) -> weights and indices, both (t, k)."""
        scores = self.gate(hidden_states).softmax(dim=-1)
        top_k_weights, top_k_index = scores.topk(self.top_k, dim=-1)
        return top_k_weights / top_k_weights.sum(dim=-1, keepdim=True), top_k_index


class Experts(nn.Module):
    """Two-matrix GELU experts; weights are ``up_proj`` (e, f, h) and ``down_proj`` (e, h, f)."""

    def __init__(self, config: GPTMoEConfig) -> None:
        super().__init__()
        e, f, h = config.num_experts, config.intermediate_size, config.hidden_size
        self.up_proj = nn.Parameter(torch.empty(e, f, h))
        self.down_proj = nn.Parameter(torch.empty(e, h, f))
        self.act = nn.GELU()
        for weight in (self.up_proj, self.down_proj):
            nn.init.normal_(weight, std=0.02)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """(t, h), (t, k), (t, k) -> (t, h)."""
        num_experts = self.up_proj.shape[0]
        combine = hidden_states.new_zeros(hidden_states.shape[0], num_experts)
        combine = combine.scatter(1, top_k_index, top_k_weights.to(hidden_states.dtype))
        inner = self.act(torch.einsum("th,efh->tef", hidden_states, self.up_proj))
        outer = torch.einsum("tef,ehf->teh", inner, self.down_proj)
        return torch.einsum("teh,te->th", outer, combine)


class MoE(nn.Module):
    """A router and its experts."""

    def __init__(self, config: GPTMoEConfig) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = Experts(config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(b, s, h) -> (b, s, h)."""
        tokens = rearrange(hidden_states, "b s h -> (b s) h")
        top_k_weights, top_k_index = self.router(tokens)
        out = self.experts(tokens, top_k_index, top_k_weights)
        return rearrange(out, "(b s) h -> b s h", b=hidden_states.shape[0])  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-LN transformer block."""

    def __init__(self, config: GPTMoEConfig, layer_idx: int) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attn = Attention(config, layer_idx)
        self.ffn_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.moe = MoE(config)

    def forward(
        self,
        hidden_states: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        cache: KVCache | None = None,
    ) -> Tensor:
        """(b, s, h) -> (b, s, h)."""
        hidden_states = hidden_states + self.attn(self.attn_norm(hidden_states), cos, sin, mask, cache)
        return hidden_states + self.moe(self.ffn_norm(hidden_states))  # type: ignore[no-any-return]


class GPTMoE(nn.Module):
    """Token ids to logits; with a :class:`KVCache`, ids continue what the cache has seen."""

    def __init__(self, config: GPTMoEConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = Rotary(config.head_dim, config.rope_theta)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed.weight

    def forward(self, input_ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """(b, s) ids -> (b, s, vocab) logits."""
        past = 0 if cache is None else cache.num_tokens
        length = input_ids.shape[1]
        hidden_states = self.embed(input_ids)
        positions = torch.arange(past, past + length, device=input_ids.device)
        cos, sin = self.rotary(positions, hidden_states.dtype)
        mask = torch.arange(past + length, device=input_ids.device)[None, :] <= positions[:, None]
        for layer in self.layers:
            hidden_states = layer(hidden_states, cos, sin, mask, cache)
        return self.lm_head(self.norm(hidden_states))  # type: ignore[no-any-return]


def build(**sizes: Any) -> GPTMoE:
    """A GPT-MoE from the fields of :class:`GPTMoEConfig`."""
    return GPTMoE(GPTMoEConfig(**sizes))
