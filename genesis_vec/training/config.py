"""Settings of a training run, typed and checked when made."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from genesis_vec.devices import usable_cores
from genesis_vec.training.job import Job

# From this width on, a layer keeps several cores busy.
_WIDE_LAYER = 256


def _require(fits: bool, name: str, value: Any, accepted: str) -> None:
    if not fits:
        raise ValueError(f"{name}={value!r} must be {accepted}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of the learner.

    The method is proximal policy optimisation (Schulman et al., arXiv:1707.06347) with generalised advantage
    estimation (Schulman et al., arXiv:1506.02438).
    """

    rollout_steps: int = 24
    """Environment steps in one iteration."""
    epochs: int = 5
    """Passes over a rollout."""
    minibatches: int = 4
    """Minibatches in one pass; must divide rollout_steps, since each takes its share of every environment's steps."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Decay of the advantage estimator's weights."""
    clip: float = 0.2
    """How far the probability ratio may move from 1, and the value from its old estimate."""
    clip_value: bool = False
    """Whether the value loss is clipped too."""
    value_coefficient: float = 1.0
    """Weight of the value loss."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    learning_rate: float = 1e-3
    """Learning rate of Adam; the first one, if it adapts."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """Whether the learning rate follows the policy's change: half more below desired_kl / 2, less above its double."""
    desired_kl: float = 0.01
    """Kullback-Leibler divergence between the old and the new policy that "adaptive" aims at."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    normalize_observations: bool = True
    """Whether the policy sees observations at mean 0 and variance 1."""
    normalize_rewards: bool = True
    """Whether rewards are divided by the standard deviation of the discounted return."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of actor and critic each."""
    initial_std: float = 0.6
    """Standard deviation of the exploration noise at the start."""

    def __post_init__(self) -> None:
        _require(self.rollout_steps >= 1, "ppo.rollout_steps", self.rollout_steps, "at least 1")
        _require(self.epochs >= 1, "ppo.epochs", self.epochs, "at least 1")
        _require(
            self.minibatches >= 1 and self.rollout_steps % self.minibatches == 0,
            "ppo.minibatches",
            self.minibatches,
            f"a divisor of rollout_steps={self.rollout_steps}",
        )
        _require(0 < self.gamma <= 1, "ppo.gamma", self.gamma, "in (0, 1]")
        _require(0 <= self.gae_lambda <= 1, "ppo.gae_lambda", self.gae_lambda, "in [0, 1]")
        for name in ("clip", "learning_rate", "desired_kl", "max_grad_norm", "initial_std"):
            _require(0 < getattr(self, name) < math.inf, f"ppo.{name}", getattr(self, name), "above 0, and finite")
        for name in ("value_coefficient", "entropy_coefficient"):
            _require(0 <= getattr(self, name) < math.inf, f"ppo.{name}", getattr(self, name), "0 or more, and finite")
        sizes = self.hidden_sizes
        _require(bool(sizes) and min(sizes) >= 1, "ppo.hidden_sizes", sizes, "one size of 1 or more for each layer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a run."""

    env_id: Annotated[str, tyro.conf.Positional]
    """Id of the environment, such as GenesisRigid-v0; "module:Id-v0" imports the module first."""
    num_envs: int = 128
    """Number of environments, of all ranks together."""
    num_envs_per_rank: int | None = None
    """Number of environments of each rank, in place of num_envs."""
    iterations: int = 100
    """Number of iterations, each a rollout and an update."""
    seed: int = 1
    """Seed of the environments, the network and the exploration."""
    device: str = "auto"
    """Where everything runs: auto, cpu, cuda. Each rank under torchrun has a GPU of its own."""
    library: Literal["genesis_vec", "sb3", "rsl_rl", "skrl", "rl_games", "torchrl"] = "genesis_vec"
    """Whose PPO learns. Other libraries than this package need its extra of their name, and have no resume."""
    devices: str | None = None
    """One environment over several devices, a worker process each: cuda, cuda:0,1, cpu:2, auto. Ranks share them."""
    run_dir: Path | None = None
    """Folder of the run; runs/ID-DATE-TIME by default."""
    resume: bool = False
    """Go on from the newest checkpoint of run_dir, or start if there is none."""
    checkpoint_every: int = 25
    """Iterations between checkpoints; there is always one at the end, and where SIGTERM or SIGINT stops the run."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints stay, beside the best."""
    checkpoint_envs: bool = True
    """Whether the newest checkpoints hold the environments too, so that a resumed run goes on as if never stopped."""
    evaluate: bool = True
    """Evaluate the untrained and the trained policy, an episode of every environment each."""
    stop_at_return: float | None = None
    """End the run once an iteration's mean return is at least this."""
    collective_timeout: float = 600.0
    """Seconds that ranks wait for one another before they give up."""
    compile: bool = False
    """Compile the network and the loss with torch.compile; needs a C++ compiler on the CPU, and a minute."""
    cuda_graphs: bool = False
    """With compile: record CUDA graphs of both (torch.compile's mode "reduce-overhead")."""
    mixed_precision: bool = False
    """Compute the hidden layers of an update in bfloat16, at which many CPUs and GPUs are faster; actions, and the
    policy that is saved, have float32."""
    torch_threads: int | None = None
    """Threads of torch on the CPU in an update, in which workers are idle; steps have one. By default all cores that a
    rank has for layers of 256 or more, else one: small networks gain little, and lose much where a core is not free."""
    video_every: int | None = None
    """Film the training after every so many iterations, from the first on, into the run's folder."""
    video_envs: str = "0"
    """Which environments, by their indices: 0,3."""
    video_length: int = 200
    """Steps of a video; it ends where the next begins."""
    video_tiled: bool = True
    """All environments in one video, or each in its own."""
    env: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """An argument of the environment, NAME=VALUE, as often as needed; values are read as JSON, or else as text."""
    ppo: PPOConfig = PPOConfig()
    """The learner."""

    def __post_init__(self) -> None:
        _require(self.num_envs >= 1, "num_envs", self.num_envs, "at least 1")
        per_rank = self.num_envs_per_rank
        _require(per_rank is None or per_rank >= 1, "num_envs_per_rank", per_rank, "at least 1")
        _require(self.keep_checkpoints >= 1, "keep_checkpoints", self.keep_checkpoints, "at least 1")
        _require(self.collective_timeout > 0, "collective_timeout", self.collective_timeout, "above 0")
        _require(not self.cuda_graphs or self.compile, "cuda_graphs", self.cuda_graphs, "used with compile")
        _require(self.iterations >= 1, "iterations", self.iterations, "at least 1")
        _require(self.seed >= 0, "seed", self.seed, "0 or more")
        threads = self.torch_threads
        _require(threads is None or threads >= 1, "torch_threads", threads, "at least 1")
        every = self.video_every
        _require(every is None or every >= 1, "video_every", every, "at least 1")
        _require(self.video_length >= 1, "video_length", self.video_length, "at least 1")
        _require(every is not None or self.video_envs == "0", "video_envs", self.video_envs, "used with video_every")
        self.filmed_envs()
        _require(self.checkpoint_every >= 1, "checkpoint_every", self.checkpoint_every, "at least 1")
        _require(
            not self.resume or self.run_dir is not None, "resume", self.resume, "used with run_dir, the run to go on"
        )
        seen = self.env_kwargs().get("observation")
        _require(
            seen not in ("rgb", "depth") or self.library == "sb3",
            "observation",
            seen,
            f"'state' for library={self.library!r}; pixels go with 'sb3'",
        )

    def filmed_envs(self) -> list[int]:
        """Indices of the environments that are filmed.

        Raises:
            ValueError: If video_envs is no list of such.
        """
        words = self.video_envs.split(",")
        accepted = "different indices of environments, separated by commas"
        _require(all(word.strip().isdecimal() for word in words), "video_envs", self.video_envs, accepted)
        indices = [int(word) for word in words]
        _require(len(set(indices)) == len(indices), "video_envs", self.video_envs, accepted)
        return indices

    def env_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the environment: those of ``env``, and the device.

        Raises:
            ValueError: If an item of ``env`` is not NAME=VALUE.
        """
        kwargs: dict[str, Any] = {"device": self.device}
        if self.devices is not None:
            kwargs["devices"] = self.devices
        for item in self.env:
            name, separator, value = item.partition("=")
            _require(bool(separator and name), "env", item, "NAME=VALUE")
            try:
                kwargs[name] = json.loads(value)
            except json.JSONDecodeError:
                kwargs[name] = value
        return kwargs

    def pinned(self, job: Job) -> TrainConfig:
        """Pins this process to its rank's share of the devices; the settings with their names in this process.

        Raises:
            DeviceNotFoundError, DevicePinningError, ValueError: See :meth:`genesis_vec.training.job.Job.pin`.
        """
        device, devices = job.pin(self.device, self.devices)
        return dataclasses.replace(self, device=device, devices=devices)

    def for_ranks(self, job: Job) -> TrainConfig:
        """The settings with what follows from the number of ranks.

        Raises:
            ValueError: If they do not suit it.
        """
        num_envs = self.num_envs if self.num_envs_per_rank is None else self.num_envs_per_rank * job.size
        # A scene of one environment computes other bits than larger ones.
        _require(
            job.size == 1 or num_envs >= 2 * job.size,
            "num_envs",
            num_envs,
            f"at least {2 * job.size}, 2 for each of {job.size} ranks",
        )
        _require(
            job.max_restarts == 0 or self.run_dir is not None,
            "run_dir",
            self.run_dir,
            "given with torchrun's --max-restarts, where the ranks find their checkpoints again",
        )
        threads = self.torch_threads
        if threads is None:
            # Other libraries have one number for all of a run.
            is_worth_it = self.library == "genesis_vec" and max(self.ppo.hidden_sizes) >= _WIDE_LAYER
            threads = max(1, usable_cores() // job.local_size) if is_worth_it else 1
        return dataclasses.replace(self, num_envs=num_envs, num_envs_per_rank=None, torch_threads=threads)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they go into config.json and checkpoints."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=str))
