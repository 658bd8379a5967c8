"""GenesisVectorEnv: construction, steps, seeds, resets; ends are in test_autoreset and test_quarantine."""

from __future__ import annotations

import pkgutil

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from genesis_vec.checks import check_vector_env
from genesis_vec.engine import live_view
from genesis_vec.errors import ClosedEnvironmentError, EngineBuildError, ModelError, TaskError
from genesis_vec.registry import SHIPPED
from genesis_vec.streams import EnvStreams
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.vector_env import GenesisVectorEnv
from tests.little_tasks import BreakableTask, CountingTask, start_counting
from tests.wrappers.support import ALL_MODES, Snapshot, tensors_in

DISABLED = AutoresetMode.DISABLED


def actions_of(num_steps: int, num_envs: int, size: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(num_steps, num_envs, size, generator=generator) * 2 - 1


def rollout(env: GenesisVectorEnv, actions: torch.Tensor, **reset_args) -> list[tuple]:
    """The reset's result and each step's, without what the clock on the wall decides."""
    results = [env.reset(**reset_args)]
    for action in actions:
        results.append(env.step(action))
        for info in (results[-1][-1], results[-1][-1].get("final_info", {})):
            info["episode"] = {key: value for key, value in info.get("episode", {}).items() if key != "t"}
    return results


def assert_same(one: object, other: object) -> None:
    """Bitwise equality of all tensors in two results."""
    for a, b in zip(tensors_in(tuple(one)), tensors_in(tuple(other)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------------- the contract


@ALL_MODES
@pytest.mark.parametrize("id", SHIPPED)
def test_every_shipped_id_keeps_the_whole_contract(make_env, id, mode):
    # The task that make_vec would make; see test_registry.
    env = make_env(pkgutil.resolve_name(SHIPPED[id][0])(), autoreset_mode=mode, max_episode_steps=5)
    report = check_vector_env(env, close=id == "GenesisCartPole-v0")
    # With its default commands, of which there is one, a Go2 has nothing to draw; its own tests have ranges of them.
    nothing_to_draw = ("that seeds matter: 0 and 1 give the same run",)
    assert report.not_checked == (nothing_to_draw if id == "GenesisGo2Velocity-v0" else ())
    assert report.num_episodes >= 3 * (50 // 6)  # 50 steps, at most 6 for each, the one that only resets included


@ALL_MODES
@pytest.mark.parametrize("dict_obs", [False, True], ids=["tensor", "dict"])
def test_a_task_with_terminations_and_either_kind_of_observation_keeps_the_contract(make_env, mode, dict_obs):
    task = CountingTask([3, None, 5], dict_obs, count_episodes=False)
    report = check_vector_env(make_env(task, autoreset_mode=mode, max_episode_steps=5))
    # Counters that start at 0 for every seed cannot show that seeds matter; the noise can.
    assert report.not_checked == (() if dict_obs else ("that seeds matter: 0 and 1 give the same run",))


@pytest.mark.parametrize("num_envs", [1, 2])
def test_the_public_attributes(make_env, num_envs):
    env = make_env(CartPoleTask(), num_envs, autoreset_mode="Disabled", max_episode_steps=9)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.unwrapped is env
    assert env.device == torch.device("cpu")
    assert env.observation_space.shape == (num_envs, 4) and env.single_observation_space.shape == (4,)
    assert env.action_space.shape == (num_envs, 1) and env.single_action_space.shape == (1,)
    assert env.metadata == {"render_modes": ["rgb_array"], "autoreset_mode": DISABLED, "render_fps": 50}
    assert env.metadata is not GenesisVectorEnv.metadata
    assert GenesisVectorEnv.metadata == {"render_modes": ["rgb_array"]}
    assert (env.autoreset_mode, env.max_episode_steps, env.render_mode) == (DISABLED, 9, None)
    assert (env.task.scene, env.task.num_envs, env.task.device) == (env.scene, num_envs, env.device)
    assert env.render() is None


def test_frames_per_second_follow_from_the_tasks_time_step(make_env):
    assert make_env(BreakableTask(decimation=4), 1).metadata["render_fps"] == round(1 / (0.02 * 4))


# ------------------------------------------------------------------------------------------------------- construction


@pytest.mark.parametrize("num_envs", [0, -1, True, 2.0, "2", None], ids=repr)
def test_b13_a_number_of_environments_below_one_or_no_integer_is_refused(make_env, num_envs):
    with pytest.raises(ValueError, match=f"num_envs must be an integer of at least 1, got {num_envs!r}"):
        make_env(num_envs=num_envs)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_episode_steps", 0, "max_episode_steps must be an integer of at least 1, got 0"),
        ("max_episode_steps", -3, "max_episode_steps must be an integer of at least 1, got -3"),
        ("max_episode_steps", False, "max_episode_steps must be an integer of at least 1, got False"),
        ("max_episode_steps", 5.0, "max_episode_steps must be an integer of at least 1, got 5.0"),
        ("first_env_index", -1, "first_env_index must be an integer of at least 0, got -1"),
        ("first_env_index", 0.5, "first_env_index must be an integer of at least 0, got 0.5"),
        ("autoreset_mode", "same_step", r"autoreset_mode='same_step': use .* one of \['NextStep', 'SameStep', 'Disab"),
        ("autoreset_mode", None, "autoreset_mode=None: use gymnasium.vector.AutoresetMode or one of"),
        ("on_fault", "ignore", "on_fault='ignore': use 'quarantine' or 'raise'"),
        ("render_mode", "human", "render_mode='human': use None or 'rgb_array'"),
        ("render_envs", [], r"render_envs=\[\]: give different indices from 0 to 2"),
        ("render_envs", [3], r"render_envs=\[3\]: give different indices from 0 to 2"),
        ("render_envs", [-1], r"render_envs=\[-1\]: give different indices from 0 to 2"),
        ("render_envs", [0, 0], r"render_envs=\[0, 0\]: give different indices from 0 to 2"),
        ("render_envs", "0", "render_envs='0': give different indices from 0 to 2"),
        ("render_envs", [0.0], r"render_envs=\[0.0\]: give different indices from 0 to 2"),
        ("render_envs", 1, "render_envs=1: give different indices from 0 to 2"),
        ("device", "gpu", "device='gpu' is not a device"),
    ],
)
def test_arguments_out_of_their_range_are_refused_with_those_in_it(make_env, name, value, said):
    with pytest.raises(ValueError, match=said):
        make_env(fresh=True, **{name: value})


def test_integers_of_numpy_are_integers(make_env):
    env = make_env(num_envs=np.int64(2), max_episode_steps=np.int32(4), fresh=True)
    assert (env.num_envs, env.max_episode_steps) == (2, 4)
    assert type(env.num_envs) is int


def test_what_is_no_task_and_a_task_that_serves_already_are_refused(make_env):
    with pytest.raises(TaskError, match=r"task must be an instance of genesis_vec.Task, got <class '.*CartPoleTask'>"):
        GenesisVectorEnv(CartPoleTask, 2, device="cpu")
    task = CartPoleTask()
    make_env(task, 2, fresh=True)
    with pytest.raises(TaskError, match="this CartPoleTask already serves an environment; make a new one for each"):
        make_env(task, 2, fresh=True)


def test_an_error_while_the_scene_is_built_names_num_envs_and_device(make_env):
    class Broken(CartPoleTask):
        def build(self, scene):
            raise MemoryError("no room")

    with pytest.raises(EngineBuildError) as raised:
        make_env(Broken(), 5)
    assert str(raised.value) == (
        "the engine could not build the scene of Broken with num_envs=5 on cpu: no room. If memory ran out, use "
        "fewer environments."
    )
    assert isinstance(raised.value.__cause__, MemoryError)


def test_an_error_of_the_tasks_own_passes_through_construction(make_env):
    class Broken(CartPoleTask):
        def build(self, scene):
            raise ModelError("wheels missing")

    with pytest.raises(ModelError, match=r"^wheels missing$"):
        make_env(Broken())


def test_construction_tries_the_task_out_and_leaves_no_trace_in_the_first_episode(make_env):
    env = make_env(num_envs=2, fresh=True)
    obs, _ = env.reset(seed=4)
    streams = EnvStreams(2, env.device)
    streams.seed(4)
    streams.begin_episode(torch.ones(2, dtype=torch.bool))
    assert_same([obs], [streams.select(None).uniform(4, low=-0.05, high=0.05)])


# --------------------------------------------------------------------------------------------------- steps and actions


def test_step_before_reset_is_refused(make_env):
    with pytest.raises(ValueError, match=r"step\(\) before reset\(\): call reset\(\) first"):
        make_env(fresh=True).step(torch.zeros(3, 1))


def test_after_close_everything_but_close_is_refused(make_env):
    env = make_env()
    env.reset(seed=0)
    env.close()
    env.close()
    assert env.closed
    for call in (lambda: env.step(torch.zeros(3, 1)), env.reset, env.render):
        with pytest.raises(ClosedEnvironmentError, match="the environment is closed; make a new one"):
            call()
    make_env(fresh=True).reset()


@pytest.mark.parametrize("shape", [(3,), (1,), (3, 2), (2, 1), (3, 1, 1), ()], ids=str)
def test_actions_of_another_shape_are_refused_with_both_shapes(make_env, shape):
    env = make_env()
    env.reset(seed=0)
    with pytest.raises(ValueError) as raised:
        env.step(torch.zeros(shape))
    assert str(raised.value) == f"actions have shape {shape}, expected (3, 1)"


def test_numpy_and_other_dtypes_do_what_float32_tensors_do(make_env):
    env = make_env()
    actions = (actions_of(4, 3) * 8).round() / 8  # exact in every dtype below
    expected = rollout(env, actions, seed=0)
    for convert in (torch.Tensor.numpy, torch.Tensor.double, torch.Tensor.half, lambda a: a.double().numpy()):
        assert_same(rollout(env, [convert(action) for action in actions], seed=0), expected)
    assert_same(rollout(env, torch.ones(2, 3, 1), seed=0), rollout(env, torch.ones(2, 3, 1, dtype=torch.int64), seed=0))


def test_actions_out_of_range_are_clipped_and_left_as_they_were(make_env):
    env = make_env()
    beyond = torch.tensor([[3.0], [-2.0], [torch.finfo(torch.float32).max]])
    snapshot = Snapshot(beyond)
    clipped = rollout(env, [torch.tensor([[1.0], [-1.0], [1.0]])] * 3, seed=0)
    assert_same(rollout(env, [beyond] * 3, seed=0), clipped)
    assert_same(rollout(env, [beyond.numpy()] * 3, seed=0), clipped)
    assert not clipped[-1][-1]["fault"].any()
    snapshot.assert_unchanged()


@ALL_MODES
def test_b10_nothing_handed_out_changes_later(make_env, mode):
    env = make_env(CountingTask([2, None, 4], dict_obs=True), autoreset_mode=mode, max_episode_steps=4)
    snapshots = [Snapshot(env.reset(seed=0))]
    for action in actions_of(6, 3):
        snapshots.append(Snapshot(env.step(action)))
        if mode is DISABLED:
            snapshots.append(Snapshot(env.reset(options={"reset_mask": env.task.steps >= 2})))
    snapshots.append(Snapshot(env.reset()))
    env.step(actions_of(1, 3)[0])
    assert len({id(tensor) for snapshot in snapshots for tensor, _ in snapshot.pairs}) > 60
    for snapshot in snapshots:
        snapshot.assert_unchanged()


@ALL_MODES
def test_b10_a_learner_may_write_into_what_it_got(make_env, mode):
    env = make_env(CountingTask([2, None, 4], dict_obs=True), autoreset_mode=mode, max_episode_steps=4)
    actions = actions_of(9, 3)
    start_counting(env, seed=0)
    expected = [Snapshot(env.step(action)[:4]) for action in actions]
    start_counting(env, seed=0)
    for action, snapshot in zip(actions, expected, strict=True):
        result = env.step(action)
        assert_same(result[:4], [tensor for tensor, _ in snapshot.pairs])
        for tensor in {id(tensor): tensor for tensor in tensors_in(result)}.values():
            tensor.logical_not_() if tensor.dtype is torch.bool else tensor.add_(100)


def test_observations_are_contiguous(make_env):
    env = make_env(num_envs=3)
    obs, _ = env.reset(seed=0)
    assert not live_view(env.scene.rigid_solver.qpos).is_contiguous()  # what the engine gives
    results = [obs, *(value for action in actions_of(3, 3) for value in tensors_in(env.step(action)))]
    assert len(results) > 10
    assert all(value.is_contiguous() and value.view(-1).numel() == value.numel() for value in results)


@ALL_MODES
def test_a_learner_in_inference_mode_gets_tensors_that_can_be_used_outside_of_it(make_env, mode):
    expected, env = (make_env(autoreset_mode=mode, max_episode_steps=3) for _ in range(2))
    actions = actions_of(8, 3)
    with torch.inference_mode():
        results = rollout(env, actions[:5], seed=0)
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in tensors_in(tuple(results)))
    results += [env.step(action) for action in actions[5:]]
    for one, other in zip(results, rollout(expected, actions, seed=0), strict=True):
        assert_same([one[0]], [other[0]])
    results[0][0].requires_grad_().sum().backward()


def test_actions_that_carry_gradients_are_fine_and_start_no_graph(make_env):
    env = make_env()
    env.reset(seed=0)
    result = env.step(torch.zeros(3, 1, requires_grad=True))
    assert not any(tensor.requires_grad for tensor in tensors_in(result))


def test_construction_in_inference_mode(make_env):
    with torch.inference_mode():
        env = make_env(max_episode_steps=2, fresh=True)
    actions = actions_of(4, 3)
    assert_same(rollout(env, actions, seed=0), rollout(make_env(max_episode_steps=2), actions, seed=0))


# ------------------------------------------------------------------------------------------------------- reward, info


def test_reward_terms_are_weighted_and_sum_to_the_reward(make_env):
    class WeightedTask(BreakableTask):
        reward_weights = {"centred": 0.25}  # noqa: RUF012

    env = make_env(WeightedTask())
    env.reset(seed=0)
    obs, reward, _, _, info = env.step(torch.ones(3, 1))
    position = obs[:, 0]
    terms = info["reward_terms"]
    assert list(terms) == ["alive", "centred"]
    assert terms["alive"].tolist() == [1.0, 1.0, 1.0]
    assert_same([terms["centred"], reward], [-position.abs() * 0.25, 1.0 - position.abs() * 0.25])
    assert_same([info["position"]], [position[:, None]])


def test_a_single_reward_tensor_is_the_term_named_reward(make_env):
    env = make_env()
    env.reset(seed=0)
    _, reward, _, _, info = env.step(torch.zeros(3, 1))
    assert list(info["reward_terms"]) == ["reward"]
    assert_same([info["reward_terms"]["reward"]], [reward])
    assert info["reward_terms"]["reward"] is not reward


def test_the_keys_of_info_do_not_depend_on_what_happens(make_env):
    """A learner that stacks infos, or a compiled one, must find the same in every step."""
    base = {"position", "reward_terms", "fault", "episode", "_episode"}
    for mode in AutoresetMode:
        extra = {"final_obs", "_final_obs", "final_info", "_final_info"} if mode is AutoresetMode.SAME_STEP else set()
        env = make_env(BreakableTask(), autoreset_mode=mode, max_episode_steps=3)
        results = rollout(env, actions_of(5, 3), seed=0)
        assert results[0][1] == {}
        assert [set(result[-1]) for result in results[1:]] == [base | extra] * 5
        if extra:
            assert [set(result[-1]["final_info"]) for result in results[1:]] == [base] * 5


# -------------------------------------------------------------------------------------------------------------- seeds


def test_b04_a_seed_repeats_a_run_and_another_gives_another(make_env):
    actions = actions_of(40, 4)
    runs = [rollout(make_env(num_envs=4, max_episode_steps=9), actions, seed=seed) for seed in (5, 5, 6)]
    assert_same(runs[0], runs[1])
    assert not (runs[0][0][0] == runs[2][0][0]).any()
    rows = runs[0][0][0]
    assert len({tuple(row) for row in rows.tolist()}) == 4


def test_b04_a_part_of_a_batch_runs_as_that_part_of_the_whole(make_env):
    """Two ranks of two environments each do what one rank of four does, over several episodes."""
    actions = actions_of(30, 4)
    whole = rollout(make_env(num_envs=4, max_episode_steps=7), actions, seed=3)
    for first in (0, 2):
        env = make_env(num_envs=2, max_episode_steps=7, first_env_index=first)
        part = rollout(env, actions[:, first : first + 2], seed=3)
        for one, other in zip(part, whole, strict=True):
            assert_same(one[:-1] if len(one) == 5 else one[:1], [tensor[first : first + 2] for tensor in other[:-1]])


def test_b04_an_unseeded_reset_goes_on_with_the_streams(make_env):
    env, other = make_env(num_envs=3), make_env(num_envs=3)
    starts = [env.reset(seed=2)[0], env.reset()[0], env.reset()[0]]
    assert all(start.shape == (3, 4) for start in starts)
    assert len({tuple(row) for start in starts for row in start.tolist()}) == 9
    other.reset(seed=2)
    other.step(actions_of(1, 3)[0])  # what happens within an episode does not move the next one's start
    assert_same([other.reset()[0]], starts[1:2])
    assert_same([other.reset()[0]], starts[2:])


def test_without_a_seed_environments_differ_from_one_another_and_from_run_to_run(make_env):
    starts = torch.cat([make_env(num_envs=2, fresh=True).reset()[0] for _ in range(3)])
    assert len({tuple(row) for row in starts.tolist()}) == 6


def test_a_list_of_seeds_gives_each_environment_the_start_of_environment_0_under_its_seed(make_env):
    env = make_env(num_envs=3, first_env_index=10)
    listed, _ = env.reset(seed=[7, 8, 7])
    single = {seed: make_env(num_envs=1).reset(seed=seed)[0][0] for seed in (7, 8)}
    assert_same([listed], [torch.stack([single[7], single[8], single[7]])])
    assert_same([env.reset(seed=(7, 8, 7))[0]], [listed])


def test_none_in_a_list_of_seeds_lets_that_environment_go_on_with_its_stream(make_env):
    env, other = make_env(num_envs=2), make_env(num_envs=2)
    env.reset(seed=1), other.reset(seed=1)
    obs, _ = env.reset(seed=[4, None])
    assert_same([obs[1]], [other.reset()[0][1]])
    assert_same([obs[0]], [make_env(num_envs=1).reset(seed=4)[0][0]])


def test_none_in_the_first_list_of_seeds_is_a_seed_from_the_operating_system(make_env):
    first, second = (make_env(num_envs=2, fresh=True).reset(seed=[4, None])[0] for _ in range(2))
    assert_same([first[0]], [second[0]])
    assert not (first[1] == second[1]).any()


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        ([1, 2], "got a list of 2 seeds for 3 environments"),
        ([1, 2, 3, 4], "got a list of 4 seeds for 3 environments"),
        (-1, "a seed must be a non-negative integer, got -1"),
        (True, "a seed must be a non-negative integer, got True"),
        ([0, True, 1], "a seed must be a non-negative integer, got True"),
        ([0, -5, 1], "a seed must be a non-negative integer, got -5"),
        (1.5, "a seed must be a non-negative integer, got 1.5"),
    ],
    ids=str,
)
def test_wrong_seeds_are_refused_and_change_nothing(make_env, seed, said):
    env, other = make_env(), make_env()
    env.reset(seed=0), other.reset(seed=0)
    with pytest.raises(ValueError, match=said):
        env.reset(seed=seed)
    assert_same([env.reset()[0]], [other.reset()[0]])


