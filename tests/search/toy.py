"""A problem like the real one and small enough to enumerate: degrees by divisors, ternary choices, additive costs.

A layer costs Σ_op work(choice) + Σ_edge redistribution(choice before, choice after); memory is a sum over the ops. The
degrees scale both. Choices 0 and 1 shard an op over tp, 2 replicates it.
"""

import itertools

import numpy as np

from autoshard.search.protocol import BoolArray, FloatArray, IntArray, Scores

MEMORY_LIMIT = 1.0
NUM_DEGREES = 5


class ToyProblem:
    """Random costs from `seed`; `num_gpus` may be any number, its divisors are the degrees.

    `weight` [num_ops] replaces the drawn bytes of the operators. `strict` forbids illegal calls.
    """

    def __init__(
        self,
        *,
        num_gpus: int = 24,
        num_ops: int = 6,
        seed: int = 0,
        budget: int = 4000,
        slo: float = 0.0,
        strict: bool = True,
        weight: FloatArray | None = None,
    ):
        rng = np.random.default_rng(seed)
        self.num_gpus, self.num_ops, self.slo, self.strict = num_gpus, num_ops, slo, strict
        self.sizes = np.array([d for d in range(1, num_gpus + 1) if num_gpus % d == 0])
        self.batches = 2 ** np.arange(9)
        self.num_options = np.array([len(self.sizes)] * 4 + [len(self.batches)] + [3] * num_ops, dtype=np.int64)
        self.num_degree_components = NUM_DEGREES
        self.component_names = ("group", "pp", "tp", "ep", "batch", *(f"block/op{i}" for i in range(num_ops)))
        self.budget = budget
        self.calls = 0
        self.work = rng.uniform(0.2, 2.0, num_ops)
        self.redistribution = rng.uniform(0.0, 1.0, (num_ops, 3, 3)) * (1 - np.eye(3))
        drawn = rng.uniform(0.5, 1.5, num_ops) * 6.0 / num_ops
        self.weight = drawn if weight is None else weight
        self.cache = 0.05
        self.points = self._legal_points()
        self._prefixes = [{tuple(p[:k]) for p in self.points.tolist()} for k in range(NUM_DEGREES + 1)]

    def _legal_points(self) -> IntArray:
        points = [p for p in itertools.product(*(range(n) for n in self.num_options[:NUM_DEGREES])) if self._rule(p)]
        x = np.array(points, dtype=np.int64)
        smallest = self._memory(np.hstack([x, np.zeros((len(x), self.num_ops), dtype=np.int64)])).sum(1)
        return x[smallest <= MEMORY_LIMIT]

    def _rule(self, point: tuple[int, ...]) -> bool:
        group, pp, tp, ep = (int(self.sizes[i]) for i in point[:4])
        batch = int(self.batches[point[4]])
        fits = self.num_gpus % (group * pp) == 0 and group % tp == 0 and group % ep == 0
        return fits and batch >= pp * (group // tp)

    def _degrees(self, x: IntArray) -> tuple[FloatArray, ...]:
        group, pp, tp, ep = (self.sizes[x[:, i]].astype(float) for i in range(4))
        return group, pp, tp, ep, self.batches[x[:, 4]].astype(float)

    def _memory(self, x: IntArray) -> FloatArray:
        """[n, 1 + ops]: the cache, then the weights of each op."""
        group, pp, tp, ep, batch = self._degrees(x)
        shards = np.where(x[:, NUM_DEGREES:] < 2, tp[:, None], 1.0)
        weights = self.weight / shards / pp[:, None]
        weights[:, self.num_ops // 2 :] /= ep[:, None]
        return np.hstack([(self.cache * batch / group / pp)[:, None], weights])

    @property
    def component_masks(self) -> BoolArray:
        return np.arange(int(self.num_options.max())) < self.num_options[:, None]

    def mask(self, x: IntArray, position: int) -> BoolArray:
        allowed = np.zeros((len(x), int(self.num_options.max())), dtype=bool)
        if position < NUM_DEGREES:
            known = self._prefixes[position + 1]
            for row, prefix in enumerate(x[:, :position].tolist()):
                for option in range(self.num_options[position]):
                    allowed[row, option] = (*prefix, option) in known
            return allowed
        for option in range(3):
            y = x.copy()
            y[:, position], y[:, position + 1 :] = option, 0  # what is open can still be sharded
            allowed[:, option] = self._memory(y).sum(1) <= MEMORY_LIMIT
        return allowed

    def legal(self, x: IntArray) -> BoolArray:
        known = self._prefixes[NUM_DEGREES]
        points = np.array([tuple(p) in known for p in x[:, :NUM_DEGREES].tolist()], dtype=bool)
        return points & (self._memory(x).sum(1) <= MEMORY_LIMIT)

    def with_legal_choices(self, x: IntArray) -> IntArray:
        return x.copy()  # memory is the only rule of choices

    def nearest_choices(self, x: IntArray) -> IntArray:
        y, rows = x.copy(), np.arange(len(x))
        for position in range(NUM_DEGREES, x.shape[1]):
            allowed = self.mask(y, position)
            distance = np.where(allowed, np.abs(np.arange(allowed.shape[1]) - x[:, position, None]), allowed.shape[1])
            y[rows, position] = distance.argmin(1)
        return y

    def score(self, x: IntArray) -> Scores:
        """`evaluate` without counting, for the enumeration in tests."""
        group, pp, tp, ep, batch = self._degrees(x)
        choices = x[:, NUM_DEGREES:]
        tokens = batch / pp / (group / tp)
        step = np.zeros(len(x))
        for op in range(self.num_ops):
            shards = np.where(choices[:, op] < 2, tp, 1.0)
            spread = shards * (ep if op >= self.num_ops // 2 else 1.0)
            step += self.work[op] * (1.0 / spread + 0.05 * tokens / shards) + 0.05 * np.log2(ep)
            before = choices[:, op - 1]
            step += self.redistribution[op, before, choices[:, op]] * (0.1 + 0.05 * tokens) * np.log2(tp)
        step = step / pp + 0.05 * (pp - 1)
        late = np.maximum(step / self.slo - 1.0, 0.0) if self.slo else np.zeros(len(x))
        feasible = (late == 0) & self.legal(x)
        return Scores(np.where(feasible, batch / (group * step), 0.0), np.where(feasible, 0.0, np.maximum(late, 1e-3)))

    def evaluate(self, x: IntArray) -> Scores:
        x = x[: max(0, self.budget - self.calls)]
        assert not self.strict or self.legal(x).all(), "an illegal strategy was evaluated"
        self.calls += len(x)
        return self.score(x)

    def megatron_points(self) -> IntArray:
        pattern = np.tile([0, 1], self.num_ops)[: self.num_ops]
        x = np.hstack([self.points, np.tile(pattern, (len(self.points), 1))])
        return x[self.legal(x)]

    def optimum(self) -> float:
        """By brute force over every strategy, masks and legality tables unused."""
        choices = np.array(list(itertools.product(range(3), repeat=self.num_ops)), dtype=np.int64)
        best = 0.0
        for point in itertools.product(*(range(n) for n in self.num_options[:NUM_DEGREES])):
            if self._rule(point):
                x = np.hstack([np.tile(np.array(point, dtype=np.int64), (len(choices), 1)), choices])
                fits = self._memory(x).sum(1) <= MEMORY_LIMIT
                best = max(best, float(np.where(fits, self.score(x).throughput, 0.0).max()))
        return best
