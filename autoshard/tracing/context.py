"""What all blocks of one trace share."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import fx, nn

from autoshard.tracing.axes import AxisAnalysis
from autoshard.tracing.factors import Axis
from autoshard.tracing.parameters import ParameterLedger
from autoshard.tracing.state import Kept


@dataclass(frozen=True, kw_only=True)
class GraphContext:
    """Facts about the exported graph, and the ledger of parameters.

    ``owners`` gives the module that ran a node; ``data`` the nodes that depend on token embeddings; ``token_ids`` and
    ``output`` what enters and leaves the model. ``hidden`` is the width of the residual, ``positions`` the axis of its
    tokens in a sequence, ``length`` the tokens of a traced sequence, ``tokens`` those of the traced batch. ``kept``
    gives what the layer around an FQN keeps for a sequence.
    """

    analysis: AxisAnalysis
    ledger: ParameterLedger
    owners: dict[str, str]
    data: set[fx.Node]
    token_ids: set[fx.Node]
    output: set[fx.Node]
    hidden: int
    positions: Axis
    length: int
    tokens: int
    model: nn.Module
    kept: Callable[[str], Kept]

    def is_per_token(self, contraction: fx.Node) -> bool:
        """Whether a product of matrices is known to be one product for every token.

        The positions of tokens are then among the dims over which the products are repeated.
        """
        positions = set(self.analysis.leaves(self.positions))
        outer = [f for axis in self.analysis.of(contraction)[:-2] for f in self.analysis.leaves(axis)]
        return bool(positions) and positions <= set(outer)

    def takes_routing(self, fqn: str) -> bool:
        """Whether a module's forward takes more than one tensor: beside the tokens, where they go."""
        taken = inspect.signature(type(self.model.get_submodule(fqn)).forward).parameters.values()
        return len(taken) > 2 or any(p.kind is p.VAR_POSITIONAL for p in taken)  # the first is self

    def larger_attribute(self, fqn: str, part: str, least: int) -> int:
        """The largest integer attribute of a module whose name holds ``part``, at least ``least``."""
        module = self.model.get_submodule(fqn)
        known = [v for k, v in vars(module).items() if part in k.replace("_", "") and isinstance(v, int)]
        return max([least, *known])
