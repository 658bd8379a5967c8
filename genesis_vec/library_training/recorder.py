"""ProgressRecorder: what a run writes down and when it ends, seen from its environment, whatever library trains."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from genesis_vec.training.config import TrainConfig
from genesis_vec.training.distributed import World
from genesis_vec.training.episodes import EpisodeSums
from genesis_vec.training.log import RunLog
from genesis_vec.training.stop import StopRequest
from genesis_vec.wrappers.base import StepResult, TorchVectorWrapper


class TrainingEnded(BaseException):
    """Leaves a library's training loop: it was asked to stop, or is good enough.

    No Exception, which a library might take for a failure and handle.
    """


class ProgressRecorder(TorchVectorWrapper):
    """Counts the steps of a library's rollouts, and logs each iteration's episodes.

    An iteration is told to be over by the first step of the next rollout, so that its time includes the update.

    Args:
        env: The environment.
        config: The run's settings.
        world: The learners.
        stop: Whether the run was asked to end.

    Attributes:
        log: Where iterations go; None on ranks that do not log.
        iteration: Iterations done.
        env_steps: Environment steps done, over all environments of all learners.
    """

    def __init__(self, env: VectorEnv, config: TrainConfig, world: World, stop: StopRequest) -> None:
        super().__init__(env)
        self.log: RunLog | None = None
        self.iteration = 0
        self.env_steps = 0
        self._config = config
        self._world = world
        self._stop = stop
        self._episodes = EpisodeSums()
        self._steps = 0

    def step(self, actions: Any) -> StepResult:
        """Step, having ended the iteration if its rollout is complete.

        Raises:
            TrainingEnded: If the run is to end with the iteration.
        """
        if self._steps == self._config.ppo.rollout_steps:
            mean_return = self.finish_iteration()
            wanted = self._config.stop_at_return
            is_good_enough = wanted is not None and mean_return >= wanted
            if is_good_enough or self._world.any(self._stop.signal is not None):
                raise TrainingEnded
        result = self.env.step(actions)
        self._episodes.add(result[-1])
        self._steps += 1
        return result

    def finish_iteration(self) -> float:
        """Logs the iteration, if its rollout is complete; its mean return, -∞ without an episode."""
        if self._steps < self._config.ppo.rollout_steps:
            return float("-inf")
        self._steps = 0
        self.iteration += 1
        self.env_steps += self._config.ppo.rollout_steps * self._config.num_envs
        figures = self._episodes.take_means(self._world)
        if self.log is not None:
            self.log.iteration(self.iteration, self.env_steps, figures)
        return figures.get("mean_return", float("-inf"))
