"""A bare text decoder with a language-model head."""

from typing import Any

from torch import Tensor, nn


class TextDecoder(nn.Module):
    """``model`` (a decoder that takes token ids) and a head, tied to its embedding or not.

    For the text part of multimodal models that have no causal-LM class of their own; parameters have the names such a
    class would give them.
    """

    def __init__(self, model: nn.Module, *, tied: bool) -> None:
        super().__init__()
        self.model = model
        self.config: Any = model.config
        self._supports_sdpa = getattr(model, "_supports_sdpa", False)
        embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
        vocab, hidden = embedding.weight.shape
        where = {"device": embedding.weight.device, "dtype": embedding.weight.dtype}
        self.lm_head = nn.Linear(hidden, vocab, bias=False, **where)
        if tied:
            self.lm_head.weight = embedding.weight

    def forward(self, input_ids: Tensor, use_cache: bool = False, **options: Any) -> Tensor:
        """Logits (batch, sequence, vocab)."""
        out = self.model(input_ids=input_ids, use_cache=use_cache, **options)
        return self.lm_head(out[0])  # type: ignore[no-any-return]
