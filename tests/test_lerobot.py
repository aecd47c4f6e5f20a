"""Policies that lerobot built and saved, evaluated here and by lerobot itself. Needs an environment with lerobot: make test-lerobot."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lerobot", reason="lerobot is not installed: make test-lerobot")
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing may be downloaded
# workers want their cores; and with another number sums come out in another order
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from recorded_reach import LENGTH, SIZE, the_environment
from tiny_checkpoints import save_checkpoint

from lerobot_nb.envs.base import EnvFactory, EpisodeSpec, TaskInfo
from lerobot_nb.envs.config import make_env_config
from lerobot_nb.envs.vector import LazyVectorEnv
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.parameters import EvalParameters
from lerobot_nb.policies.base import AdaptedPolicy, Episode, PolicyLoadError
from lerobot_nb.policies.checkpoints import Checkpoint
from lerobot_nb.policies.factory import make_policy
from lerobot_nb.policies.lerobot_policy import load_counted
from lerobot_nb.results.records import same_episode
from lerobot_nb.results.run_folder import RunFolderError

pytestmark = pytest.mark.slow

FAMILIES = {  # what each was seen to do
    "act": ("chunks", "none"),
    "act-ensembling": ("steps", "none"),
    "diffusion-1": ("steps", "seeded"),
    "diffusion-2": ("steps", "seeded"),
    "diffusion-ddim": ("steps", "seeded"),
    "vqbet": ("steps", "seeded"),
    "tdmpc": ("steps", "seeded"),
    "smolvla": ("chunks", "argument"),
}
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """{family: folder}, saved once."""
    folders = {}

    def save(kind):
        if kind not in folders:
            folders[kind] = save_checkpoint(tmp_path_factory.mktemp(kind) / kind, kind, size=SIZE)[
                0
            ]
        return folders[kind]

    return save


@pytest.fixture
def copied(saved, tmp_path):
    """A copy of a family's checkpoint, to be damaged."""

    def copy(kind):
        return Path(shutil.copytree(saved(kind), tmp_path / kind))

    return copy


def reach(**fields):
    return make_env_config(
        "metaworld",
        **{
            "task": "reach-v3",
            "observation_height": SIZE,
            "observation_width": SIZE,
            "episode_length": LENGTH,
        }
        | fields,
    )


