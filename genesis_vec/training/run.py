"""A training run from its settings to its files."""

from __future__ import annotations

import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from rich.console import Console

import genesis_vec  # noqa: F401 - registers the ids
from genesis_vec.errors import CheckpointError
from genesis_vec.training.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from genesis_vec.training.config import PPOConfig, TrainConfig
from genesis_vec.training.evaluate import Evaluation, evaluate
from genesis_vec.training.log import RunLog
from genesis_vec.training.model import ActorCritic
from genesis_vec.training.ppo import PPO
from genesis_vec.wrappers import FlattenObservation

# Evaluations use other episodes than training.
_EVALUATION_SEED = 1 << 50


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        run_dir: The run's folder.
        checkpoint: The newest checkpoint.
        before: The untrained policy's evaluation, None for a resumed run or where episodes have no time limit.
        after: The trained policy's.
    """

    run_dir: Path
    checkpoint: Path
    before: Evaluation | None
    after: Evaluation | None


def train(config: TrainConfig, console: Console | None = None) -> RunResult:
    """Runs training from its settings, and says where its results are.

    Args:
        config: The settings.
        console: Where progress goes, standard output by default.

    Raises:
        CheckpointError: If run_dir holds another run already, or its checkpoint does not fit.
        KeyboardInterrupt: After an interrupt, once the work done is saved.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    run_dir = config.run_dir or _new_run_dir(config.env_id)
    state = _earlier_state(config, run_dir)
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    env = make_env(config.env_id, config.num_envs, config.env_kwargs())
    threads_before = torch.get_num_threads()
    try:
        torch.set_num_threads(config.torch_threads)
        learner = PPO(env, config.ppo, config.seed)
        if state is not None:
            learner.load_state_dict(state)
            console.print(f"going on from iteration {learner.iteration}; the environments start new episodes")
        device = _device_in_words(env, learner.device)
        console.print(f"{config.env_id}: {config.num_envs} environments on {device}")
        before = _evaluate(env, learner.policy) if state is None else None
        if before is not None:
            console.print(f"untrained: {before}")
        log = RunLog(run_dir, config.to_dict(), device, config.iterations, learner.iteration, console)
        try:
            _iterate(config, learner, log, run_dir)
        finally:
            # Also after an interrupt or an error: what was learnt until then is kept.
            _save(newest_checkpoint(run_dir), config, learner)
            curves = log.draw()
            log.close()
            console.print(f"curves      {curves}")
            console.print(f"progress    {run_dir / 'progress.csv'}")
            console.print(f"checkpoint  {newest_checkpoint(run_dir)}")
        after = _evaluate(env, learner.policy)
    finally:
        env.close()
        torch.set_num_threads(threads_before)
    if before is not None and after is not None:
        console.print(f"untrained   {before}")
        console.print(f"trained     {after}")
        console.print(f"improvement {after.mean_return - before.mean_return:+.2f} in mean return")
    elif after is not None:
        console.print(f"trained     {after}")
    return RunResult(run_dir, newest_checkpoint(run_dir), before, after)


def make_env(env_id: str, num_envs: int, env_kwargs: dict[str, Any]) -> VectorEnv:
    """The environment that a learner trains on: with vector observations, whatever the task's are."""
    with warnings.catch_warnings():
        # What device="auto" picked is printed, and kept with the run.
        warnings.filterwarnings("ignore", message="device='auto' picked")
        env = gymnasium.make_vec(env_id, num_envs=num_envs, **env_kwargs)
    if isinstance(env.single_observation_space, spaces.Dict):
        return FlattenObservation(env)
    return env


def load_policy(state: dict[str, Any], env: VectorEnv) -> ActorCritic:
    """The policy of a checkpoint, for an environment, on its device.

    Raises:
        CheckpointError: If the checkpoint is of an environment with other spaces.
    """
    ppo = PPOConfig(**{**state["config"]["ppo"], "hidden_sizes": tuple(state["config"]["ppo"]["hidden_sizes"])})
    observation_shape, action_shape = env.single_observation_space.shape, env.single_action_space.shape
    assert observation_shape is not None and action_shape is not None
    policy = ActorCritic(observation_shape[0], action_shape[0], ppo.hidden_sizes, ppo.initial_std, 0)
    try:
        policy.load_state_dict(state["policy"])
    except RuntimeError as error:
        raise CheckpointError(
            f"the checkpoint's policy does not fit observations {observation_shape} and actions {action_shape}: {error}"
        ) from error
    return policy.to(env.unwrapped.device).eval()  # type: ignore[attr-defined]


def _iterate(config: TrainConfig, learner: PPO, log: RunLog, run_dir: Path) -> None:
    best_path = run_dir / "checkpoints" / "best.pt"
    best = load_checkpoint(best_path)["mean_return"] if best_path.is_file() else float("-inf")
    while learner.iteration < config.iterations:
        figures = learner.iterate()
        log.iteration(learner.iteration, learner.env_steps, figures)
        if learner.iteration % config.checkpoint_every == 0:
            _save(newest_checkpoint(run_dir), config, learner)
            if figures.get("mean_return", best) > best:
                best = figures["mean_return"]
                _save(best_path, config, learner, mean_return=best)


def _save(path: Path, config: TrainConfig, learner: PPO, **figures: float) -> None:
    save_checkpoint(path, {"config": config.to_dict(), **figures, **learner.state_dict()})


def _evaluate(env: VectorEnv, policy: ActorCritic) -> Evaluation | None:
    if env.unwrapped.max_episode_steps is None:  # type: ignore[attr-defined]
        return None
    return evaluate(env, policy.act, env.num_envs, _EVALUATION_SEED)


def _earlier_state(config: TrainConfig, run_dir: Path) -> dict[str, Any] | None:
    """The state to go on from, None to start."""
    exists = newest_checkpoint(run_dir).is_file()
    if not config.resume:
        if exists or (run_dir / "config.json").exists():
            raise CheckpointError(f"{run_dir} holds a run already: give another run_dir, or resume to go on with it")
        return None
    if not exists:
        return None
    state = load_checkpoint(run_dir)
    earlier, now = (
        {**values, "env_id": values["env_id"].rpartition(":")[2]} for values in (state["config"], config.to_dict())
    )
    for name in ("env_id", "env", "num_envs", "seed", "ppo"):
        if earlier[name] != now[name]:
            raise CheckpointError(f"{run_dir} was run with {name}={earlier[name]!r}, not {now[name]!r}")
    return state


def _new_run_dir(env_id: str) -> Path:
    name = f"{env_id.rpartition(':')[2].replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 1000))
    return next(path for path in candidates if not path.exists())


def _device_in_words(env: VectorEnv, device: torch.device) -> str:
    name = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "the CPU"
    plans = [worker.plan for worker in getattr(env.unwrapped, "workers", [])]
    if not plans:
        return name
    scenes = sum(len(plan.scenes) for plan in plans)
    return f"{name}, simulated in {scenes} scenes by workers on {', '.join(plan.device.name for plan in plans)}"
