"""Task: what a user writes to make an environment. A scene, observations, rewards, terminations, resets; no loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gymnasium import spaces

from genesis_vec.engine import EngineOptions

if TYPE_CHECKING:
    import torch
    from genesis.engine.scene import Scene

    from genesis_vec.streams import Draws


class Task:
    """One robot-learning problem, for any number of environments at once.

    A subclass declares what is below and writes :meth:`build`, :meth:`act`, :meth:`observe` and :meth:`reward`; the
    other methods have defaults. The environment (:class:`genesis_vec.GenesisVectorEnv`) does everything else:
    stepping, time limits, autoreset, episode statistics, isolation of faulty environments, seeds, rendering.

    In each step the environment calls, in this order, :meth:`act`, the engine, :meth:`observe`, :meth:`metrics`,
    :meth:`reward`, :meth:`terminated`; and where episodes start, :meth:`reset`, :meth:`observe`. Every tensor that
    goes in or out is a full batch: its first dimension is ``num_envs`` and it lies on :attr:`device`. What a method
    returns must be new tensors, which are not written to later. None of these methods should make the host wait for
    the device: no ``.item()``, no ``if tensor:``, no boolean-mask indexing; use ``torch.where`` and ``masked_fill``.

    Attributes:
        observation_space: One environment's observation: a ``Box``, or a ``Dict`` of ``Box``. May be set as late as in
            :meth:`setup`, where the scene is built.
        action_space: One environment's action: a bounded ``Box``. Likewise.
        dt: Seconds of simulated time in one engine step.
        substeps: Solver substeps in one engine step.
        decimation: Engine steps in one environment step; a policy acts every ``dt * decimation`` seconds.
        max_episode_steps: Time limit in environment steps, None for none.
        engine: Settings of the process-wide engine.
        reward_weights: Weights of named reward terms; a term that is not named here has weight 1.
        camera: Where the camera of ``render_mode="rgb_array"`` stands: keyword arguments of the engine's
            ``scene.add_camera`` (res in pixels, pos and lookat in metres, fov in degrees).
        scene: The Genesis scene; set before :meth:`build`.
        num_envs: Number of environments; set before :meth:`build`.
        device: Device of every tensor; set before :meth:`build`.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Box
    dt: float = 0.02
    substeps: int = 1
    decimation: int = 1
    max_episode_steps: int | None = None
    engine: EngineOptions = EngineOptions()
    reward_weights: ClassVar[dict[str, float]] = {}
    camera: ClassVar[dict[str, Any]] = {"res": (320, 240), "pos": (2.5, -2, 1.8), "lookat": (0, 0, 0.4), "fov": 40}

    scene: Scene
    num_envs: int
    device: torch.device

    def scene_options(self) -> dict[str, Any]:
        """Keyword arguments for ``genesis.Scene``; called with the engine started.

        Override to change solver options, starting from ``super().scene_options()``.
        """
        from genesis.options import SimOptions

        return {"sim_options": SimOptions(dt=self.dt, substeps=self.substeps)}

    def build(self, scene: Scene) -> None:
        """Adds entities (and cameras, sensors) to the scene, which is built right after."""
        raise NotImplementedError(f"{type(self).__name__} must define build(scene)")

    def setup(self) -> None:
        """Runs once when the scene is built: look up indices, allocate per-environment buffers, set a rest pose."""

    def reset(self, mask: torch.Tensor, draws: Draws) -> None:
        """Starts a new episode in some environments.

        The engine's state of those environments is back at its initial one already.

        Args:
            mask: bool (num_envs,), the environments that start anew. Buffers of the others must stay as they are.
            draws: Their random streams. Draws come as a full batch, of which only the masked rows count.
        """

    def act(self, actions: torch.Tensor) -> None:
        """Applies actions; called once per environment step, before the engine steps.

        Args:
            actions: float32 (num_envs, *action_space.shape), finite and within the action space's bounds.
        """
        raise NotImplementedError(f"{type(self).__name__} must define act(actions)")

    def observe(self) -> torch.Tensor | dict[str, torch.Tensor]:
        """The observation of the present state: (num_envs, *shape)."""
        raise NotImplementedError(f"{type(self).__name__} must define observe()")

    def reward(self) -> torch.Tensor | dict[str, torch.Tensor]:
        """The reward of the step just taken.

        Returns:
            float (num_envs,), or named terms of that shape, which are weighted by :attr:`reward_weights` and summed.
        """
        raise NotImplementedError(f"{type(self).__name__} must define reward()")

    def terminated(self) -> torch.Tensor | None:
        """Which environments ended for good (fell, reached the goal): bool (num_envs,), or None for none ever."""
        return None

    def metrics(self) -> dict[str, torch.Tensor]:
        """Further figures to report in ``info`` after each step, such as "success": tensors (num_envs, …)."""
        return {}

    def episodes_ended(self, mask: torch.Tensor, returns: torch.Tensor, lengths: torch.Tensor) -> None:
        """Called in a step in which episodes end, before any starts anew: the place for a curriculum.

        Keep what is difficult per environment, in a buffer of (num_envs,), move it by how the episode went, and use it
        in :meth:`reset`. On a GPU it is called in every step, since looking whether one ends would wait.

        Args:
            mask: bool (num_envs,), the environments whose episode ended. Buffers of the others must stay as they are.
            returns: float32 (num_envs,), the ended episodes' returns, 0 elsewhere.
            lengths: int64 (num_envs,), their steps, 0 elsewhere.
        """

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on beside the engine's state: buffers, commands, curricula.

        By default every attribute that is a tensor, an array, a number, a string or None, or a list, tuple or dict of
        such. Override it, with :meth:`load_state_dict`, where a task keeps something in objects of its own.

        Returns:
            Copies, of tensors and plain values only: it goes into checkpoints.
        """
        from genesis_vec.env_state import attributes_state

        return attributes_state(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what :meth:`state_dict` gave; the engine's own state is back already."""
        from genesis_vec.env_state import restore_attributes

        restore_attributes(self, state, self.device)
