"""The sharding problem as a Gymnasium env, driven by sb3-contrib's MaskablePPO, and what our own agent and exact reach.

pip install 'autoshard[sb3]'
python examples/drive_with_sb3.py [CALLS]
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from sb3_contrib import MaskablePPO

from autoshard import H100x8, Workload, catalogue
from autoshard.api.solve import make_simulator, run_search
from autoshard.search.env import ENV_ID, register
from autoshard.search.exact import ExactSearch
from autoshard.search.problem import ShardingProblem
from autoshard.tracing import trace_source


class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives the masks of the env's info to MaskablePPO, and remembers the best strategy."""

    mask: tuple[Any, ...] = ()
    best: float = 0.0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**kwargs)
        self.mask = info["action_mask"]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        self.mask = info["action_mask"]
        self.best = max(self.best, info.get("throughput", 0.0))
        return observation, reward, terminated, truncated, info

    def action_masks(self) -> Any:
        return np.concatenate(self.mask).astype(bool)


def main(calls: int = 1000) -> None:
    graph = trace_source(catalogue.find("mixtral-8x7b"))
    simulator = make_simulator(graph, H100x8, Workload(context=16384))
    register()
    problem = ShardingProblem(simulator, budget=calls)
    env = Masked(gymnasium.make(ENV_ID, problem=problem))
    agent = MaskablePPO("MlpPolicy", env, n_steps=50, batch_size=50, n_epochs=4, gamma=0.0, seed=0, device="cpu")
    agent.learn(total_timesteps=calls)
    _, own = run_search(simulator, "rl", budget=calls, seed=0)
    optimum = ExactSearch(simulator).run().tokens_per_s / simulator.cluster.num_devices
    print(f"MaskablePPO   {env.best:9.1f} tokens/s/GPU in {problem.calls} calls, {1 - env.best / optimum:.1%} below")
    print(f"autoshard rl  {own.throughput:9.1f} tokens/s/GPU in {own.calls} calls, {1 - own.throughput / optimum:.1%}")
    print(f"exact         {optimum:9.1f} tokens/s/GPU, proven")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
