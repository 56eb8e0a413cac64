"""The rule table of :mod:`autoshard.tracing.axes`; importing it fills the table."""

from typing import Any

from torch import fx

from autoshard.tracing.axes import Axes, AxisAnalysis, argument, rule, shape_of


@rule("linear")
def _linear(a: AxisAnalysis, node: fx.Node) -> Axes:
    """``x (..., k)``, ``w (n, k)`` -> ``(..., n)``."""
    x, w = a.of(node.args[0]), a.of(node.args[1])
    a.factors.unify(x[-1], w[1])
    bias = argument(node, 2, "bias")
    if bias is not None:
        a.factors.unify(a.of(bias)[0], w[0])
    a.contracted[node] = w[1]
    return [*x[:-1], w[0]]


@rule("_grouped_mm", "grouped_mm", "grouped_mm_fallback")
def _grouped_mm(a: AxisAnalysis, node: fx.Node) -> Any:
    """``x (rows, k)``, ``w (e, k, n)``, offsets ``(e,)`` -> ``(rows, n)``."""
    x, w = a.of(node.args[0]), a.of(node.args[1])
    offsets = argument(node, 2, "offs")
    if len(x) != 2 or len(w) != 3:
        return a.fresh(node)
    a.factors.unify(x[1], w[1])
    if isinstance(offsets, fx.Node):
        a.factors.unify(a.of(offsets)[0], w[0])
    a.contracted[node] = w[1]
    return [x[0], w[2]]


@rule("matmul", "mm", "bmm")
def _matmul(a: AxisAnalysis, node: fx.Node) -> Any:
    """``(..., m, k) @ (..., k, n)``."""
    x, y = a.of(node.args[0]), a.of(node.args[1])
    if len(x) < 2 or len(y) < 2:
        return a.fresh(node)
    a.factors.unify(x[-1], y[-2])
    a.contracted[node] = y[-2]
    batch: Axes = [()] * (len(shape_of(node)) - 2)
    for axes in (x[:-2], y[:-2]):
        for i, axis in enumerate(axes, start=len(batch) - len(axes)):
            if batch[i] and axis:
                a.factors.unify(batch[i], axis)
            batch[i] = batch[i] or axis
    return [*batch, x[-2], y[-1]]


@rule("einsum")
def _einsum(a: AxisAnalysis, node: fx.Node) -> Any:
    """Letters are axes; those absent from the output are summed over."""
    equation, operands = str(node.args[0]).replace(" ", ""), node.args[1]
    if "." in equation or "->" not in equation:
        return a.fresh(node)
    terms, out = equation.split("->")
    letters: dict[str, Any] = {}
    for term, operand in zip(terms.split(","), operands, strict=True):  # type: ignore[arg-type]
        for letter, axis in zip(term, a.of(operand), strict=True):
            if letters.get(letter):
                a.factors.unify(letters[letter], axis)
            else:
                letters[letter] = axis
    a.contracted[node] = tuple(f for letter, axis in letters.items() if letter not in out for f in axis)
    return [letters[letter] for letter in out]


@rule("embedding")
def _embedding(a: AxisAnalysis, node: fx.Node) -> Axes:
    """``w (v, h)``, indices ``(...)`` -> ``(..., h)``."""
    return [*a.of(node.args[1]), a.of(node.args[0])[1]]


