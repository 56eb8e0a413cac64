"""The paper's agent, improved: one-step PPO over the joint strategy, attending to the best strategies so far.

Each iteration draws strategies from the policy (`policy.py`), scores them, and takes a few clipped policy-gradient
steps. The episode is one step long, so the advantage is the reward ranked within the batch and there is no critic:

    loss = −E[min(ρ·A, clip(ρ, 1±ε)·A)] − c_H·H(π) − c_I·mean_elites log π(elite),   ρ = π(x)/π_drawn(x)

From the paper: the elite history of T strategies behind attention, the reward α·throughput + β·improvement, five
chunks of 4,000 calls, a restart with inherited history once the policy is confident, and returning the best ever
seen. Added, because a prototype showed what each is worth (in falling order): exact masks, imitation of the elites
(c_I), independent chunks ("islands") whose histories meet only in the last, mutations of the elites in each batch, and
at the end climbs by every move from the best and from others of the pool (`climbs.py`). Mutations are off the policy,
so they never enter the ratio ρ; they teach through the elites. `PAPER` is the agent without what was added
(`rl-paper`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import torch
from torch import Tensor

from autoshard.errors import InvalidInputError
from autoshard.search.climbs import ClimbConfig, Climber
from autoshard.search.elites import Elites, Memory
from autoshard.search.policy import Batch, Policy
from autoshard.search.policy_file import SavedPolicy
from autoshard.search.proposals import mutate
from autoshard.search.protocol import BoolArray, FloatArray, IntArray, Problem
from autoshard.search.result import Recorder, SearchResult
from autoshard.search.reward import reward


@dataclass(frozen=True, slots=True, kw_only=True)
class RLConfig:
    """Hyperparameters of the agent. [published] ones are the paper's; the others are chosen on toy problems."""

    history: int = 3
    """T: elite strategies that the policy attends to and imitates. [published]"""
    confidence: float = 0.95
    """τ: mean largest probability at which a policy has nothing more to try and restarts. [published]"""
    chunks: int = 5
    """Parts of the budget (4,000 calls by default, held by the problem). [published]"""
    alpha: float = 1.0
    """α: weight of the normalised throughput in the reward. [chosen; the paper gives none]"""
    beta: float = 0.5
    """β: weight of the improvement over the best so far. [chosen; the paper gives none]"""
    islands: bool = True
    """Chunks but the last start without history, and the last inherits all; otherwise each inherits. [chosen]"""
    merged_share: float = 0.5
    """Share of the calls left for the last chunk, where the islands' histories meet. [chosen]"""
    mutation_share: float = 0.3
    """Least share of a batch that are mutations of elites; they also replace what the policy repeats. [chosen]"""
    sweep_share: float = 0.6
    """Share of the calls, the last, for climbs from the best strategies (`climbs`). [chosen]"""
    climbs: ClimbConfig = field(default_factory=ClimbConfig)
    """How the sweeps climb."""
    pool: int = 20
    """Best strategies kept to be mutated. [chosen]"""
    pool_key_components: int = 3
    """Leading components (group, pp, tp) of which the pool keeps one strategy per combination. [chosen]"""
    imitation: float = 0.1
    """c_I: weight of the elites' log-likelihood in the loss. [chosen]"""
    ranked_advantage: bool = True
    """Advantage from the reward's rank in the batch, else from its standard score. [chosen]"""
    batch: int = 50
    """Strategies per iteration. [chosen]"""
    epochs: int = 2
    """Gradient steps per iteration. [chosen]"""
    clip: float = 0.2
    """ε: how far a step may move a strategy's probability ratio. [chosen: PPO's usual]"""
    learning_rate: float = 3e-3
    """Adam's. [chosen]"""
    entropy_start: float = 0.02
    """c_H per component at the start of a chunk. [chosen]"""
    entropy_end: float = 0.002
    """c_H per component at its end. [chosen]"""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm. [chosen]"""
    width: int = 32
    """D: width of embeddings, encoder and head. [chosen]"""
    heads: int = 4
    """Attention heads of the encoder. [chosen]"""
    layers: int = 1
    """Layers of the encoder. [chosen]"""
    factorised: bool = False
    """Each component is drawn without regard to the others, as the paper does; otherwise after those left of it."""
    exact_masks: bool = True
    """Only legal strategies are drawn; otherwise each option only has to be legal somewhere, and calls are wasted."""

    def __post_init__(self) -> None:
        positive = ("history", "chunks", "pool", "pool_key_components", "batch", "epochs", "width", "heads", "layers")
        for name in positive:
            if getattr(self, name) < 1:
                raise InvalidInputError(f"RLConfig.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("confidence", "merged_share", "mutation_share", "sweep_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InvalidInputError(f"RLConfig.{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise InvalidInputError(f"RLConfig.width must be a multiple of heads, got {self.width} and {self.heads}")


PAPER = RLConfig(
    islands=False,
    mutation_share=0.0,
    sweep_share=0.0,
    imitation=0.0,
    ranked_advantage=False,
    factorised=True,
    exact_masks=False,
)
"""The paper's agent as published: T = 3, τ = 0.95, 5 chunks, each inheriting; what it leaves open is as in `rl`."""