def test_a_seed_also_seeds_np_random_as_gymnasium_has_it(make_env):
    env = make_env()
    env.reset(seed=11)
    assert env.np_random_seed == 11
    assert env.np_random.integers(1 << 30) == np.random.Generator(np.random.PCG64(11)).integers(1 << 30)


# ------------------------------------------------------------------------------------------------------ partial resets


@pytest.mark.parametrize("library", ["torch", "numpy", "list"])
def test_b14_a_reset_mask_resets_just_its_rows(make_env, library):
    env, other = make_env(num_envs=4), make_env(num_envs=4)
    actions = actions_of(8, 4)
    rollout(env, actions[:3], seed=0)
    mask = torch.tensor([False, True, False, True])
    given = {"torch": mask, "numpy": mask.numpy(), "list": mask.tolist()}[library]
    obs, info = env.reset(options={"reset_mask": given})
    assert info == {}
    undisturbed = rollout(other, actions, seed=0)
    later = [env.step(action) for action in actions[3:]]
    fresh = other.reset(seed=0) and other.reset()[0]  # each row's start of episode 1
    assert_same([obs[0], obs[2]], [undisturbed[3][0][0], undisturbed[3][0][2]])
    assert_same([obs[1], obs[3]], [fresh[1], fresh[3]])
    for one, two in zip(later, undisturbed[4:], strict=True):
        assert_same([tensor[[0, 2]] for tensor in one[:4]], [tensor[[0, 2]] for tensor in two[:4]])
    assert_same([env.reset()[0][1]], [other.reset()[0][1]])  # episode 2 for both


