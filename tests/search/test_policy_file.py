"""Policies survive a file, and start searches of other problems."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from autoshard.api.solve import run_search, solve
from autoshard.errors import InvalidInputError
from autoshard.hardware import parse_cluster
from autoshard.search import rl
from autoshard.search.elites import Elites
from autoshard.search.policy import Policy
from autoshard.search.policy_file import SavedPolicy
from autoshard.simulator import Simulator
from autoshard.workload import Workload
from tests.graphs import mixtral_like
from tests.search.toy import ToyProblem

QUICK = rl.RLConfig(width=16, heads=2, batch=20, epochs=1)


def trained(problem: ToyProblem) -> SavedPolicy:
    kept: list[SavedPolicy] = []
    rl.search(problem, seed=0, config=QUICK, keep=kept.append)
    return kept[0]


def new_policy(problem: ToyProblem) -> Policy:
    generator = torch.Generator().manual_seed(1)
    return Policy(
        problem.num_options, 5, width=16, heads=2, layers=1, factorised=False, generator=generator
    )  # fmt: skip


def mean_log_prob(policy: Policy, problem: ToyProblem, x: np.ndarray) -> float:
    masks = np.stack([problem.mask(x, position) for position in range(x.shape[1])], 1)
    found, _ = policy.log_probs(policy.context(Elites(3)), torch.from_numpy(x), torch.from_numpy(masks))
    return float(found.mean().detach())


def test_a_file_holds_the_policy(tmp_path: Path) -> None:
    problem = ToyProblem(num_gpus=12, budget=100)
    saved = trained(problem)
    saved.save(tmp_path / "policy.safetensors")
    loaded = SavedPolicy.load(tmp_path / "policy.safetensors")
    first, second = new_policy(problem), new_policy(problem)
    with torch.no_grad():
        first.no_history.fill_(7.0)
        saved.hand_on(first, problem.component_names)
        loaded.hand_on(second, problem.component_names)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, dict(second.named_parameters())[name]), name


@pytest.fixture(scope="module")
def learned() -> tuple[SavedPolicy, np.ndarray]:
    """A policy trained on 16 devices, and the best strategy it saw."""
    kept: list[SavedPolicy] = []
    config = rl.RLConfig(width=16, heads=2, chunks=1, sweep_share=0.0, confidence=1.0)
    result = rl.search(ToyProblem(num_gpus=16, num_ops=4, budget=800), seed=0, config=config, keep=kept.append)
    assert result.best is not None
    return kept[0], np.array([result.best])


def test_a_new_policy_prefers_what_was_learned(learned: tuple[SavedPolicy, np.ndarray]) -> None:
    """Handed on, it gives the best strategy e times the probability that a new one does, at least."""
    saved, best = learned
    problem = ToyProblem(num_gpus=16, num_ops=4)
    fresh, warm = new_policy(problem), new_policy(problem)
    with torch.no_grad():
        saved.hand_on(warm, problem.component_names)
    assert mean_log_prob(warm, problem, best) > mean_log_prob(fresh, problem, best) + 1.0


def test_operators_of_another_block_are_found_by_name() -> None:
    problem = ToyProblem(budget=200)
    saved = trained(problem)
    policy = new_policy(problem)
    renamed = tuple(name.replace("block/", "moe_layers/") for name in problem.component_names)
    before = policy.prefix_head.detach().clone()
    with torch.no_grad():
        saved.hand_on(policy, renamed)
    assert (policy.prefix_head.detach() != before).flatten(1).any(1).all()
    untouched = new_policy(problem)
    with torch.no_grad():
        saved.hand_on(untouched, tuple(f"x{i}" for i in range(len(renamed))))
    assert torch.equal(untouched.prefix_head.detach(), before)


def test_a_warm_start_is_repeatable_and_within_budget(learned: tuple[SavedPolicy, np.ndarray]) -> None:
    saved, _ = learned
    runs = [rl.search(ToyProblem(budget=100), seed=3, config=QUICK, warm_start=saved) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].calls == 100
    assert runs[0].history != rl.search(ToyProblem(budget=100), seed=3, config=QUICK).history


def test_searches_of_models_save_and_start_from_policies(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    workload = Workload(context=4096)
    first = Simulator(mixtral_like(), parse_cluster("H100x8"), workload, fixed={"pp": 1, "tp": 2})
    run_search(first, "rl", budget=100, seed=0, save_policy=path)
    second = Simulator(mixtral_like(), parse_cluster("H100x16"), workload, fixed={"pp": 1, "tp": 2})
    problem, result = run_search(second, "rl", budget=100, seed=0, warm_start=path)
    assert result.calls == problem.calls == 100
    assert result.best is not None
    for method in ("megatron", "anneal"):
        with pytest.raises(InvalidInputError, match=f"'{method}' has no policy"):
            run_search(second, method, budget=100, seed=0, warm_start=path)
    with pytest.raises(InvalidInputError, match="'exact' has no policy"):
        solve(second, algorithm="exact", save_policy=path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    with pytest.raises(InvalidInputError, match="no saved policy"):
        SavedPolicy.load(path)
    path.write_bytes(b"not a policy")
    with pytest.raises(InvalidInputError, match="no saved policy"):
        SavedPolicy.load(path)
    save_file({"weight": np.zeros(2, dtype=np.float32)}, path)
    with pytest.raises(InvalidInputError, match="format"):
        SavedPolicy.load(path)
