"""Whatever stands for a benchmark is evaluated as it is meant, or refused before anything starts, with what to pass."""

import sys
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
from odd_envs import Odd
from synthetic import Noisy, synthetic_envs

from lerobot_nb.envs.base import EnvFactory, TaskInfo
from lerobot_nb.envs.config import EnvConfig, make_env_config
from lerobot_nb.envs.factory import make_env
from lerobot_nb.envs.processors import ProcessorPipeline
from lerobot_nb.envs.vector import LazyVectorEnv
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.evaluation.rollout import eval_policy, eval_policy_all, rollout

torch = pytest.importorskip("torch")
ODD = EnvFactory("odd_envs:Odd", {})


@EnvConfig.register("shifted")
@dataclass(frozen=True)
class Shifted(EnvConfig):
    """Its observation processor adds `shift` to the state, its action processor multiplies by it."""

    task: str | None = "shifted"
    obs_type: str = "state"
    shift: float = 1.0
    odd: str = ""

    def tasks(self):
        return [TaskInfo(self.task, 0, self.task, f"walk {self.task}", max_episode_steps=4)]

    def env_factory(self, task):
        return EnvFactory("odd_envs:Odd", {"odd": self.odd, "render_mode": None})

    def get_env_processors(self):
        return ProcessorPipeline(
            lambda batch: batch | {"observation.state": batch["observation.state"] + self.shift}
        ), ProcessorPipeline(lambda actions: actions * self.shift)


class Watching:
    """A torch policy that writes down the smallest state it sees in each row, by the row's text."""

    n_action_steps = 1

    def __init__(self):
        self.seen = {}

    def predict_action_chunk(self, batch):
        for text, state in zip(batch["task"], batch["observation.state"]):
            self.seen.setdefault(text, []).append(float(state.min()))
        return torch.full((len(batch["task"]), 1, 2), 0.01)


def merged(*configs):
    envs = {}
    for config in configs:
        envs |= make_env(config, n_envs=2)
    return envs


def test_merged_mappings_keep_the_processors_of_each_configuration():
    configs = [Shifted(task="low", shift=10.0), Shifted(task="high", shift=-20.0)]
    together, alone = Watching(), Watching()
    config = EvalConfig(batch_size=4, max_batch=4, n_spare=0, max_wait_s=0.2)
    both = eval_policy_all(
        merged(*configs), together, n_episodes=3, return_episode_data=True, config=config
    )
    one_by_one = [
        eval_policy_all(
            make_env(one, n_envs=2), alone, n_episodes=3, return_episode_data=True, config=config
        )
        for one in configs
    ]
    sums = {(one["suite"], one["episode_index"]): one["sum_reward"] for one in both["episodes"]}
    assert sums == {
        (one["suite"], one["episode_index"]): one["sum_reward"]
        for info in one_by_one
        for one in info["episodes"]
    }
    assert {text: sorted(values) for text, values in together.seen.items()} == {
        text: sorted(values) for text, values in alone.seen.items()
    }
    assert min(together.seen["walk low"]) > 5 and max(together.seen["walk high"]) < -10


def test_merged_mappings_through_evaluate_and_with_the_policy_in_the_workers(tmp_path):
    configs = [
        make_env_config("metaworld", task=task, obs_type="state", episode_length=15)
        for task in ("reach-v3", "push-v3")
    ]
    together = evaluate(
        merged(*configs), "expert", EvalConfig(2, batch_size=2), output_dir=tmp_path / "together"
    )
    alone = [
        evaluate(config, "expert", EvalConfig(2, batch_size=2), output_dir=tmp_path / config.task)
        for config in configs
    ]
    assert [record.error for record in together.records()] == [None] * 4
    assert sorted(record.sum_reward for record in together.records()) == sorted(
        record.sum_reward for run in alone for record in run.records()
    )
    assert set(together.manifest["protocol"]["tasks"]) == {"reach-v3/0", "push-v3/0"}


def test_processors_that_are_given_take_the_place_of_all():
    watching = Watching()
    envs = merged(Shifted(task="low", shift=10.0), Shifted(task="high", shift=-20.0))
    eval_policy_all(envs, watching, lambda batch: batch, None, n_episodes=1)
    assert all(-1 < value < 3 for values in watching.seen.values() for value in values[:1])