@ALL_MODES
@pytest.mark.parametrize("counts", [True, False], ids=["counters", "motion"])
def test_b14_an_all_false_mask_changes_nothing(make_env, mode, counts):
    task_of = CountingTask if counts else BreakableTask  # one tells what is counted, the other how it moves
    env, other = (make_env(task_of(), autoreset_mode=mode, max_episode_steps=4) for _ in range(2))
    for each in (env, other):
        start_counting(each, seed=0) if counts else each.reset(seed=0)
    for action in actions_of(9, 3):
        one, two = env.step(action), other.step(action)
        assert_same(one[:4], two[:4])
        assert_same(env.reset(options={"reset_mask": np.zeros(3, bool)})[:1], one[:1])


@ALL_MODES
def test_resets_right_after_one_another_do_what_one_reset_of_all_their_rows_does(make_env, mode):
    env, other = (make_env(autoreset_mode=mode, max_episode_steps=6) for _ in range(2))
    actions = actions_of(5, 3)
    rollout(env, actions[:3], seed=0), rollout(other, actions[:3], seed=0)
    for row in (1, 0, None):
        obs, _ = env.reset(options={"reset_mask": torch.arange(3) == (3 if row is None else row)})
    assert_same([obs], other.reset(options={"reset_mask": torch.tensor([True, True, False])})[:1])
    for action in actions[3:]:
        assert_same(env.step(action)[:4], other.step(action)[:4])


