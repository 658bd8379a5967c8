"""Drawn meshes no finer than pictures can show.

Robots come with meshes for close pictures of film quality (the Go2's have 398,632 triangles, of which a picture of
320 by 240 pixels shows a few thousand), and where drawing is software each costs time in every picture.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# A surface with more triangles than this for each pixel of the whole picture, of which it fills a part, looks the same
# with fewer.
_TRIANGLES_PER_PIXEL = 0.25
# However small the picture, a robot of this many has its shape.
_FEWEST_TRIANGLES = 10_000
# A mesh this small is left alone: a box, a wheel, a coarse hull.
_SMALL_MESH = 200


def simplify_drawn_meshes(scene: Any, height: int, width: int) -> int:
    """Replaces the meshes that a scene draws by simpler ones where there is more detail than a picture shows.

    Each keeps its share of the triangles, by quadric error metrics (M. Garland and P. Heckbert, "Surface
    simplification using quadric error metrics", 1997). What has a texture or colours of its vertices stays as it is,
    since it would lose them. Collisions, masses and what the engine tells of its meshes do not change.

    Args:
        scene: The engine's scene, built and not drawn yet.
        height: Of the pictures, in pixels.
        width: Of the pictures, in pixels.

    Returns:
        How many triangles of rigid bodies are drawn now.
    """
    import trimesh
    from genesis.ext.pyrender import Mesh

    context = scene.visualizer.context
    geoms = [
        geom for entity in scene.rigid_solver.entities for geom in entity.vgeoms if geom.uid in context.rigid_nodes
    ]
    total = sum(len(geom.trimesh.faces) for geom in geoms)
    wanted = max(_TRIANGLES_PER_PIXEL * height * width, _FEWEST_TRIANGLES)
    if total <= wanted:
        return total
    share = wanted / total
    for geom in geoms:
        drawn = context.rigid_nodes[geom.uid].mesh.primitives[0]
        faces = len(geom.trimesh.faces)
        colors = drawn.color_0
        if faces <= _SMALL_MESH or drawn.texcoord_0 is not None or (colors is not None and (colors != colors[0]).any()):
            continue
        shape = trimesh.Trimesh(geom.trimesh.vertices, geom.trimesh.faces, process=False)
        # Files have a vertex for each corner of a triangle, and a surface in pieces cannot be simplified.
        shape.merge_vertices(merge_norm=True, merge_tex=True)
        simple = shape.simplify_quadric_decimation(face_count=max(round(faces * share), _SMALL_MESH))
        if len(simple.faces) == 0:
            continue
        made = Mesh.from_trimesh(simple, material=drawn.material, smooth=geom.surface.smooth).primitives[0]
        drawn.positions = np.asarray(made.positions)
        drawn.normals, drawn.indices, drawn.vertex_mapping = made.normals, made.indices, made.vertex_mapping
        drawn.color_0 = None if colors is None else colors[:1].repeat(len(made.positions), axis=0)
        total += len(simple.faces) - faces
    return total
