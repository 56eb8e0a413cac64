"""A sharding problem as a Gymnasium environment, so that any RL library can drive it.

One episode is one evaluation: the action is a whole strategy, the observation the elite history, and the reward that
of `reward.py`. The history lives on from episode to episode; `reset(seed=...)` forgets it, `reset()` keeps it. An
action that the rules forbid is moved to the nearest legal strategy (`proposals.project`), and `info["strategy"]` says
which one was evaluated.

Masks: `prefix_mask` gives the exact mask of one component after those left of it, for agents that choose component by
component. `info["action_mask"]`, a tuple that `action_space.sample(mask=...)` takes, allows for each component what may
stand in the best strategy's place, all components left of it being the best strategy's.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from autoshard.search.elites import Elites
from autoshard.search.proposals import project
from autoshard.search.protocol import BoolArray, IntArray, Problem
from autoshard.search.reward import reward

ENV_ID = "autoshard/Sharding-v0"

Observation = NDArray[np.float32]
ActionMask = tuple[NDArray[np.int8], ...]


def register() -> None:
    """Make `gymnasium.make("autoshard/Sharding-v0", problem=...)` work; harmless when repeated."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(id=ENV_ID, entry_point="autoshard.search.env:ShardingEnv")


class ShardingEnv(gymnasium.Env[Observation, NDArray[np.int64]]):
    """One-step episodes over a problem.

    The observation is [T, C + 1] for a history of T strategies of C components, best first, zeros where there is none
    yet: (index + 1) / number of options, and last the throughput over the best's.

    Args:
        problem: What to search; it counts the calls, and an episode after its budget is spent is truncated.
        history: T, strategies observed.
        alpha: Weight of the normalised throughput in the reward.
        beta: Weight of the improvement over the best so far.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, problem: Problem, history: int = 3, alpha: float = 1.0, beta: float = 0.5) -> None:
        self._problem, self._alpha, self._beta = problem, alpha, beta
        self._elites = Elites(history)
        self._best_throughput = 0.0
        self._history = history
        self.action_space = gymnasium.spaces.MultiDiscrete(problem.num_options)
        shape = (history, len(problem.num_options) + 1)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; with a seed, begin a new search, forgetting the history (the problem's calls stay)."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._elites = Elites(self._history)
            self._best_throughput = 0.0
        return self._observation(), {"action_mask": self._action_mask()}

    def step(self, action: NDArray[np.int64]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Evaluate one strategy. Once the budget is spent, nothing is evaluated and the episode is truncated."""
        x = project(self._problem, np.asarray(action, dtype=np.int64)[None])
        scores = self._problem.evaluate(x)
        if not len(scores):
            return self._observation(), 0.0, False, True, {"action_mask": self._action_mask()}
        value = float(reward(scores, self._best_throughput, alpha=self._alpha, beta=self._beta)[0])
        throughput = float(scores.throughput[0])
        self._best_throughput = max(self._best_throughput, throughput)
        self._elites.update(x, scores)
        info = {
            "strategy": x[0],
            "throughput": throughput,
            "violation": float(scores.violation[0]),
            "action_mask": self._action_mask(),
        }
        return self._observation(), value, True, False, info

    def prefix_mask(self, x: IntArray, position: int) -> BoolArray:
        """[n, max(num_options)] the problem's exact mask of one component, given [n, C] filled left of it."""
        return self._problem.mask(x, position)

    def _observation(self) -> Observation:
        observation = np.zeros((self._history, len(self._problem.num_options) + 1), dtype=np.float32)
        num_elites = len(self._elites)
        if num_elites:
            observation[:num_elites, :-1] = (self._elites.strategies + 1) / self._problem.num_options
            observation[:num_elites, -1] = self._elites.normalised_scores
        return observation

    def _action_mask(self) -> ActionMask:
        """Per component, the options allowed after the best strategy's prefix (the smallest sizes if there is none)."""
        num_options = self._problem.num_options
        if len(self._elites):
            x = self._elites.strategies[:1]
        else:
            x = project(self._problem, np.zeros((1, len(num_options)), dtype=np.int64))
        masks = (self._problem.mask(x, position)[0, :num] for position, num in enumerate(num_options.tolist()))
        return tuple(mask.astype(np.int8) for mask in masks)