def test_a_mask_in_the_very_first_reset_starts_all_environments(make_env):
    env, other = make_env(num_envs=2, fresh=True), make_env(num_envs=2)
    assert_same(env.reset(seed=3, options={"reset_mask": torch.tensor([True, False])}), other.reset(seed=3))


def test_a_seed_with_a_mask_seeds_just_the_rows_of_the_mask(make_env):
    env, other = make_env(num_envs=3), make_env(num_envs=3)
    env.reset(seed=1)
    obs, _ = env.reset(seed=2, options={"reset_mask": np.array([False, True, False])})
    ones = other.reset(seed=1)[0], other.reset()[0]
    assert_same([obs[[0, 2]], obs[1]], [ones[0][[0, 2]], other.reset(seed=2)[0][1]])
    assert_same([env.reset()[0][[0, 2]]], [ones[1][[0, 2]]])


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ([1, 2], "torch.int64 (2,)"),
        (torch.tensor([0, 1, 1]), "torch.int64 (3,)"),
        (np.array([1.0, 0.0, 0.0]), "torch.float64 (3,)"),
        ([], "torch.float32 (0,)"),
        (torch.ones(2, dtype=torch.bool), "torch.bool (2,)"),
        (torch.ones(3, 1, dtype=torch.bool), "torch.bool (3, 1)"),
        (True, "torch.bool ()"),
    ],
    ids=["indices", "int64", "float64", "empty", "short", "column", "scalar"],
)
def test_b14_what_is_no_mask_is_refused_and_changes_nothing(make_env, mask, found):
    env, other = make_env(), make_env()
    env.reset(seed=0), other.reset(seed=0)
    with pytest.raises(ValueError) as raised:
        env.reset(seed=9, options={"reset_mask": mask})
    assert str(raised.value) == (
        f"reset_mask must be bool (3,), got {found}; for indices, set mask[indices] = True in a mask of zeros"
    )
    action = actions_of(1, 3)[0]
    assert_same(env.step(action)[:4], other.step(action)[:4])
    assert_same([env.reset()[0]], [other.reset()[0]])


