"""Evaluates a policy: mean return, length and the task's own metrics over whole episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from gymnasium.vector import VectorEnv

from genesis_vec.training.distributed import World
from genesis_vec.training.episodes import episode_metrics


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Means over the evaluated episodes.

    Attributes:
        episodes: Number of episodes.
        mean_return: Mean sum of rewards.
        std_return: Standard deviation of it over the episodes.
        mean_length: Mean length in steps.
        metrics: Means of the task's own metrics at the episodes' ends. In place of "success", for a task that has it,
            "success_once", whether there was success in any step of the episode, and "success_at_end".
    """

    episodes: int
    mean_return: float
    std_return: float
    mean_length: float
    metrics: dict[str, float]

    def __str__(self) -> str:
        figures = [f"mean return {self.mean_return:.2f} ± {self.std_return:.2f}", f"length {self.mean_length:.1f}"]
        names = {"success_once": "success once", "success_at_end": "at the end"}
        figures += [f"{word} {self.metrics[name]:.0%}" for name, word in names.items() if name in self.metrics]
        return f"{', '.join(figures)} ({self.episodes} episodes)"


@torch.no_grad()
def evaluate(
    env: VectorEnv,
    act: Callable[[torch.Tensor], torch.Tensor],
    episodes: int,
    seed: int,
    max_steps: int = 10_000,
    on_step: Callable[[], None] | None = None,
    world: World | None = None,
) -> Evaluation:
    """Runs a policy until every environment has finished its share of the episodes.

    Each environment contributes the same number of first episodes, so that short episodes are not over-represented.

    Args:
        env: An environment in SAME_STEP mode.
        act: Actions (num_envs, …) for observations (num_envs, …).
        episodes: Number of episodes wanted; rounded up to a multiple of num_envs.
        seed: Seed of the environments.
        max_steps: Bound on the steps, for tasks without a time limit.
        on_step: Called after each reset or step, for a video for instance.
        world: The learners, each with environments of its own, over all of whose episodes the means are taken.

    Raises:
        RuntimeError: If some environment has not finished its episodes within max_steps: a mean over the others would
            be one over the short episodes.
    """
    share = -(-episodes // env.num_envs)
    observations, _ = env.reset(seed=seed)
    done = torch.zeros(env.num_envs, dtype=torch.int64, device=observations.device)
    kept: dict[str, list[torch.Tensor]] = {}
    succeeded = torch.zeros_like(done, dtype=torch.bool)
    for _ in range(max_steps):
        if on_step is not None:
            on_step()
        observations, _, _, _, info = env.step(act(observations))
        counted = info["_episode"] & (done < share)
        success = info.get("success")
        if success is not None:
            succeeded = succeeded | (success > 0)
        if bool(info["_episode"].any()):
            metrics = episode_metrics(info)
            if success is not None:
                metrics.update(success_once=succeeded, success_at_end=metrics.pop("success"))
                succeeded = succeeded & ~info["_episode"]
            ends = {"return": info["episode"]["r"], "length": info["episode"]["l"], **metrics}
            for name, value in ends.items():
                kept.setdefault(name, []).append(value[counted].double())
            done += counted
            if bool((done >= share).all()):
                break
    else:
        raise RuntimeError(
            f"{int((done < share).sum())} environments have not finished their episodes within {max_steps} steps; give "
            "the environment a max_episode_steps"
        )
    own = {name: torch.cat(parts).cpu() for name, parts in kept.items()}
    every = (world or World()).gather_values(own)
    values = {name: torch.cat([parts[name] for parts in every]) for name in own}
    returns, lengths = values.pop("return"), values.pop("length")
    return Evaluation(
        episodes=len(returns),
        mean_return=returns.mean().item(),
        std_return=returns.std(correction=0).item(),
        mean_length=lengths.mean().item(),
        metrics={name: value.mean().item() for name, value in values.items()},
    )