def change_json(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def change_tensors(path, change):
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


# --- how they act -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAMILIES)
def test_families_act_as_they_were_seen_to(saved, kind):
    policy = make_policy(str(saved(kind)), reach())
    assert (policy.acting.way, policy.acting.noise) == FAMILIES[kind] and not policy.lock_step
    identity = policy.identity()
    assert (identity["acting"], identity["noise"]) == FAMILIES[kind] and json.dumps(identity)


@pytest.mark.parametrize("kind", FAMILIES)
def test_lerobots_own_rollout_gives_the_same_actions_and_rewards(saved, kind, tmp_path):
    """The same environment object, the same seeds, one episode at a time; where a policy is
    stochastic, from the same seed of torch.
    """
    import gymnasium
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from lerobot.scripts.lerobot_eval import rollout

    seeds, task = (
        [1000, 1001],
        TaskInfo("shared", 0, "reach-v3", the_environment().task_description, LENGTH),
    )
    env = the_environment()
    env.take_log()
    vector = LazyVectorEnv(EnvFactory("recorded_reach:the_environment"), 1, task=task)
    run = evaluate(
        {"shared": {0: vector}},
        str(saved(kind)),
        EvalConfig(2, batch_size=1, use_async_envs=False),
        output_dir=tmp_path / "run",
    )
    assert [record.error for record in run.records()] == [None, None]
    ours = env.take_log()

    policy = get_policy_class(Checkpoint.find(str(saved(kind))).type).from_pretrained(saved(kind))
    pre, post = make_pre_post_processors(policy.config, pretrained_path=str(saved(kind)))
    for number, seed in enumerate(seeds):
        spec = EpisodeSpec("shared", 0, number, seed)
        torch.manual_seed(Episode(spec, task).torch_generator().initial_seed())
        rollout(
            gymnasium.vector.SyncVectorEnv([the_environment]),
            policy,
            lambda batch: batch,
            lambda transition: transition,
            pre,
            post,
            seeds=[seed],
        )
    theirs = env.take_log()
    for seed, record in zip(seeds, run.records()):
        assert len(ours[seed]) == record.n_steps == len(theirs[seed]) > 5
        np.testing.assert_allclose(
            [action for action, _ in ours[seed]],
            [action for action, _ in theirs[seed]],
            rtol=0,
            atol=2e-6,
        )
        np.testing.assert_allclose(
            [reward for _, reward in ours[seed]],
            [reward for _, reward in theirs[seed]],
            rtol=0,
            atol=2e-5,
        )
    actions = np.array([action for action, _ in ours[1000]])
    # a policy that always does the same would prove nothing
    assert np.ptp(actions, axis=0).max() > 1e-3


@pytest.mark.parametrize("kind", FAMILIES)
def test_records_do_not_depend_on_slots(saved, kind, tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    runs = [
        evaluate(
            reach(),
            str(saved(kind)),
            EvalConfig(3, batch_size=size, max_batch=most),
            output_dir=tmp_path / f"{size}{most}",
        )
        for size, most in ((1, 1), (3, 1), (3, 3))
    ]
    assert torch.equal(before, torch.get_rng_state())  # nobody else's random numbers are touched
    assert [record.error for record in runs[0].records()] == [None] * 3
    for a, b in zip(runs[1].records(), runs[0].records(), strict=True):
        assert same_episode(a, b) == []
    for a, b in zip(runs[2].records(), runs[0].records(), strict=True):
        if FAMILIES[kind][0] == "steps":  # one after another, whatever the batch
            assert same_episode(a, b) == []
        else:  # rows of a batch agree up to the order of sums
            assert a.sum_reward == pytest.approx(b.sum_reward, rel=1e-5)
    rewards = [record.sum_reward for record in runs[0].records()]
    assert len(set(rewards)) == 3


def test_the_command_line_and_the_notebook_evaluate_a_checkpoint(saved, tmp_path):
    words = [
        "--benchmark",
        "metaworld",
        "--task",
        "reach-v3",
        "--policy",
        str(saved("act")),
        "--n_episodes",
        "2",
        "--episode_length",
        "20",
        "--n_action_steps",
        "5",
        "--render",
        "none",
        "--output_dir",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "lerobot_nb.cli", "eval", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "run/run.json").read_text())
    assert (
        manifest["policy"]["n_action_steps"] == 5
        and manifest["env_config"]["observation_height"] == SIZE
    )
    run = EvalParameters(
        "metaworld",
        task="reach-v3",
        policy=str(saved("act")),
        n_episodes=2,
        episode_length=20,
        n_action_steps=5,
        render="none",
        output_dir=str(tmp_path / "notebook"),
    ).evaluate()
    records = [
        json.loads(line) for line in (tmp_path / "run/episodes.jsonl").read_text().splitlines()
    ]
    assert sorted(record["sum_reward"] for record in records) == sorted(
        record.sum_reward for record in run.records()
    )


# --- the same policy as an object ---------------------------------------------------------------------------------------


def load_objects(folder):
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    policy = get_policy_class(Checkpoint.find(str(folder)).type).from_pretrained(folder)
    pre, post = make_pre_post_processors(policy.config, pretrained_path=str(folder))
    return policy, {"preprocessor": pre, "postprocessor": post}


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_object_is_asked_as_its_checkpoint_is(saved, kind, tmp_path):
    policy, processors = load_objects(saved(kind))
    adapted = make_policy(policy, **processors)
    assert (adapted.acting.way, adapted.acting.noise) == FAMILIES[kind]
    config = EvalConfig(2, batch_size=2, max_batch=1, render="none")
    policy.train()
    run = evaluate(reach(), adapted, config, output_dir=tmp_path / "object")
    assert policy.training
    expected = evaluate(reach(), str(saved(kind)), config, output_dir=tmp_path / "checkpoint")
    assert [same_episode(a, b) for a, b in zip(run.records(), expected.records(), strict=True)] == [
        [],
        [],
    ]
    assert (
        run.manifest["policy"]["noise"] == FAMILIES[kind][1]
        and run.manifest["policy"]["preprocessor_sha256"]
        != run.manifest["policy"]["postprocessor_sha256"]
    )


def test_an_object_without_the_processors_that_it_needs(saved):
    with pytest.raises(PolicyLoadError, match="given without its preprocessor"):
        make_policy(load_objects(saved("smolvla"))[0])
    assert make_policy(load_objects(saved("act"))[0]).acting.way == "chunks"


def test_the_methods_of_an_object_alone_are_read_with_care(saved):
    """Where it is not known to be lerobot's (a wrapper, say), queues of observations mean
    lock-step, also with a single observation in them.
    """
    for kind, (way, _) in FAMILIES.items():
        policy, processors = load_objects(saved(kind))
        assert AdaptedPolicy(policy, **processors).lock_step == (way != "chunks"), kind


def test_lerobots_users_find_their_functions(saved):
    """eval_policy_all with what lerobot's own takes: environments, policy, processors."""
    from lerobot_nb import eval_policy_all, make_env

    policy, processors = load_objects(saved("diffusion-1"))
    info = eval_policy_all(make_env(reach(), n_envs=2), policy, n_episodes=2, **processors)
    assert info["overall"]["n_errors"] == 0 and info["overall"]["n_episodes"] == 2


# --- who it is ----------------------------------------------------------------------------------------------------------


def test_other_statistics_are_another_policy(saved, tmp_path):
    other, *_ = save_checkpoint(tmp_path / "act", "act", size=SIZE, shift=0.25)
    config = EvalConfig(1, render="none")
    evaluate(reach(), make_policy(str(saved("act"))), config, output_dir=tmp_path / "run")
    with pytest.raises(RunFolderError, match="policy_preprocessor"):
        evaluate(reach(), make_policy(str(other)), config, output_dir=tmp_path / "run", resume=True)
    assert (
        evaluate(
            reach(),
            make_policy(str(saved("act"))),
            config,
            output_dir=tmp_path / "run",
            resume=True,
        ).status
        == "finished"
    )


# --- what is wrong is said before anything runs -------------------------------------------------------------------------


def drop_head(tensors):
    for name in [name for name in tensors if "action_head" in name]:
        del tensors[name]


def more(tensors):
    tensors["model.second_head.weight"] = torch.zeros(2)


def other_shape(tensors):
    name = next(name for name in tensors if "action_head.weight" in name)
    tensors[name] = torch.zeros(7, 3)


def nan(tensors):
    tensors[next(name for name in tensors if "action_head.weight" in name)][0, 0] = float("nan")


@pytest.mark.parametrize(
    "change, words",
    [
        (drop_head, r"2 weights are missing from model.safetensors: model.action_head.bias"),
        (more, "1 weights don't belong .* model.second_head.weight"),
        (other_shape, "don't fit its config.json"),
        (nan, "not finite, in model.action_head.weight"),
    ],
)
def test_wrong_weights(copied, change, words, tmp_path):
    folder = copied("act")
    change_tensors(folder / "model.safetensors", change)
    with pytest.raises(PolicyLoadError, match=words):
        evaluate(reach(), str(folder), output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_statistics_that_are_not_finite(copied):
    folder = copied("act")

    def spoil(tensors):
        tensors["action.mean"][0] = float("nan")

    (path,) = folder.glob("policy_postprocessor*unnormalizer*.safetensors")
    change_tensors(path, spoil)
    with pytest.raises(
        PolicyLoadError, match=r"policy_postprocessor.json.*not finite, in action.mean"
    ):
        make_policy(str(folder))


@pytest.mark.parametrize(
    "change, kwargs, words",
    [
        ({"colour": "blue"}, {}, "colour"),
        ({"type": "acted"}, {}, "no policy of type 'acted'"),
        ({}, {"n_action_steps": 11}, "n_action_steps"),
        ({}, {"empty_cameras": 1}, "'act' have no such setting"),
        ({}, {"device": "cuda"}, "no CUDA device"),
        ({"use_peft": True}, {}, "adapter"),
    ],
)
def test_wrong_configurations(copied, change, kwargs, words):
    if "device" in kwargs and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    folder = copied("act")
    change_json(folder / "config.json", lambda config: config.update(change))
    with pytest.raises(PolicyLoadError, match=words):
        make_policy(str(folder), **kwargs)


def test_an_old_checkpoint_without_processors(copied):
    folder = copied("act")
    (folder / "policy_preprocessor.json").unlink()
    with pytest.raises(PolicyLoadError, match="migrate_policy_normalization"):
        make_policy(str(folder))


def test_code_named_by_a_processor_is_not_run(copied):
    folder = copied("act")
    change_json(
        folder / "policy_preprocessor.json",
        lambda data: data["steps"].append({"class": "antigravity.Step", "config": {}}),
    )
    with pytest.raises(PolicyLoadError, match="trust_remote_code"):
        make_policy(str(folder))
    assert "antigravity" not in sys.modules


def test_code_of_a_checkpoint_is_run_only_when_trusted(copied, tmp_path):
    folder = copied("act")
    change_json(folder / "config.json", lambda config: config.update(type="act_of_someone"))
    (folder / "configuration_act_of_someone.py").write_text(
        "from dataclasses import dataclass\nfrom lerobot.configs import PreTrainedConfig\nfrom lerobot.policies.act.configuration_act import ACTConfig\n"
        "@PreTrainedConfig.register_subclass('act_of_someone')\n@dataclass\nclass ActOfSomeoneConfig(ACTConfig):\n    pass\n"
    )
    (folder / "modeling_act_of_someone.py").write_text(
        "from lerobot.policies.act.modeling_act import ACTPolicy\nfrom configuration_act_of_someone import ActOfSomeoneConfig\n"
        "class ActOfSomeonePolicy(ACTPolicy):\n    config_class, name = ActOfSomeoneConfig, 'act_of_someone'\n"
    )
    with pytest.raises(PolicyLoadError, match="configuration_act_of_someone.py.*trust_remote_code"):
        make_policy(str(folder))
    policy = make_policy(str(folder), trust_remote_code=True)
    assert (policy.config.type, policy.acting.way) == ("act_of_someone", "chunks")


def test_a_checkpoint_from_a_gpu_runs_without_one(copied):
    folder = copied("act")
    change_json(folder / "config.json", lambda config: config.update(device="cuda"))

    def to_cuda(data):
        for step in data["steps"]:
            if step.get("registry_name") == "device_processor":
                step["config"]["device"] = "cuda"

    change_json(folder / "policy_preprocessor.json", to_cuda)
    assert make_policy(str(folder), device="cpu").acting.way == "chunks"


def test_a_backbone_is_not_downloaded_to_be_overwritten(copied):
    folder = copied("act")
    change_json(
        folder / "config.json",
        lambda config: config.update(pretrained_backbone_weights="ResNet18_Weights.IMAGENET1K_V1"),
    )
    assert make_policy(str(folder)).config.pretrained_backbone_weights is None


def test_a_pickle_that_is_trusted(copied, tmp_path):
    from safetensors.torch import load_file

    folder = copied("act")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(PolicyLoadError, match="allow_pickle"):
        make_policy(str(folder))
    assert make_policy(str(folder), allow_pickle=True).acting.way == "chunks"


def test_a_family_that_swallows_what_went_wrong_is_counted(saved):
    """Stands in for π0, whose `from_pretrained` prints what is missing and goes on."""
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from safetensors.torch import load_file

    config = PreTrainedConfig.from_pretrained(saved("act"))

    class Swallowing(ACTPolicy):
        @classmethod
        def from_pretrained(cls, folder, *, config):
            model = cls(config)
            state = load_file(folder / "model.safetensors")
            state.pop("model.action_head.bias")
            state["model.more"] = torch.zeros(1)
            model.load_state_dict(state, strict=False)
            return model

    class Empty(ACTPolicy):
        @classmethod
        def from_pretrained(cls, folder, *, config):
            return cls(config)

    policy, missing, unexpected = load_counted(Swallowing, saved("act"), config)
    assert (type(policy), missing, unexpected) == (
        Swallowing,
        ["model.action_head.bias"],
        ["model.more"],
    )
    with pytest.raises(RuntimeError, match="without loading weights"):
        load_counted(Empty, saved("act"), config)


# --- names, sizes, cameras ----------------------------------------------------------------------------------------------


def test_pictures_of_another_size_and_name(saved, tmp_path):
    folder, *_ = save_checkpoint(tmp_path / "top", "act", size=SIZE)
    for name in ("config.json", "policy_preprocessor.json", "policy_postprocessor.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("observation.image", "observation.images.top"))
    for path in folder.glob("policy_*.safetensors"):
        change_tensors(
            path,
            lambda tensors: tensors.update(
                {
                    key.replace("observation.image.", "observation.images.top."): tensors.pop(key)
                    for key in list(tensors)
                }
            ),
        )
    with pytest.raises(PolicyLoadError, match="rename_map"):
        make_policy(str(folder), reach())
    rename = {"observation.image": "observation.images.top"}
    config = EvalConfig(2, render="none")
    renamed = evaluate(
        reach(),
        str(folder),
        config,
        output_dir=tmp_path / "renamed",
        policy_kwargs={"rename_map": rename},
    )
    plain = evaluate(reach(), str(saved("act")), config, output_dir=tmp_path / "plain")
    assert [
        same_episode(a, b) for a, b in zip(renamed.records(), plain.records(), strict=True)
    ] == [[], []]
    large = reach(observation_height=2 * SIZE, observation_width=2 * SIZE)
    with pytest.raises(PolicyLoadError, match=f"observation_height={SIZE}"):
        evaluate(large, make_policy(str(saved("act"))), config, output_dir=tmp_path / "large")
    resized = evaluate(
        large,
        str(folder),
        config,
        output_dir=tmp_path / "resized",
        policy_kwargs={"rename_map": rename, "resize_images": True},
    )
    assert [record.error for record in resized.records()] == [None, None]


# --- from this environment into another ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["act", "smolvla", "diffusion-2"])
def test_served_from_here_and_evaluated_in_an_environment_without_lerobot(saved, kind, tmp_path):
    """`make test-lerobot` names the other environment's Python in LEROBOT_NB_OTHER_PYTHON."""
    python = os.environ.get("LEROBOT_NB_OTHER_PYTHON")
    if not python:
        pytest.skip(
            "LEROBOT_NB_OTHER_PYTHON does not name a Python without lerobot: make test-lerobot"
        )
    from lerobot_nb.policies.serve import PolicyServer
    from lerobot_nb.results.records import read_records

    assert subprocess.run([python, "-c", "import lerobot"], capture_output=True).returncode != 0
    expected = evaluate(
        reach(),
        str(saved(kind)),
        EvalConfig(3, batch_size=2, max_batch=1),
        output_dir=tmp_path / "here",
    ).records()
    with PolicyServer(make_policy(str(saved(kind))), port=0) as server:
        words = [
            "--benchmark",
            "metaworld",
            "--task",
            "reach-v3",
            "--policy",
            server.address,
            "--n_episodes",
            "3",
            "--batch_size",
            "2",
            "--max_batch",
            "1",
            "--episode_length",
            str(LENGTH),
            "--render",
            "none",
            "--output_dir",
            str(tmp_path / "there"),
        ]
        done = subprocess.run(
            [python, "-m", "lerobot_nb.cli", "eval", *words],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
        )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "there/run.json").read_text())
    # the checkpoint's, told by the server
    assert manifest["env_config"]["observation_height"] == SIZE
    assert manifest["policy"]["served"] == json.loads(
        json.dumps(make_policy(str(saved(kind))).identity())
    )
    records = sorted(read_records(tmp_path / "there/episodes.jsonl"), key=lambda record: record.key)
    assert [same_episode(a, b) for a, b in zip(records, expected, strict=True)] == [[]] * 3


def test_a_served_checkpoint_is_compared_with_the_benchmark_too(saved):
    from lerobot_nb.policies.serve import PolicyServer

    with PolicyServer(make_policy(str(saved("act"))), port=0) as server:
        with pytest.raises(PolicyLoadError, match=f"observation_height={SIZE}"):
            make_policy(server.address, reach(observation_height=64, observation_width=64))
        make_policy(server.address, reach()).end_run()


# --- environments that tell nothing before they are seen; cameras that aren't there -------------------------------------


def test_a_gymnasium_id_is_compared_when_it_is_seen(saved, tmp_path):
    import synthetic

    envs = synthetic.synthetic_envs(n_tasks=1, n_envs=1, pixels=True)
    run = evaluate(
        envs,
        str(saved("act")),
        EvalConfig(1, batch_size=1, max_error_rate=1.0),
        output_dir=tmp_path / "run",
    )
    (record,) = run.records()
    assert (
        record.end_reason == "error"
        and "what mends it" in record.error
        and "(3, 32, 48)" in record.error
    )


def test_a_camera_that_is_not_there(tmp_path):
    folder, *_ = save_checkpoint(tmp_path / "two", "smolvla", size=SIZE)
    change_json(
        folder / "config.json",
        lambda config: config["input_features"].update(
            {"observation.images.wrist": {"type": "VISUAL", "shape": [3, SIZE, SIZE]}}
        ),
    )
    with pytest.raises(PolicyLoadError, match="empty_cameras=1"):
        evaluate(reach(), str(folder), EvalConfig(1), output_dir=tmp_path / "run")
    run = evaluate(
        reach(),
        str(folder),
        EvalConfig(1, render="none"),
        output_dir=tmp_path / "run",
        policy_kwargs={"empty_cameras": 1},
    )
    assert run.records()[0].error is None


def test_mixed_precision(saved):
    assert make_policy(str(saved("act")), use_amp=True).config.use_amp is True