class Plain(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)


REFUSED = {
    "a plain environment": lambda: Plain(),
    "Gymnasium's own vector": lambda: gymnasium.vector.SyncVectorEnv([Odd, Odd]),
    "nothing": lambda: None,
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize(
    "how",
    [
        lambda env, folder: evaluate(env, "random", EvalConfig(1), output_dir=folder),
        lambda env, folder: evaluate(
            {"suite": {0: env}}, "random", EvalConfig(1), output_dir=folder
        ),
        lambda env, folder: evaluate({"suite": env}, "random", EvalConfig(1), output_dir=folder),
        lambda env, folder: rollout(env, "random"),
        lambda env, folder: eval_policy(env, "random", 1),
        lambda env, folder: eval_policy_all(env, "random", n_episodes=1),
        lambda env, folder: eval_policy_all({"suite": {0: env}}, "random", n_episodes=1),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_what_to_pass(what, how, tmp_path):
    with pytest.raises(TypeError, match="LazyVectorEnv") as error:
        how(REFUSED[what](), tmp_path / "run")
    assert "make_env" in str(error.value) or "{0: env}" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_vector_of_different_environments_is_refused_by_what_runs_one_of_them(tmp_path):
    env = LazyVectorEnv([EnvFactory("odd_envs:Odd", {"start": start}) for start in (0.0, 5.0)])
    for attempt in (
        lambda: eval_policy(env, "random", 2),
        lambda: evaluate({"odd": {0: env}}, "random", EvalConfig(2), output_dir=tmp_path / "run"),
    ):
        with pytest.raises(ValueError, match="different environments.*its own task"):
            attempt()
    try:
        assert rollout(env, "random", seeds=[1, 2])["reward"].shape == (2, 6)  # each of them, once
    finally:
        env.close()


def test_a_lone_vector_environment_can_be_evaluated(tmp_path):
    env = synthetic_envs(n_tasks=1)["synthetic"][0]
    run = evaluate(env, Noisy(), EvalConfig(2), output_dir=tmp_path / "run")
    expected = evaluate(
        {"synthetic": {0: env}}, Noisy(), EvalConfig(2), output_dir=tmp_path / "expected"
    )
    assert [record.sum_reward for record in run.records()] == [
        record.sum_reward for record in expected.records()
    ]


@EnvConfig.register("makes its own")
@dataclass(frozen=True)
class MakesItsOwn(EnvConfig):
    """A configuration in lerobot's form: `create_envs` is all that it has."""

    returns: str = "vector"

    def create_envs(self, n_envs=1, use_async_envs=True):
        if self.returns == "gymnasium":
            return gymnasium.vector.SyncVectorEnv([Odd] * n_envs)
        vector = LazyVectorEnv(ODD, n_envs, use_async_envs=use_async_envs, env_config=self)
        return vector if self.returns == "vector" else {"mine": {3: vector}}


@pytest.mark.parametrize(
    "returns, key", [("vector", ("makes its own", 0, 0)), ("mapping", ("mine", 3, 0))]
)
def test_a_configuration_with_its_own_create_envs(returns, key, tmp_path):
    run = evaluate(
        MakesItsOwn(returns=returns), "random", EvalConfig(1), output_dir=tmp_path / "run"
    )
    assert [(record.key, record.error) for record in run.records()] == [(key, None)]
    envs = make_env(MakesItsOwn(returns=returns))
    assert eval_policy_all(envs, "random", n_episodes=1)["overall"]["n_evaluated"] == 1


def test_a_configuration_with_its_own_create_envs_by_name(tmp_path):
    """It was asked for the fields of the mapping that it makes."""
    run = evaluate("makes its own", "random", EvalConfig(1), output_dir=tmp_path / "run")
    expected = evaluate(MakesItsOwn(), "random", EvalConfig(1), output_dir=tmp_path / "expected")
    assert [record.key for record in run.records()] == [("makes its own", 0, 0)]
    assert [record.sum_reward for record in run.records()] == [
        record.sum_reward for record in expected.records()
    ]


def test_a_configuration_that_makes_something_else_is_refused(tmp_path):
    for attempt in (
        lambda: make_env(MakesItsOwn(returns="gymnasium")),
        lambda: evaluate(MakesItsOwn(returns="gymnasium"), "random", output_dir=tmp_path / "run"),
    ):
        with pytest.raises(TypeError, match="create_envs returned SyncVectorEnv.*LazyVectorEnv"):
            attempt()


# what exists in this process only


@pytest.fixture
def registered_here():
    gymnasium.register("here_only/Odd-v0", Odd, max_episode_steps=5)
    gymnasium.register("here_only/Main-v0", "__main__:Odd", max_episode_steps=5)
    yield
    for name in ("here_only/Odd-v0", "here_only/Main-v0"):
        del gymnasium.registry[name]


@pytest.mark.parametrize(
    "gym_id", ["here_only/Odd-v0", "here_only/Main-v0", "__main__:here_only/Odd-v0"]
)
@pytest.mark.parametrize("how", ["evaluate", "eval_policy_all", "vector"])
def test_an_id_that_only_this_process_knows_is_refused_before_anything_starts(
    registered_here, monkeypatch, tmp_path, gym_id, how
):
    monkeypatch.setattr(
        "lerobot_nb.evaluation.seats.start_worker",
        lambda *args, **kwargs: pytest.fail("a worker was started"),
    )
    config = make_env_config("gym", gym_id=gym_id)
    with pytest.raises(
        ValueError,
        match=r"exists only in this process.*package_name='my_module'.*use_async_envs=False",
    ):
        if how == "evaluate":
            evaluate(config, "random", EvalConfig(2), output_dir=tmp_path / "run")
        elif how == "eval_policy_all":
            eval_policy_all(make_env(config, n_envs=2), "random", n_episodes=2)
        else:
            make_env(config, n_envs=2)["gym"][0].reset(seed=0)
    assert not (tmp_path / "run").exists()


def test_without_workers_such_an_id_is_evaluated(registered_here, tmp_path):
    run = evaluate(
        make_env_config("gym", gym_id="here_only/Odd-v0"),
        "random",
        EvalConfig(2, use_async_envs=False),
        output_dir=tmp_path / "run",
    )
    assert [record.error for record in run.records()] == [None, None]


def test_a_factory_in_the_main_module(monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules["__main__"], "OddOfThisNotebook", Odd, raising=False)
    factory = EnvFactory("__main__:OddOfThisNotebook")
    with pytest.raises(ValueError, match="this process only.*use_async_envs=False"):
        LazyVectorEnv(factory, 2)
    envs = {
        "odd": {
            0: LazyVectorEnv(
                factory, 2, use_async_envs=False, task=TaskInfo("odd", 0, "odd", "walk")
            )
        }
    }
    with pytest.raises(ValueError, match="this process only.*use_async_envs=False"):
        evaluate(envs, "random", EvalConfig(2), output_dir=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    run = evaluate(envs, "random", EvalConfig(2, use_async_envs=False), output_dir=tmp_path / "run")
    assert [record.error for record in run.records()] == [None, None]


def test_a_function_of_this_process_can_be_evaluated_without_workers(tmp_path):
    env = LazyVectorEnv(
        lambda: Odd(), 2, use_async_envs=False, task=TaskInfo("odd", 0, "odd", "walk")
    )
    assert eval_policy(env, "random", 2)["aggregated"]["n_evaluated"] == 2
    with pytest.raises(ValueError, match="this process only"):
        evaluate({"odd": {0: env}}, "random", EvalConfig(2), output_dir=tmp_path / "run")


@pytest.mark.parametrize(
    "gym_kwargs, words",
    [
        ({"gravity": 1.6}, "unexpected keyword argument 'gravity'.*arguments are.* g"),
        ({"g": 1.6}, None),
    ],
)
def test_wrong_gym_kwargs_are_refused_at_the_start(monkeypatch, tmp_path, gym_kwargs, words):
    config = make_env_config("gym", gym_id="Pendulum-v1", gym_kwargs=gym_kwargs, episode_length=3)
    if words is None:
        assert (
            evaluate(config, "random", EvalConfig(1), output_dir=tmp_path / "run")
            .records()[0]
            .error
            is None
        )
        return
    monkeypatch.setattr(
        "lerobot_nb.evaluation.seats.start_worker",
        lambda *args, **kwargs: pytest.fail("a worker was started"),
    )
    with pytest.raises(ValueError, match=words):
        evaluate(config, "random", EvalConfig(1), output_dir=tmp_path / "run")


# Gymnasium environments with texts


GRID = """
import gymnasium, numpy as np
from gymnasium import spaces

class Grid(gymnasium.Env):
    '''As MiniGrid's environments: a picture of the surroundings, a direction, and what to do.'''
    metadata = {"render_modes": [], "render_fps": 10}
    observation_space = spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "direction": spaces.Discrete(4), "mission": spaces.Text(50)})
    action_space = spaces.Discrete(7)

    def observation(self):
        return {"image": np.full((7, 7, 3), 51, np.uint8), "direction": int(self.np_random.integers(4)), "mission": self.mission}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.mission = f"go to the {('red', 'green', 'blue')[seed % 3]} ball"
        return self.observation(), {}

    def step(self, action):
        return self.observation(), 0.0, False, False, {}

class Silent(Grid):
    '''The same, wrapped so that only the picture is left: the mission is an attribute.'''
    observation_space = Grid.observation_space["image"]

    def observation(self):
        return super().observation()["image"]

gymnasium.register("text_grid/Grid-v0", Grid, max_episode_steps=3)
gymnasium.register("text_grid/Silent-v0", Silent, max_episode_steps=3)
"""


@pytest.fixture
def text_grid(tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "text_grid.py").write_text(GRID)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield "text_grid"
    sys.modules.pop("text_grid", None)
    for gym_id in [name for name in gymnasium.registry if name.startswith("text_grid/")]:
        del gymnasium.registry[gym_id]


class Reading:
    """A torch policy that writes down what it is given."""

    def __init__(self):
        self.batches = []

    def predict_action_chunk(self, batch):
        self.batches.append(
            {name: value if name == "task" else value.clone() for name, value in batch.items()}
        )
        return torch.zeros(len(batch["task"]), 1, dtype=torch.int64).numpy()


@pytest.mark.parametrize("name", ["Grid", "Silent"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_mission_becomes_the_task(text_grid, tmp_path, name, batch_size):
    config = make_env_config("gym", gym_id=f"text_grid/{name}-v0", package_name=text_grid)
    policy = Reading()
    run = evaluate(
        config,
        policy,
        EvalConfig(4, batch_size=batch_size, max_batch=batch_size),
        output_dir=tmp_path / "run",
    )
    expected = [
        f"go to the {('red', 'green', 'blue')[seed % 3]} ball" for seed in range(1000, 1004)
    ]
    assert [(record.error, record.task_description) for record in run.records()] == [
        (None, text) for text in expected
    ]
    for batch in policy.batches:
        rows = len(batch["task"])
        assert set(batch["task"]) <= set(expected)
        assert batch["observation.image"].shape == (rows, 3, 7, 7) and torch.allclose(
            batch["observation.image"], torch.tensor(0.2)
        )
        assert name == "Silent" or batch["observation.direction"].shape == (rows, 1)


def test_a_text_of_the_users_own_takes_its_place(text_grid, tmp_path):
    config = make_env_config(
        "gym", gym_id="text_grid/Grid-v0", package_name=text_grid, task_description="find the ball"
    )
    run = evaluate(config, Reading(), EvalConfig(2), output_dir=tmp_path / "run")
    assert [(record.error, record.task_description) for record in run.records()] == [
        (None, "find the ball")
    ] * 2


def test_states_of_one_number_make_a_column():
    from lerobot_nb.envs.base import EpisodeSpec
    from lerobot_nb.policies.base import Batcher, Episode
    from lerobot_nb.policies.factory import make_policy

    batcher = Batcher(make_policy(Watching()))
    episodes = [
        Episode(EpisodeSpec("a", 0, number, number), TaskInfo("a", 0, "a", "a"))
        for number in range(3)
    ]
    batch = batcher([{"direction": np.int64(number)} for number in range(3)], episodes)
    assert batch["observation.direction"].tolist() == [[0.0], [1.0], [2.0]]
