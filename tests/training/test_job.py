"""A rank's place and its devices, from the variables of its environment."""

from __future__ import annotations

import pytest

from genesis_vec.errors import DeviceNotFoundError, DevicePinningError, RendezvousError
from genesis_vec.training.config import PPOConfig, TrainConfig
from genesis_vec.training.job import Job

MASTER = {"MASTER_ADDR": "host", "MASTER_PORT": "29500"}


def place(rank: int, size: int, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), **MASTER, **more}


def test_without_variables_or_with_world_size_one_it_is_a_job_of_one():
    assert Job.from_environment({}) == Job()
    assert Job.from_environment({"WORLD_SIZE": "1"}) == Job()
    assert Job.from_environment({"WORLD_SIZE": "1", "RANK": "0"}).size == 1


def test_torchrun_s_variables_are_read():
    variables = place(
        5, 8, LOCAL_RANK="1", LOCAL_WORLD_SIZE="4", TORCHELASTIC_RUN_ID="x", TORCHELASTIC_MAX_RESTARTS="3",
        TORCHELASTIC_RESTART_COUNT="2",
    )  # fmt: skip
    assert Job.from_environment(variables) == Job(
        rank=5, size=8, local_rank=1, local_size=4, is_launched=True, max_restarts=3, restart=2
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT not set: start with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR, MASTER_PORT not set"),
        (place(2, 2), "RANK=2 of WORLD_SIZE=2"),
        (place(0, 2, LOCAL_RANK="1", LOCAL_WORLD_SIZE="1"), "LOCAL_RANK=1 of LOCAL_WORLD_SIZE=1"),
        (place(0, 2, LOCAL_WORLD_SIZE="3"), "of LOCAL_WORLD_SIZE=3"),
        ({**place(0, 2), "RANK": "first"}, "RANK='first' must be a number"),
        ({"WORLD_SIZE": "-2", "RANK": "0"}, "WORLD_SIZE='-2' must be a number"),
        ({"RANK": "0"}, "WORLD_SIZE not set"),
    ],
)
def test_incomplete_or_contradictory_variables_are_refused(variables: dict[str, str], message: str):
    with pytest.raises(RendezvousError, match=message):
        Job.from_environment(variables)


def ranks(local_size: int, **kwargs: bool) -> list[Job]:
    return [
        Job(rank=rank, size=local_size, local_rank=rank, local_size=local_size, **{"is_launched": True, **kwargs})
        for rank in range(local_size)
    ]


def test_each_rank_gets_its_own_gpu_of_the_inherited_list(monkeypatch: pytest.MonkeyPatch):
    hide_torch(monkeypatch)
    pinned = []
    for job in ranks(2):
        environment = {"CUDA_VISIBLE_DEVICES": "GPU-aa,3,1"}
        assert job.pin("auto", None, environment) == ("cuda:0", None)
        pinned.append(environment)
    assert pinned == [
        {"CUDA_VISIBLE_DEVICES": "GPU-aa"},
        {"CUDA_VISIBLE_DEVICES": "3", "QD_VISIBLE_DEVICE": "3"},
    ]


def test_a_node_s_devices_are_dealt_out_to_its_ranks(monkeypatch: pytest.MonkeyPatch):
    hide_torch(monkeypatch)
    seen = []
    for job in ranks(2):
        environment = {"CUDA_VISIBLE_DEVICES": "7,5,3,1"}
        seen.append((job.pin("auto", "cuda:0,2,1,1", environment), environment["CUDA_VISIBLE_DEVICES"]))
    assert seen == [(("auto", "cuda:0,1"), "7,3"), (("auto", "cuda:0,0"), "5")]
    assert [job.pin("cpu", "cpu:4", {}) for job in ranks(2)] == [("cpu", "cpu:2")] * 2


