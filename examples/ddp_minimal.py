"""DistributedDataParallel on a vector environment: every rank simulates, all ranks train one network.

It learns to predict the next observation, in one process, in two, or on several nodes:

    python examples/ddp_minimal.py
    torchrun --standalone --nproc_per_node=2 examples/ddp_minimal.py
"""

from __future__ import annotations

from genesis_vec import Job

# Before torch is imported: each rank is pinned to its own of the devices that it inherits.
job = Job.from_environment()
device_name, _ = job.pin("auto", None)

import gymnasium  # noqa: E402
import torch  # noqa: E402
from torch import distributed  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

NUM_ENVS = 64  # of each rank


def main() -> None:
    if job.size > 1:
        distributed.init_process_group("nccl" if device_name.startswith("cuda") else "gloo")
    # With its global index every environment draws its own random numbers, on whichever rank it is.
    place = {"device": device_name, "first_env_index": job.rank * NUM_ENVS}
    env = gymnasium.make_vec("GenesisRigid-v0", num_envs=NUM_ENVS, **place)
    device = env.unwrapped.device
    size, action_size = env.single_observation_space.shape[0], env.single_action_space.shape[0]
    torch.manual_seed(0)
    layers = torch.nn.Linear(size + action_size, 128), torch.nn.ELU(), torch.nn.Linear(128, size)
    model = torch.nn.Sequential(*layers).to(device)
    if job.size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator(device).manual_seed(job.rank)
    observations, _ = env.reset(seed=0)
    for step in range(200):
        actions = torch.rand(env.action_space.shape, generator=generator, device=device) * 2 - 1
        next_observations, _, _, _, info = env.step(actions)
        predicted = observations + model(torch.cat([observations, actions], dim=1))
        # final_obs is what followed this step, also where an episode ended and a new one has begun.
        loss = (predicted - info["final_obs"]).square().mean()
        optimizer.zero_grad()
        loss.backward()  # averages the gradients over the ranks
        optimizer.step()
        observations = next_observations
        if job.rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    env.close()
    if job.size > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
