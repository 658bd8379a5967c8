"""Meshes that are drawn with less detail: as many triangles as pictures show, the same picture, the same engine."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from genesis_vec import drawn_meshes
from genesis_vec.errors import RenderingUnavailableError
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.tasks.franka_reach import FrankaReachTask
from genesis_vec.tasks.go2_velocity import Go2VelocityTask


@pytest.fixture
def make_drawing(make_env):
    def make(task: Any, **kwargs: Any) -> Any:
        try:
            return make_env(task, 2, render_mode="rgb_array", render_envs=[0, 1], fresh=True, **kwargs)
        except RenderingUnavailableError as error:
            pytest.skip(f"this machine cannot draw: {error}")

    return make


def drawn_triangles(env: Any) -> int:
    nodes = env.scene.visualizer.context.rigid_nodes.values()
    meshes = [node.mesh.primitives[0] for node in nodes]
    return sum(len(mesh.positions if mesh.indices is None else mesh.indices.reshape(-1, 3)) for mesh in meshes)


def picture(env: Any) -> np.ndarray:
    env.reset(seed=0)
    return np.stack(env.render()).astype(float)


@pytest.mark.parametrize("task", [Go2VelocityTask, FrankaReachTask])
def test_a_robot_of_many_triangles_is_drawn_with_few_and_looks_the_same(make_drawing, monkeypatch, task):
    light = make_drawing(task())
    few = drawn_triangles(light)
    mine = picture(light)
    monkeypatch.setattr(drawn_meshes, "_FEWEST_TRIANGLES", 10**9)
    full = make_drawing(task())
    many = drawn_triangles(full)
    theirs = picture(full)
    assert many > 100_000 and few < many / 3
    # Where pixels differ at all, they are edges.
    differs = np.abs(mine - theirs).max(axis=-1)
    assert differs.mean() < 1.0 and (differs > 32).mean() < 0.01
    assert (mine != mine[0, 0, 0]).any()
    # The engine's own figures are of the meshes in the files.
    for a, b in zip(light.scene.entities, full.scene.entities, strict=True):
        assert a.n_vfaces == b.n_vfaces
        torch.testing.assert_close(a.get_vAABB(), b.get_vAABB(), rtol=0, atol=0)


def test_meshes_that_are_alike_stay_alike_and_come_to_what_pictures_show(make_drawing):
    env = make_drawing(Go2VelocityTask())
    context = env.scene.visualizer.context
    drawn: dict[int, list[int]] = {}
    for geom in env.task.robot.vgeoms:
        mesh = context.rigid_nodes[geom.uid].mesh.primitives[0]
        drawn.setdefault(len(geom.trimesh.faces), []).append(len(mesh.indices.reshape(-1, 3)))
    alike = [counts for faces, counts in drawn.items() if len(counts) >= 4 and faces > 1000]
    assert alike and all(max(counts) <= 1.2 * min(counts) for counts in alike), drawn
    # Some cannot be simplified as far as asked.
    assert drawn_triangles(env) < 1.5 * max(0.25 * 240 * 320, 10_000)


def test_what_has_few_triangles_is_drawn_as_it_is(make_drawing, monkeypatch):
    as_it_is = drawn_triangles(make_drawing(CartPoleTask()))
    monkeypatch.setattr(drawn_meshes, "_FEWEST_TRIANGLES", 10**9)
    assert drawn_triangles(make_drawing(CartPoleTask())) == as_it_is


class LooksClosely(FrankaReachTask):
    """Has a camera of its own."""

    close: ClassVar[dict[str, Any]] = {"res": (32, 32), "pos": (0.6, 0, 0.6), "lookat": (0.3, 0, 0.4), "fov": 20}

    def build(self, scene: Any) -> None:
        super().build(scene)
        self.eye = scene.add_camera(GUI=False, **self.close)


def test_a_task_with_a_camera_of_its_own_keeps_every_detail(make_drawing):
    assert drawn_triangles(make_drawing(LooksClosely())) > 100_000