def test_reset_leaves_the_callers_options_alone(make_env):
    env = make_env()
    env.reset(seed=0)
    mask = torch.tensor([True, False, True])
    options = {"reset_mask": mask, "other": 1}
    env.reset(options=options)
    env.step(torch.zeros(3, 1))
    assert list(options) == ["reset_mask", "other"]
    assert options["reset_mask"] is mask
    assert mask.tolist() == [True, False, True]


def test_options_without_a_mask_reset_all(make_env):
    env, other = make_env(), make_env()
    for options in ({}, {"other": 1}, {"reset_mask": None}):
        assert_same(env.reset(seed=0, options=options), other.reset(seed=0))


# -------------------------------------------------------------------------------------------------- one, some and many


@ALL_MODES
def test_b13_one_environment_keeps_its_batch_axis_and_is_row_0_of_more(make_env, mode):
    one, many = (make_env(num_envs=n, autoreset_mode=mode, max_episode_steps=6) for n in (1, 8))
    actions = actions_of(20, 8)
    (single_obs, _), (obs, _) = one.reset(seed=0), many.reset(seed=0)
    assert_same([single_obs], [obs[:1]])
    for action in actions:
        result = one.step(action[:1])
        assert [tuple(tensor.shape) for tensor in result[:4]] == [(1, 4), (1,), (1,), (1,)]
        assert_same(result[:4], [tensor[:1] for tensor in many.step(action)[:4]])
        if mode is DISABLED:
            mask = result[2] | result[3]
            start, _ = one.reset(options={"reset_mask": mask})
            assert_same([start], [many.reset(options={"reset_mask": mask & (torch.arange(8) == 0)})[0][:1]])


