"""Rotations as unit quaternions (w, x, y, z), the engine's order, in as few torch operations as a batch needs."""

from __future__ import annotations

import torch

# conjugate(q) is q with these signs.
_CONJUGATE_SIGNS = (1.0, -1.0, -1.0, -1.0)


def about_axis(angle: torch.Tensor, x: float, y: float, z: float) -> torch.Tensor:
    """Rotations about one axis.

    Args:
        angle: (num_envs,), radians.
        x: First component of the axis, a unit vector.
        y: Second one.
        z: Third one.

    Returns:
        Quaternions (num_envs, 4).
    """
    half = angle / 2
    sine = half.sin()
    return torch.stack([half.cos(), x * sine, y * sine, z * sine], dim=1)


def left_matrix(q: torch.Tensor) -> torch.Tensor:
    """The matrices L with L p = q p, the quaternions' product, for every p.

    Args:
        q: Quaternions (num_envs, 4).

    Returns:
        (num_envs, 4, 4).
    """
    w, x, y, z = q.unbind(dim=1)
    rows = [[w, -x, -y, -z], [x, w, -z, y], [y, z, w, -x], [z, -y, x, w]]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def multiply(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The products q p: the rotation p, then q.

    Args:
        q: Quaternions (num_envs, 4).
        p: Quaternions (num_envs, 4).

    Returns:
        Quaternions (num_envs, 4).
    """
    return (left_matrix(q) * p[:, None]).sum(dim=2)


def difference_matrix(goal: torch.Tensor) -> torch.Tensor:
    """The matrices D with D q = goal conjugate(q), the rotation in world axes that takes q to the goal.

    A goal that stays is worth a matrix: the difference is then one operation for each q.

    Args:
        goal: Quaternions (num_envs, 4).

    Returns:
        (num_envs, 4, 4).
    """
    return left_matrix(goal) * goal.new_tensor(_CONJUGATE_SIGNS)


def apply_matrix(matrix: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Matrices applied to quaternions.

    Args:
        matrix: (num_envs, 4, 4).
        q: (num_envs, 4).

    Returns:
        (num_envs, 4).
    """
    return torch.bmm(matrix, q[:, :, None])[:, :, 0]


def angle(q: torch.Tensor) -> torch.Tensor:
    """The angles of rotations, the shorter way round: 2 atan2(|xyz|, |w|), which is exact near 0 too.

    Args:
        q: Quaternions (num_envs, 4).

    Returns:
        (num_envs,), radians in [0, π].
    """
    return 2 * torch.atan2(torch.linalg.vector_norm(q[:, 1:], dim=1), q[:, 0].abs())


def sine_vector(q: torch.Tensor) -> torch.Tensor:
    """2 sin(angle / 2) axis, the shorter way round: the rotation vector for small angles, smooth up to half a turn.

    Args:
        q: Quaternions (num_envs, 4).

    Returns:
        (num_envs, 3).
    """
    # q and -q are one rotation: the one with a positive w is the shorter way round.
    return q[:, 1:] * (4 * (q[:, :1] >= 0) - 2)


def pointing_matrix(vector: tuple[float, float, float], device: torch.device) -> torch.Tensor:
    """What :func:`rotated` needs to rotate a vector that stays the same.

    Args:
        vector: The vector.
        device: Where the rotations will be.

    Returns:
        (16, 3): the rotated vector as a linear function of the 16 products of a quaternion's components.
    """
    x, y, z = vector
    # Row 4 i + j holds what the product of components i and j adds to the rotated vector: with q = (w, u), that is
    # (w² - |u|²) v + 2 w (u × v) + 2 (u · v) u.
    unit = torch.eye(3, dtype=torch.float64)
    v = torch.tensor([x, y, z], dtype=torch.float64)
    matrix = torch.zeros(4, 4, 3, dtype=torch.float64)
    matrix[0, 0] = v
    for i in range(3):
        matrix[0, i + 1] = 2 * torch.linalg.cross(unit[i], v)
        for j in range(3):
            matrix[i + 1, j + 1] = 2 * v[i] * unit[j] - (v if i == j else 0)
    return matrix.reshape(16, 3).to(device=device, dtype=torch.float32)


def rotated(q: torch.Tensor, pointing: torch.Tensor) -> torch.Tensor:
    """A vector that stays the same, rotated.

    Args:
        q: Quaternions (num_envs, 4).
        pointing: (16, k), what :func:`pointing_matrix` gave for the vector; or k columns made of such ones, for k
            numbers that are linear in rotated vectors.

    Returns:
        (num_envs, k).
    """
    products = (q[:, :, None] * q[:, None]).reshape(-1, 1, 16)
    # A batched product computes each environment by itself; one large product may round by the number of rows.
    return torch.bmm(products, pointing.expand(len(q), -1, -1))[:, 0]


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
