"""Rotations of batches of vectors by unit quaternions, in few torch operations."""

from __future__ import annotations

import torch


def rotate_back(vectors: torch.Tensor, scalar: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    """Vectors of the world in the frame of a body: v + 2 (u × (u × v) - w (u × v)) for the unit quaternion (w, u).

    Element by element, without matrix products: the bits of a row then do not depend on how many rows there are.

    Args:
        vectors: (num_envs, k, 3), in the world.
        scalar: w, the first part of the body's orientation, (num_envs, 1, 1).
        imaginary: u, the other three, (num_envs, 1, 3).

    Returns:
        (num_envs, k, 3), a new tensor.
    """
    once = torch.linalg.cross(imaginary, vectors)
    twice = torch.linalg.cross(imaginary, once)
    return torch.add(vectors, torch.addcmul(twice, scalar, once, value=-1.0), alpha=2.0)
