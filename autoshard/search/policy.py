"""The agent's network: attention over the elite history, then one masked softmax per component.

    context = mean_t Encoder(tanh(Σ_c E[x_tc] + w·score_t))             history of T strategies → [D]
    h_c     = tanh(A_c·context + B_c·Σ_{j<c} P[x_j])                    what was chosen left of component c
    logits_c = O_c·h_c + b_c, options that the prefix mask forbids at −∞

The head is autoregressive, so that an operator's choice can depend on the degrees drawn before it, yet needs no
recurrence: the prefix is a running sum of option embeddings, so a whole batch is scored in one pass for the update.
The paper's own head is factorised: B = 0, every component drawn without regard to the others.

Drawing goes component by component and needs no gradient, so it runs in numpy on the network's own arrays, where a
small product costs a fifth. Degrees have tens of options and operators three: each group is padded to its own width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from autoshard.search.elites import Elites
from autoshard.search.protocol import BoolArray, FloatArray, IntArray

FORBIDDEN = -1e9
"""Logit of an option outside the mask: probability 0 in float32, without the NaNs of −∞ in the entropy."""

Mask = Callable[[IntArray, int], BoolArray]
"""[n, A] allowed options of a component, from [n, C] strategies filled left of it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Strategies drawn from the policy, with what the update needs.

    Attributes:
        strategies: [n, C] option indices.
        masks: [n, C, A] options that were allowed.
        log_probs: [n] log-probability of each strategy when drawn.
        confidence: Mean over strategies and components of the largest option's probability.
    """

    strategies: IntArray
    masks: BoolArray
    log_probs: FloatArray
    confidence: float


class Encoder(nn.Module):
    """Layers of self-attention and a two-layer perceptron, each added to its input and normalised: [T, D] → [T, D]."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixing = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.leaving = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.narrow = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Encode T tokens."""
        num, width = x.shape
        for mixing, leaving, wide, narrow in zip(self.mixing, self.leaving, self.wide, self.narrow, strict=True):
            q, k, v = mixing(x).view(num, 3, self.heads, width // self.heads).permute(1, 2, 0, 3)
            attended = functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
            x = functional.layer_norm(x + leaving(attended.transpose(0, 1).reshape(num, width)), (width,))
            x = functional.layer_norm(x + narrow(functional.relu(wide(x))), (width,))
        return x


class Policy(nn.Module):
    """Distribution over strategies, given an elite history. Dims: n batch, C components, A options, D width.

    The first ``num_leading`` components (the degrees) and the others are padded to the most options of each group.
    """

    def __init__(
        self,
        num_options: IntArray,
        num_leading: int,
        *,
        width: int,
        heads: int,
        layers: int,
        factorised: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.num_options, self.factorised = num_options, factorised
        groups = (slice(0, num_leading), slice(num_leading, len(num_options)))
        self.groups = [g for g in groups if len(num_options[g])]
        num_components, num_embedded = len(num_options), int(num_options.sum())
        sizes = [(len(num_options[g]), int(num_options[g].max())) for g in self.groups]
        with torch.device("meta"):  # allocates nothing and draws nothing from torch's global generator
            self.history_embedding = nn.Embedding(num_embedded, width)
            self.score_embedding = nn.Linear(1, width)
            self.encoder = Encoder(width, heads, layers)
            self.no_history = nn.Parameter(torch.empty(width))
            self.context_head = nn.Linear(width, num_components * width)
            self.prefix_embedding = nn.Embedding(num_embedded, width)
            self.prefix_head = nn.Parameter(torch.empty(num_components, width, width))
            self.option_heads = nn.ParameterList(torch.empty(c, width, a) for c, a in sizes)
            self.option_biases = nn.ParameterList(torch.empty(c, a) for c, a in sizes)
        self.to_empty(device="cpu")
        self.offsets: Tensor
        self.register_buffer("offsets", torch.from_numpy(np.cumsum(num_options) - num_options), persistent=False)
        self._initialise(generator)

    def _initialise(self, generator: torch.Generator) -> None:
        """Weights scaled to unit variance, biases 0, and uniform logits to start from."""
        for name, parameter in self.named_parameters():
            if "bias" in name or name.startswith(("option_heads", "no_history")):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)

    def context(self, elites: Elites) -> Tensor:
        """[D] embedding of the history; a learned vector where there is none."""
        if not len(elites):
            return self.no_history
        x = torch.from_numpy(elites.strategies) + self.offsets
        scores = torch.from_numpy(elites.normalised_scores).float()[:, None]
        tokens = torch.tanh(self.history_embedding(x).sum(1) + self.score_embedding(scores))
        encoded: Tensor = self.encoder(tokens)
        return encoded.mean(0)

    def log_probs(self, context: Tensor, x: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """[n] log-probability of [n, C] strategies under [n, C, A] masks, and the [n] entropies along their way."""
        hidden = self.context_head(context).view(len(self.num_options), 1, -1)
        if not self.factorised:
            chosen = self.prefix_embedding(x + self.offsets)
            prefix = functional.pad(chosen.cumsum(1)[:, :-1], (0, 0, 1, 0))
            hidden = hidden + prefix.transpose(0, 1) @ self.prefix_head
        else:
            hidden = hidden.expand(-1, len(x), -1)
        hidden = torch.tanh(hidden)
        log_probs, entropies = torch.zeros(len(x)), torch.zeros(len(x))
        for group, head, bias in zip(self.groups, self.option_heads, self.option_biases, strict=True):
            logits = torch.baddbmm(bias[:, None], hidden[group], head)
            allowed = masks[:, group, : bias.shape[1]].transpose(0, 1)
            each = functional.log_softmax(logits.masked_fill(~allowed, FORBIDDEN), -1)
            log_probs = log_probs + each.gather(2, x[:, group].T[:, :, None]).sum((0, 2))
            entropies = entropies - (each.exp() * each).sum((0, 2))
        return log_probs, entropies

    @torch.no_grad()
    def sample(self, context: Tensor, mask: Mask, num: int, rng: np.random.Generator) -> Batch:
        """Draw strategies component by component through the masks."""
        num_components = len(self.num_options)
        x = np.zeros((num, num_components), dtype=np.int64)
        masks = np.zeros((num, num_components, int(self.num_options.max())), dtype=bool)
        log_probs, confidence = np.zeros(num), 0.0
        given = self.context_head(context).view(num_components, -1).numpy()
        embedding, prefix_head = self.prefix_embedding.weight.numpy(), self.prefix_head.numpy()
        heads = [each.numpy() for head in self.option_heads for each in head]
        biases = [each.numpy() for bias in self.option_biases for each in bias]
        prefix, rows, offsets = np.zeros((num, given.shape[1]), dtype=np.float32), np.arange(num), self.offsets.numpy()
        for position in range(num_components):
            masks[:, position] = mask(x, position)
            hidden = given[position] + (0.0 if self.factorised else prefix @ prefix_head[position])
            logits = np.tanh(np.broadcast_to(hidden, prefix.shape)) @ heads[position] + biases[position]
            logits = np.where(masks[:, position, : logits.shape[1]], logits, FORBIDDEN)
            probs = np.exp(logits - logits.max(1, keepdims=True))
            total = probs.cumsum(1)
            x[:, position] = (total <= rng.random((num, 1)) * total[:, -1:]).sum(1)
            probs /= total[:, -1:]
            log_probs += np.log(probs[rows, x[:, position]])
            confidence += float(probs.max(1).mean()) if num else 0.0
            prefix += embedding[x[:, position] + offsets[position]]
        return Batch(x, masks, log_probs, confidence / num_components)