@rule("scaled_dot_product_attention")
def _attention(a: AxisAnalysis, node: fx.Node) -> Axes:
    """``q (b, n, s, d)``, ``k (b, m, s', d)``, ``v (b, m, s', d')`` -> ``(b, n, s, d')``; m divides n."""
    q, k, v = (a.of(x) for x in node.args[:3])
    for i in (0, 1, 2):
        a.factors.unify(k[i], v[i])
    a.factors.unify(q[0], k[0])
    a.factors.unify(q[3], k[3])
    heads, kv_heads = a.factors.size(a.leaves(q[1])), a.factors.size(a.leaves(k[1]))
    grouped = a.factors.new(heads // kv_heads) if heads % kv_heads == 0 else ()
    a.factors.unify(q[1], (*k[1], *grouped))
    return [q[0], q[1], q[2], v[3]]


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten")
def _view(a: AxisAnalysis, node: fx.Node) -> Axes:
    return a.factors.view(a.of(node.args[0]), shape_of(node))


@rule("transpose")
def _transpose(a: AxisAnalysis, node: fx.Node) -> Axes:
    axes = list(a.of(node.args[0]))
    i, j = int(argument(node, 1, "dim0")), int(argument(node, 2, "dim1"))
    axes[i], axes[j] = axes[j], axes[i]
    return axes


@rule("t", "numpy_T")
def _reverse(a: AxisAnalysis, node: fx.Node) -> Axes:
    return a.of(node.args[0])[::-1]


@rule("permute")
def _permute(a: AxisAnalysis, node: fx.Node) -> Axes:
    axes = a.of(node.args[0])
    return [axes[i] for i in argument(node, 1, "dims")]


@rule("unsqueeze")
def _unsqueeze(a: AxisAnalysis, node: fx.Node) -> Axes:
    axes = list(a.of(node.args[0]))
    position = int(argument(node, 1, "dim"))
    axes.insert(position if position >= 0 else position + len(axes) + 1, ())
    return axes


@rule("squeeze")
def _squeeze(a: AxisAnalysis, node: fx.Node) -> Axes:
    axes, sizes = a.of(node.args[0]), shape_of(node.args[0])  # type: ignore[arg-type]
    dims = argument(node, 1, "dim", [i for i, s in enumerate(sizes) if s == 1])
    dropped = {d % len(axes) for d in ([dims] if isinstance(dims, int) else dims) if sizes[d] == 1}
    return [axis for i, axis in enumerate(axes) if i not in dropped]


@rule("expand", "expand_as")
def _expand(a: AxisAnalysis, node: fx.Node) -> Axes:
    axes, sizes = a.of(node.args[0]), shape_of(node)
    axes = [()] * (len(sizes) - len(axes)) + list(axes)
    made = [() if axis else a.factors.new(size) for axis, size in zip(axes, sizes, strict=True)]
    a.expanded += [axis for axis in made if axis]
    return [axis or new for axis, new in zip(axes, made, strict=True)]


@rule("chunk", "split", "split_with_sizes")
def _split(a: AxisAnalysis, node: fx.Node) -> Any:
    """Equal parts refine the axis into (parts, size); unequal ones are new axes."""
    axes = list(a.of(node.args[0]))
    dim = int(argument(node, 2, "dim", 0)) % len(axes)
    sizes = [int(part.shape[dim]) for part in node.meta["val"]]
    if len(set(sizes)) == 1:
        part = a.factors.view([axes[dim]], (len(sizes), sizes[0]))[1]
        return [[*axes[:dim], part, *axes[dim + 1 :]] for _ in sizes]
    return [[*axes[:dim], a.factors.new(size), *axes[dim + 1 :]] for size in sizes]


@rule("getitem")
def _getitem(a: AxisAnalysis, node: fx.Node) -> Any:
    results = a.axes[node.args[0]]  # type: ignore[index]
    return None if results is None else results[node.args[1]]


@rule("slice")
def _slice(a: AxisAnalysis, node: fx.Node) -> Axes:
    """An equal part, or every n-th element, refines the axis; other slices are new axes."""
    axes = list(a.of(node.args[0]))
    dim = int(argument(node, 1, "dim", 0)) % len(axes)
    full, size = shape_of(node.args[0])[dim], shape_of(node)[dim]  # type: ignore[arg-type]
    start, step = argument(node, 2, "start", 0) or 0, argument(node, 4, "step", 1)
    if size == full:
        return axes
    if step > 1 and size * step == full:
        axes[dim] = a.factors.view([axes[dim]], (size, step))[0]
    elif step == 1 and full == 2 * size and start in (0, size):
        axes[dim] = a.factors.view([axes[dim]], (2, size))[1]
    else:
        axes[dim] = a.factors.new(size)
    return axes


@rule("select")
def _select(a: AxisAnalysis, node: fx.Node) -> Axes:
    axes = list(a.of(node.args[0]))
    axes.pop(int(argument(node, 1, "dim")))
    return axes


@rule("cat")
def _cat(a: AxisAnalysis, node: fx.Node) -> Any:
    """Equal parts are one axis under a new outer factor; unequal parts are a new axis."""
    parts = [a.of(n) for n in node.args[0]]  # type: ignore[union-attr]
    if len({len(p) for p in parts}) != 1:
        return a.fresh(node)
    dim = int(argument(node, 1, "dim", 0)) % len(parts[0])
    out = a.broadcast_axes([[*p[:dim], (), *p[dim + 1 :]] for p in parts])
    sizes = {a.factors.size(a.leaves(p[dim])) for p in parts}
    if len(sizes) == 1:
        for part in parts[1:]:
            a.factors.unify(parts[0][dim], part[dim])
        out[dim] = (*a.factors.new(len(parts)), *parts[0][dim])
    else:
        out[dim] = a.factors.new(shape_of(node)[dim])
    return out


@rule("topk")
def _topk(a: AxisAnalysis, node: fx.Node) -> Any:
    axes = list(a.of(node.args[0]))
    axes[int(argument(node, 2, "dim", -1))] = a.factors.new(int(node.args[1]))  # type: ignore[arg-type]
    return [axes, list(axes)]


@rule("sort")
def _sort(a: AxisAnalysis, node: fx.Node) -> Any:
    axes = a.of(node.args[0])
    return [list(axes), list(axes)]


@rule("mean", "sum", "amax", "amin", "prod", "logsumexp")
def _reduce(a: AxisAnalysis, node: fx.Node) -> Axes:
    axes = a.of(node.args[0])
    dims = argument(node, 1, "dim")
    if dims is None:
        return []
    reduced = {int(d) % len(axes) for d in ([dims] if isinstance(dims, int) else dims)}
    if len(shape_of(node)) == len(axes):
        return [() if i in reduced else axis for i, axis in enumerate(axes)]
    return [axis for i, axis in enumerate(axes) if i not in reduced]


@rule("layer_norm", "rms_norm")
def _norm(a: AxisAnalysis, node: fx.Node) -> Axes:
    axes = a.of(node.args[0])
    for weight in node.args[2:4]:
        if isinstance(weight, fx.Node):
            a.factors.unify(a.of(weight)[0], axes[-1])
    return list(axes)


@rule("histc")
def _histc(a: AxisAnalysis, node: fx.Node) -> Any:
    """A histogram of indices has one bin per element of the axis they point into."""
    domain = a.domains.get(node.args[0])  # type: ignore[arg-type]
    if domain is not None and a.factors.size(a.leaves(domain)) == shape_of(node)[0]:
        return [domain]
    return a.fresh(node)


@rule("scatter", "scatter_add")
def _scatter(a: AxisAnalysis, node: fx.Node) -> Axes:
    """Scattering by index makes the scattered dimension the axis the indices point into."""
    axes = list(a.of(node.args[0]))
    dim, domain = int(argument(node, 1, "dim")), a.domains.get(argument(node, 2, "index"))
    if domain is not None and a.factors.size(a.leaves(domain)) == shape_of(node)[dim]:
        a.factors.unify(axes[dim], domain)
    return axes


@rule("one_hot")
def _one_hot(a: AxisAnalysis, node: fx.Node) -> Axes:
    domain = a.domains.get(node.args[0])  # type: ignore[arg-type]
    size = shape_of(node)[-1]
    last = domain if domain is not None and a.factors.size(a.leaves(domain)) == size else a.factors.new(size)
    return [*a.of(node.args[0]), last]


@rule("index")
def _index(a: AxisAnalysis, node: fx.Node) -> Any:
    """One index tensor replaces the dimension it selects from; several give fresh axes."""
    axes, indices = a.of(node.args[0]), node.args[1]
    given = [(i, n) for i, n in enumerate(indices) if isinstance(n, fx.Node)]  # type: ignore[arg-type]
    if len(given) != 1:
        return a.fresh(node)
    position, index = given[0]
    domain = a.domains.get(index)
    if domain is not None and a.factors.size(a.leaves(domain)) == a.factors.size(a.leaves(axes[position])):
        a.factors.unify(axes[position], domain)
    return [*axes[:position], *a.of(index), *axes[position + 1 :]]


@rule("copy_")
def _copy(a: AxisAnalysis, node: fx.Node) -> Any:
    """A copy into (a view of) a tensor has the source's axes, where sizes are equal."""
    target, source = (a.of(n) for n in node.args[:2])
    aligned = [()] * (len(target) - len(source)) + list(source)
    for axis, other in zip(target, aligned, strict=True):
        if axis and other and a.factors.size(a.leaves(axis)) == a.factors.size(a.leaves(other)):
            a.factors.unify(axis, other)
    return list(target)


@rule("index_put", "index_put_", "scatter_", "index_add", "index_add_", "fill_", "masked_fill_")
def _in_place(a: AxisAnalysis, node: fx.Node) -> Axes:
    return list(a.of(node.args[0]))