def test_b19_nothing_of_an_episode_leaks_into_the_next(make_env):
    """After a hard push until the time is up, the next episode is that of an environment that was never pushed."""
    env, fresh = (make_env(BreakableTask(terminates=False), max_episode_steps=10) for _ in range(2))
    env.reset(seed=0)
    push = torch.tensor([[1.0], [0.0], [0.0]])
    results = [env.step(push) for _ in range(10)]
    assert results[-1][3].tolist() == [True, True, True]
    assert results[-1][-1]["final_obs"][0, 2] > 1.0  # the push was felt
    fresh.reset(seed=0)
    start, _ = fresh.reset()
    assert_same([results[-1][0]], [start])
    for _ in range(9):
        assert_same([env.step(torch.zeros(3, 1))[0]], [fresh.step(torch.zeros(3, 1))[0]])


def test_b19_what_a_task_remembers_is_cleared_for_the_reset_rows_only(make_env):
    env = make_env(CountingTask())
    start_counting(env, seed=0)
    for _ in range(2):
        env.step(torch.ones(3, 1))
    obs, _ = env.reset(options={"reset_mask": torch.tensor([True, False, False])})
    assert obs.tolist() == [[0, 1, 0], [1, 0, 2], [2, 0, 2]]
    assert env.step(torch.ones(3, 1))[0].tolist() == [[0, 1, 1], [1, 0, 3], [2, 0, 3]]


def test_a_step_in_two_halves_is_the_same_step(make_env):
    whole, halves = make_env(), make_env()
    for env in (whole, halves):
        env.reset(seed=5)
    with pytest.raises(ValueError, match=r"step_wait\(\) without step_async\(\)"):
        halves.step_wait()
    for _ in range(30):
        expected = whole.step(torch.ones(3, 1))
        halves.step_async(torch.ones(3, 1))
        result = halves.step_wait()
        for one, other in zip(result[:4], expected[:4], strict=True):
            assert torch.equal(one, other)
    halves.step_async(torch.ones(3, 1))
    with pytest.raises(ValueError, match="step_async"):
        halves.step_async(torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"reset\(\) while a step"):
        halves.reset()
    halves.step_wait()
