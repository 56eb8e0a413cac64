"""The agent's network: attention over the elite history, then one masked softmax per component.

    context = mean_t Encoder(tanh(Σ_c E[x_tc] + w·score_t))             history of T strategies → [D]
    h_c     = tanh(A_c·context + B_c·Σ_{j<c} P[x_j])                    what was chosen left of component c
    logits_c = O_c·h_c, options that the prefix mask forbids at −∞

The head is autoregressive, so that an operator's choice can depend on the degrees drawn before it, yet needs no
recurrence: the prefix is a running sum of option embeddings, so a whole batch is scored in one pass for the update.
The paper's own head is factorised: B = 0, every component drawn without regard to the others.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from autoshard.search.elites import Elites
from autoshard.search.protocol import BoolArray, IntArray

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
    masks: Tensor
    log_probs: Tensor
    confidence: float


class Policy(nn.Module):
    """Distribution over strategies, given an elite history. Dims: n batch, C components, A options, D width."""

    def __init__(
        self,
        num_options: IntArray,
        *,
        width: int,
        heads: int,
        layers: int,
        factorised: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.num_options, self.factorised = num_options, factorised
        num_components, max_options = len(num_options), int(num_options.max())
        offsets = torch.from_numpy(np.cumsum(num_options) - num_options)
        with torch.device("meta"):  # allocates nothing and draws nothing from torch's global generator
            self.history_embedding = nn.Embedding(int(num_options.sum()), width)
            self.score_embedding = nn.Linear(1, width)
            layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.no_history = nn.Parameter(torch.empty(width))
            self.context_head = nn.Linear(width, num_components * width)
            self.prefix_embedding = nn.Embedding(int(num_options.sum()), width)
            self.prefix_head = nn.Parameter(torch.empty(num_components, width, width))
            self.option_head = nn.Parameter(torch.empty(num_components, width, max_options))
            self.option_bias = nn.Parameter(torch.empty(num_components, max_options))
        self.to_empty(device="cpu")
        self.register_buffer("offsets", offsets, persistent=False)
        self.offsets: Tensor
        self._initialise(generator)

    def _initialise(self, generator: torch.Generator) -> None:
        """Weights scaled to unit variance, biases 0, and uniform logits to start from."""
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                continue
            if name.endswith("bias") or name in ("option_head", "no_history"):
                nn.init.zeros_(parameter)
            else:
                fan_in = 1.0 if "embedding" in name else float(parameter.shape[-1])
                nn.init.normal_(parameter, std=fan_in**-0.5, generator=generator)
        with torch.no_grad():
            # A sum over the components should have about unit variance.
            self.history_embedding.weight.mul_(len(self.num_options) ** -0.5)
            self.prefix_embedding.weight.mul_(len(self.num_options) ** -0.5)

    def context(self, elites: Elites) -> Tensor:
        """[D] what the elite history tells."""
        if not len(elites):
            return self.no_history
        x = torch.from_numpy(elites.strategies) + self.offsets
        scores = torch.from_numpy(elites.normalised_scores).float()[:, None]
        tokens = torch.tanh(self.history_embedding(x).sum(1) + self.score_embedding(scores))
        encoded: Tensor = self.encoder(tokens[None])
        return encoded.mean((0, 1))

    def log_probs(self, context: Tensor, x: Tensor, masks: Tensor) -> Tensor:
        """[n, C, A] log-probability of every option, given [n, C] strategies as prefixes and [n, C, A] masks."""
        chosen = self.prefix_embedding(x + self.offsets)
        prefix = functional.pad(chosen.cumsum(1)[:, :-1], (0, 0, 1, 0))
        hidden = self._context_hidden(context)[:, None].expand(-1, len(x), -1)
        if not self.factorised:
            hidden = hidden + prefix.transpose(0, 1) @ self.prefix_head
        logits = torch.tanh(hidden) @ self.option_head + self.option_bias[:, None]
        return functional.log_softmax(logits.transpose(0, 1).masked_fill(~masks, FORBIDDEN), -1)

    @torch.no_grad()
    def sample(self, context: Tensor, mask: Mask, num: int, generator: torch.Generator) -> Batch:
        """Draw strategies component by component through the masks."""
        num_components = len(self.num_options)
        x = np.zeros((num, num_components), dtype=np.int64)
        masks = torch.zeros((num, *self.option_bias.shape), dtype=torch.bool)
        log_probs, confidence = torch.zeros(num), torch.zeros(())
        context_hidden, prefix = self._context_hidden(context), torch.zeros(num, self.prefix_head.shape[-1])
        for position in range(num_components):
            masks[:, position] = torch.from_numpy(mask(x, position))
            hidden = context_hidden[position].expand(num, -1)
            if not self.factorised:
                hidden = hidden + prefix @ self.prefix_head[position]
            logits = torch.tanh(hidden) @ self.option_head[position] + self.option_bias[position]
            probs = functional.softmax(logits.masked_fill(~masks[:, position], FORBIDDEN), -1)
            option = torch.multinomial(probs, 1, generator=generator)[:, 0]
            x[:, position] = option.numpy()
            log_probs += probs.gather(1, option[:, None])[:, 0].log()
            confidence += probs.amax(-1).mean()
            prefix += self.prefix_embedding(option + self.offsets[position])
        return Batch(x, masks, log_probs, float(confidence) / num_components)

    def _context_hidden(self, context: Tensor) -> Tensor:
        hidden: Tensor = self.context_head(context)
        return hidden.view(len(self.num_options), -1)
