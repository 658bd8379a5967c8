"""A sweep of independent programs, one per device at a time, gathered in one file: gains of a cart pole's controller.

python examples/launch_sweep.py --devices cpu:2 --out gains.csv
"""

from __future__ import annotations

import argparse
import csv
import itertools

import genesis_vec


def balance(kp: float, kd: float, num_envs: int = 64, steps: int = 500) -> float:
    """How long a proportional-derivative controller keeps the pole up, in steps, on average over environments.

    An ordinary program for one device, with an interpreter of its own.
    """
    import gymnasium
    import torch

    context = genesis_vec.launch_context()
    env = gymnasium.make_vec("GenesisCartPole-v0", num_envs=num_envs, device=context.device)
    obs, _ = env.reset(seed=context.seed)
    length = torch.full((num_envs,), steps, device=obs.device)
    for step in range(1, steps + 1):
        # Push the cart to where the pole falls; obs: cart position, pole angle and their velocities.
        obs, _, terminated, *_ = env.step(kp * obs[:, 1:2] + kd * obs[:, 3:4])
        length = torch.where(terminated, length.clamp(max=step), length)
    env.close()
    print(f"kp={kp} kd={kd}: {length.float().mean():.1f} steps")
    return length.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", default="auto", help="auto, cuda, cuda:0,1, cpu:2")
    parser.add_argument("--out", default="gains.csv")
    options = parser.parse_args()
    gains = [{"kp": kp, "kd": kd} for kp, kd in itertools.product((0.5, 2.0), (0.0, 1.0))]
    results = genesis_vec.launch(balance, devices=options.devices, args=gains, retries=1)
    with open(options.out, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kp", "kd", "steps", "seed", "device", "seconds"])
        for result in results:
            row = [*result.item.values(), result.value, result.seed, result.device, round(result.seconds, 1)]
            writer.writerow(row)
    print(f"wrote {options.out}; best: {max(results, key=lambda result: result.value).item}")


if __name__ == "__main__":
    main()