def search(
    problem: Problem,
    *,
    seed: int,
    config: RLConfig | None = None,
    name: str = "rl",
    warm_start: SavedPolicy | None = None,
    keep: Callable[[SavedPolicy], None] | None = None,
) -> SearchResult:
    """Search with the agent until the problem's budget is spent or nothing new turns up; `name` is the result's.

    The first policy of every chunk starts from ``warm_start``; ``keep`` is given the one trained longest.
    """
    agent = _Agent(problem, seed, config or RLConfig(), warm_start)
    with _single_thread():
        agent.run()
    if keep is not None and agent.policy is not None:
        keep(SavedPolicy.of(agent.policy, problem.component_names, agent.archive.history))
    return agent.recorder.result(name, seed)


@contextmanager
def _single_thread() -> Iterator[None]:
    """Tensors this small are faster on one thread, and sums then round alike on every machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class _Agent:
    """One run: its generators, its recorder, and the memory that the chunks hand on."""

    def __init__(self, problem: Problem, seed: int, config: RLConfig, warm_start: SavedPolicy | None = None) -> None:
        self.problem, self.config, self.warm_start = problem, config, warm_start
        self.policy: Policy | None = None
        self._most_updates = 0
        self.archive = self._memory()
        self.recorder = Recorder(problem)
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self._known_masks: dict[bytes, BoolArray] = {}

    def _memory(self) -> Memory:
        config = self.config
        return Memory(history=config.history, pool=config.pool, pool_key_components=config.pool_key_components)

    def run(self) -> None:
        """Spend the budget chunk by chunk."""
        config = self.config
        num_islands = config.chunks - 1
        total = self.recorder.calls_left
        total -= max(min(round(config.sweep_share * total), total - 1), 0)  # climbs start from something
        last_share = config.merged_share if config.islands else 1 / config.chunks
        archive = self.archive
        for chunk in range(config.chunks):
            last = chunk == num_islands
            end = total if last else ceil(total * (1 - last_share) * (chunk + 1) / num_islands)
            memory = self._memory()
            if last or not config.islands:
                memory.merge(archive)
            self._run_chunk(memory, end)
            archive.merge(memory)
        if config.sweep_share:
            climber = Climber(self.problem, self.recorder, archive, config.climbs)
            climber.run(lambda: self._evaluate_mutations(archive, config.batch))

    def _run_chunk(self, memory: Memory, end: int) -> None:
        """Train policies, each inheriting the history of the one before, until `end` calls are used."""
        start = self.recorder.calls
        while self.recorder.calls < end:
            calls = self.recorder.calls
            self._train_policy(memory, start, end)
            if self.recorder.calls == calls:
                return

    def _train_policy(self, memory: Memory, start: int, end: int) -> None:
        """Train a new policy until it is confident, the calls are used, or it finds nothing new."""
        config, recorder = self.config, self.recorder
        policy = Policy(
            self.problem.num_options,
            self.problem.num_degree_components,
            width=config.width,
            heads=config.heads,
            layers=config.layers,
            factorised=config.factorised,
            generator=self.generator,
        )
        if self.warm_start is not None and recorder.calls == start:
            self.warm_start.hand_on(policy, self.problem.component_names)
        optimizer = torch.optim.Adam(policy.parameters(), lr=config.learning_rate, fused=True)
        num_updates = 0
        while recorder.calls < end:
            calls, best_before = recorder.calls, recorder.throughput
            seen = memory.history.copy()
            num_drawn = config.batch - (round(config.mutation_share * config.batch) if len(seen) else 0)
            batch = policy.sample(policy.context(seen), self._mask, num_drawn, self.rng)
            scores = recorder.evaluate(batch.strategies)
            memory.update(batch.strategies, scores)
            if len(scores) < num_drawn:  # the budget ended inside the batch
                return
            self._evaluate_mutations(memory, min(config.batch, end - calls) - (recorder.calls - calls))
            advantages = self._advantages(reward(scores, best_before, alpha=config.alpha, beta=config.beta))
            progress = min(1.0, (recorder.calls - start) / (end - start))
            entropy_weight = config.entropy_start + progress * (config.entropy_end - config.entropy_start)
            self._update(policy, optimizer, seen, memory.history, batch, advantages, entropy_weight)
            num_updates += 1
            if num_updates >= self._most_updates:
                self.policy, self._most_updates = policy, num_updates
            if batch.confidence >= config.confidence or recorder.calls == calls:
                return

    def _evaluate_mutations(self, memory: Memory, num: int) -> None:
        """Evaluate up to `num` new mutations of the pool."""
        if num <= 0 or not self.config.mutation_share:
            return
        mutants = mutate(self.problem, memory.pool.strategies, 2 * num, self.rng)
        mutants = np.unique(mutants[~np.array(self.recorder.seen(mutants))], axis=0)
        mutants = mutants[self.rng.permutation(len(mutants))[:num]]
        memory.update(mutants, self.recorder.evaluate(mutants))

    def _advantages(self, rewards: FloatArray) -> Tensor:
        """[n] rewards as advantages of mean 0 and standard deviation 1."""
        if self.config.ranked_advantage:
            jitter = self.rng.random(len(rewards))  # ties are broken by chance
            ranks = np.lexsort((jitter, rewards)).argsort()
            rewards = ranks.astype(np.float64)
        return torch.from_numpy((rewards - rewards.mean()) / (rewards.std() + 1e-8)).float()

    def _update(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        seen: Elites,
        elites: Elites,
        batch: Batch,
        advantages: Tensor,
        entropy_weight: float,
    ) -> None:
        """The PPO update: `seen` is the history the batch was drawn under, `elites` the one to imitate."""
        config, num_drawn = self.config, len(batch.strategies)
        x = torch.from_numpy(np.concatenate([batch.strategies, elites.strategies]))
        masks = torch.from_numpy(np.concatenate([batch.masks, self._masks_of(elites.strategies)]))
        drawn_log_probs = torch.from_numpy(batch.log_probs).float()
        for _ in range(config.epochs):
            log_probs, entropies = policy.log_probs(policy.context(seen), x, masks)
            ratio = (log_probs[:num_drawn] - drawn_log_probs).exp()
            clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
            policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
            entropy = entropies[:num_drawn].mean()
            imitation = log_probs[num_drawn:].mean()
            loss = policy_loss - entropy_weight * entropy - config.imitation * imitation
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()

    def _mask(self, x: IntArray, position: int) -> BoolArray:
        """[n, A] options of a component that may be drawn after [n, C] filled left of it."""
        if self.config.exact_masks:
            return self.problem.mask(x, position)
        component = self.problem.component_masks[position]
        return np.broadcast_to(component, (len(x), len(component))).copy()

    def _masks_of(self, x: IntArray) -> BoolArray:
        """[n, C, A] masks of complete strategies; the elites stay the same for long, so they are remembered."""
        for row in x:
            if row.tobytes() not in self._known_masks:
                masks = [self._mask(row[None], position)[0] for position in range(len(row))]
                self._known_masks[row.tobytes()] = np.stack(masks)
        return np.stack([self._known_masks[row.tobytes()] for row in x])
