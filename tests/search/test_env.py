import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from autoshard.hardware import parse_cluster
from autoshard.search.env import ENV_ID, ShardingEnv, register
from autoshard.search.problem import ShardingProblem
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import GraphMaker
from tests.search.toy import ToyProblem


@pytest.fixture
def env() -> ShardingEnv:
    register()
    register()
    made = gymnasium.make(ENV_ID, problem=ToyProblem(num_gpus=12, budget=100)).unwrapped
    assert isinstance(made, ShardingEnv)
    return made


def test_passes_gymnasiums_check(env: ShardingEnv) -> None:
    check_env(env)


def test_a_real_problem_passes_it_too() -> None:
    sim = Simulator(GraphMaker().graph("m"), parse_cluster("H100x2"), Workload(), fixed={"pp": 1})
    register()
    check_env(gymnasium.make(ENV_ID, problem=ShardingProblem(sim, budget=100)).unwrapped)


def test_importing_the_search_does_not_import_gymnasium() -> None:
    code = "import sys; import autoshard.search.rl; assert 'gymnasium' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_step_is_one_evaluation_until_the_budget_ends() -> None:
    problem = ToyProblem(num_gpus=12, budget=5)
    env = ShardingEnv(problem)
    env.action_space.seed(0)
    for call in range(1, 6):
        env.reset()
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert (problem.calls, terminated, truncated) == (call, True, False)
        assert problem.legal(info["strategy"][None]).all()
    env.reset()
    _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert (problem.calls, reward, terminated, truncated) == (5, 0.0, False, True)


def test_the_history_is_observed_best_first_and_forgotten_with_a_new_seed() -> None:
    problem = ToyProblem(num_gpus=12)
    env = ShardingEnv(problem, history=3)
    env.action_space.seed(0)
    throughputs = []
    for _ in range(20):
        env.reset()
        observation, _, _, _, info = env.step(env.action_space.sample())
        throughputs.append((info["throughput"], tuple(info["strategy"])))
    (best, strategy), (second, _) = sorted(set(throughputs), reverse=True)[:2]
    assert observation[0, -1] == 1.0
    assert observation[1, -1] == pytest.approx(second / best)
    assert np.rint(observation[0, :-1] * problem.num_options).astype(int).tolist() == [i + 1 for i in strategy]
    assert (env.reset()[0] == observation).all()
    assert not env.reset(seed=1)[0].any()


def test_masks_are_the_problems_own() -> None:
    problem = ToyProblem(num_gpus=12)
    env = ShardingEnv(problem)
    _, info = env.reset(seed=0)
    env.action_space.seed(0)
    _, _, _, _, info = env.step(env.action_space.sample(mask=info["action_mask"]))
    best = info["strategy"][None]
    for position, mask in enumerate(info["action_mask"]):
        assert (env.prefix_mask(best, position)[0, : len(mask)] == mask).all()
        assert mask[best[0, position]]


def test_a_better_strategy_earns_more() -> None:
    problem = ToyProblem(num_gpus=12)
    points = problem.megatron_points()
    order = np.argsort(problem.score(points).throughput)
    env = ShardingEnv(problem)
    env.reset(seed=0)
    env.step(points[order[-1]])
    rewards = [env.step(points[row])[1] for row in order]
    assert rewards == sorted(rewards)
