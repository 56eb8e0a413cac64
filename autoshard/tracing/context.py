"""What all blocks of one trace share."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx, nn

from autoshard.tracing.axes import AxisAnalysis
from autoshard.tracing.parameters import ParameterLedger


@dataclass(frozen=True, kw_only=True)
class GraphContext:
    """Facts about the exported graph, and the ledger of parameters.

    ``owners`` gives the module that ran a node; ``data`` the nodes that depend on token embeddings; ``token_ids`` and
    ``output`` what enters and leaves the model. ``hidden`` is the width of the residual, ``tokens`` the size of the
    traced batch. ``state_of`` gives the elements of recurrent state and the bytes of all state that the module of an
    FQN keeps for a sequence.
    """

    analysis: AxisAnalysis
    ledger: ParameterLedger
    owners: dict[str, str]
    data: set[fx.Node]
    token_ids: set[fx.Node]
    output: set[fx.Node]
    hidden: int
    tokens: int
    model: nn.Module
    state_of: Callable[[str], tuple[int, float]]

    def larger_attribute(self, fqn: str, part: str, least: int) -> int:
        """The largest integer attribute of a module whose name holds ``part``, at least ``least``."""
        module = self.model.get_submodule(fqn)
        known = [v for k, v in vars(module).items() if part in k.replace("_", "") and isinstance(v, int)]
        return max([least, *known])
