"""Whether a model can be cut into pipeline stages: a stage holds its own layers and nothing of the others."""

from collections.abc import Iterator

from autoshard.ir import Add, Block, OpGraph, once_per_graph


@once_per_graph
def pipeline_obstacle(graph: OpGraph) -> str | None:
    """Why a model cannot be cut into stages, None if it can."""
    if not any(isinstance(op, Add) for block in graph.blocks for op in block.ops):
        return "no residual stream was found in its layers"
    layers = tuple(name for block in graph.blocks for name in block.instances)
    for block in (graph.prologue, graph.epilogue):
        for op in block.ops:
            for param in op.params:
                owner = param.fqn.rpartition(".")[0]
                if any(_inside(layer, owner) for layer in layers):
                    return f"{param.fqn} belongs to a module that the layers are in, and every stage would hold it"
    for block in graph.blocks:
        if block.returns_more:
            return f"layers of kind {block.name} return more than the residual stream, and only that is handed over"
        for fqn, what in _layer_parameters(block):
            if not _inside(fqn, block.instances[0]):
                return f"layers of kind {block.name} share {what}"
    return None


def _layer_parameters(block: Block) -> Iterator[tuple[str, str]]:
    """Names that a block's parameters go by: their own, and those of what they are tied to."""
    for op in block.ops:
        for param in op.params:
            yield param.fqn, param.fqn
            if param.shared_with is not None:
                yield param.shared_with, f"{param.fqn} with {param.shared_with}"


def _inside(name: str, module: str) -> bool:
    return not module or name == module or name.startswith(module + ".")