@pytest.mark.parametrize(
    ("local_size", "device", "devices", "error", "message"),
    [
        (3, "cuda", None, DeviceNotFoundError, "LOCAL_WORLD_SIZE=3 ranks on this node, and 2 GPUs"),
        (2, "cuda:1", None, ValueError, "device='cuda:1' with 2 ranks on a node: use 'auto', 'cpu' or 'cuda'"),
        (2, "auto", "cpu:3", ValueError, "devices='cpu:3' are 3 for LOCAL_WORLD_SIZE=2 ranks"),
        (2, "auto", "cpu:1", ValueError, "give each rank the same number"),
    ],
)
def test_devices_that_do_not_suit_the_ranks_are_refused_on_every_rank(
    local_size: int, device: str, devices: str | None, error: type[Exception], message: str
):
    for job in ranks(local_size):
        with pytest.raises(error, match=message):
            job.pin(device, devices, {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_no_gpu_at_all_is_an_error_only_where_one_was_asked_for():
    for job in ranks(2):
        assert job.pin("auto", None, {"CUDA_VISIBLE_DEVICES": ""}) == ("auto", None)
        assert job.pin("cpu", None, {"CUDA_VISIBLE_DEVICES": "0"}) == ("cpu", None)
        with pytest.raises(DeviceNotFoundError, match="this process sees no GPU"):
            job.pin("cuda", None, {"CUDA_VISIBLE_DEVICES": ""})


def test_a_scheduler_s_one_gpu_per_rank_is_taken_as_it_is():
    for job in ranks(4, is_launched=False):
        environment = {"CUDA_VISIBLE_DEVICES": "2"}
        assert job.pin("cuda", None, environment) == ("cuda:0", None)
        assert environment == {"CUDA_VISIBLE_DEVICES": "2"}


def test_one_rank_on_a_node_is_left_alone():
    assert Job(rank=1, size=2).pin("cuda:0", "cuda:0,1", {}) == ("cuda:0", "cuda:0,1")


def test_pinning_after_torch_was_imported_is_refused():
    with pytest.raises(DevicePinningError, match="too late to pin this process to cuda:1"):
        ranks(2)[1].pin("cuda", None, {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_the_number_of_environments_is_global_or_per_rank():
    config = TrainConfig(env_id="X", num_envs=10)
    assert config.for_ranks(Job(rank=1, size=3)).num_envs == 10
    per_rank = TrainConfig(env_id="X", num_envs_per_rank=4).for_ranks(Job(rank=1, size=3))
    assert (per_rank.num_envs, per_rank.num_envs_per_rank) == (12, None)
    with pytest.raises(ValueError, match="num_envs=5 must be at least 6, 2 for each of 3 ranks"):
        TrainConfig(env_id="X", num_envs=5).for_ranks(Job(rank=1, size=3))
    assert TrainConfig(env_id="X", num_envs=1).for_ranks(Job()).num_envs == 1


def test_wide_networks_are_updated_on_all_cores_of_a_rank_and_narrow_ones_on_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("genesis_vec.training.config.usable_cores", lambda: 8)
    wide = PPOConfig(hidden_sizes=(256, 64))
    node = Job(rank=1, size=4, local_rank=1, local_size=2)
    for config, job, threads in (
        (TrainConfig(env_id="X", ppo=wide), Job(), 8),
        (TrainConfig(env_id="X", ppo=wide), node, 4),
        (TrainConfig(env_id="X", ppo=PPOConfig(hidden_sizes=(64, 64))), Job(), 1),
        (TrainConfig(env_id="X", ppo=wide, library="rsl_rl"), Job(), 1),
        (TrainConfig(env_id="X", ppo=wide, torch_threads=3), node, 3),
    ):
        assert config.for_ranks(job).torch_threads == threads
    monkeypatch.setattr("genesis_vec.training.config.usable_cores", lambda: 1)
    assert TrainConfig(env_id="X", ppo=wide).for_ranks(node).torch_threads == 1
    with pytest.raises(ValueError, match="torch_threads=0 must be at least 1"):
        TrainConfig(env_id="X", torch_threads=0)


def hide_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has just started."""
    monkeypatch.delitem(__import__("sys").modules, "torch")
    monkeypatch.delitem(__import__("sys").modules, "genesis", raising=False)
