"""How a policy of lerobot's form is asked follows from what it does. The policies here are stand-ins of a few lines, one for each way to act; the real ones are in
test_lerobot.py."""

import logging
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from synthetic import synthetic_envs

from lerobot_nb.envs.base import FeatureType, PolicyFeature
from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import evaluate
from lerobot_nb.policies.base import PolicyLoadError
from lerobot_nb.policies.lerobot_policy import LerobotObject
from lerobot_nb.results.records import same_episode

STATE = "observation.state"


class Base(torch.nn.Module):
    """Chunks of three, of which two are executed; a queue of actions, as lerobot's policies have
    it.
    """

    n_action_steps = 2

    def __init__(self, memory=None):
        super().__init__()
        self.memory = memory
        self.linear = torch.nn.Linear(3, 6, dtype=torch.float32)
        with torch.no_grad():
            self.linear.weight.copy_(torch.linspace(-1, 1, 18).reshape(6, 3))
            self.linear.bias.zero_()
        self.config = SimpleNamespace(
            input_features={STATE: PolicyFeature(FeatureType.STATE, (3,))},
            n_action_steps=self.n_action_steps,
            device="cpu",
            chunk_size=3,
            action_feature=PolicyFeature(FeatureType.ACTION, (2,)),
        )
        self.reset()

    def reset(self):
        self.queue = deque()

    def predict_action_chunk(self, batch):
        return torch.tanh(self.linear(batch[STATE])).reshape(-1, 3, 2)

    def select_action(self, batch):
        if not self.queue:
            self.queue.extend(
                self.predict_action_chunk(batch)[:, : self.n_action_steps].transpose(0, 1)
            )
        return self.queue.popleft()


class NoisyChunks(Base):
    """SmolVLA's way: `noise=`, else torch's global generator."""

    def predict_action_chunk(self, batch, noise=None):
        noise = torch.randn(len(batch[STATE]), 3, 2) if noise is None else noise
        return torch.tanh(super().predict_action_chunk(batch) + noise)


class Sampling(Base):
    """Chunks with noise that nobody can give."""

    def predict_action_chunk(self, batch):
        return torch.tanh(
            super().predict_action_chunk(batch) + torch.randn(len(batch[STATE]), 3, 2)
        )


class IgnoringNoise(Base):
    """Takes `noise=`, and draws its own all the same, as Diffusion does at every step of denoising."""

    def predict_action_chunk(self, batch, noise=None):
        return torch.tanh(
            super().predict_action_chunk(batch) + torch.randn(len(batch[STATE]), 3, 2)
        )


class Remembering(Base):
    """The mean of all observations so far decides."""

    def reset(self):
        super().reset()
        self.seen = []

    def select_action(self, batch):
        self.seen.append(batch[STATE])
        return self.predict_action_chunk({STATE: torch.stack(self.seen).mean(dim=0)})[:, 0]


class Averaging(Base):
    """Temporal ensembling in small: its memory is an object beside the policy."""

    class Memory:
        last = None

    def __init__(self):
        super().__init__(self.Memory())

    def reset(self):
        super().reset()
        self.memory.last = None

    def select_action(self, batch):
        chunk = self.predict_action_chunk(batch)
        action = (
            chunk[:, 0] if self.memory.last is None else (chunk[:, 0] + self.memory.last[:, 1]) / 2
        )
        self.memory.last = chunk
        return action


class WithoutChunks(Base):
    predict_action_chunk = None

    def select_action(self, batch):
        return torch.tanh(self.linear(batch[STATE]))[:, :2]


class Entangled(Base):
    """Remembers in a module within the policy, which is shared and not copied."""

    class Memory(torch.nn.Module):
        last = None

    def __init__(self):
        super().__init__(self.Memory())

    def reset(self):
        super().reset()
        self.memory.last = None

    def select_action(self, batch):
        self.memory.last = (
            batch[STATE] if self.memory.last is None else self.memory.last * 0.5 + batch[STATE]
        )
        return torch.tanh(self.linear(self.memory.last))[:, :2]


class EntangledAndNoisy(Entangled):
    def select_action(self, batch):
        return torch.tanh(super().select_action(batch) + torch.randn(len(batch[STATE]), 2))


WAYS = {
    Base: ("chunks", "none"),
    NoisyChunks: ("chunks", "argument"),
    Sampling: ("chunks", "seeded"),
    IgnoringNoise: ("chunks", "seeded"),
    Remembering: ("steps", "none"),
    Averaging: ("steps", "none"),
    WithoutChunks: ("steps", "none"),
    Entangled: ("lock_step", "none"),
    EntangledAndNoisy: ("lock_step", "seeded"),
}


@pytest.mark.parametrize("kind", WAYS, ids=lambda kind: kind.__name__)
def test_what_a_policy_does_decides_how_it_is_asked(kind):
    policy = LerobotObject(kind())
    assert (policy.acting.way, policy.acting.noise) == WAYS[kind], policy.acting
    assert policy.lock_step == (WAYS[kind][0] == "lock_step") and policy.n_action_steps == (
        2 if WAYS[kind][0] == "chunks" else 1
    )


@pytest.mark.parametrize(
    "kind", [kind for kind in WAYS if kind is not EntangledAndNoisy], ids=lambda kind: kind.__name__
)
def test_records_do_not_depend_on_the_batch(kind, tmp_path):
    policy = kind()
    before = torch.get_rng_state()
    runs = [
        evaluate(
            synthetic_envs(n_tasks=2),
            LerobotObject(policy),
            EvalConfig(4, batch_size=size, max_batch=most),
            output_dir=tmp_path / f"{size}{most}",
        )
        for size, most in ((1, 1), (4, 1), (4, 4))
    ]
    assert torch.equal(before, torch.get_rng_state())
    expected = runs[0].records()
    assert [record.error for record in expected] == [None] * 8
    if WAYS[kind][0] != "lock_step":  # which has only batches of all slots
        assert [same_episode(a, b) for a, b in zip(runs[1].records(), expected, strict=True)] == [
            []
        ] * 8
    for a, b in zip(runs[2].records(), expected, strict=True):
        assert a.sum_reward == pytest.approx(b.sum_reward, rel=1e-5) and a.n_steps == b.n_steps
    assert (
        runs[0].manifest["policy"]["acting"] == WAYS[kind][0]
        and runs[0].manifest["policy"]["noise"] == WAYS[kind][1]
    )


@pytest.mark.parametrize(
    "kind", [Base, NoisyChunks, Remembering, Averaging], ids=lambda kind: kind.__name__
)
def test_a_plain_loop_gives_the_same_actions(kind):
    """Two ways to the same answer: lerobot's loop, one episode after another from its seed, and two
    slots in turns.
    """
    from lerobot_nb.envs.base import EpisodeSpec, TaskInfo
    from lerobot_nb.policies.base import Episode

    task = TaskInfo("s", 0, "s", "s")
    states = torch.rand(2, 7, 3, generator=torch.Generator().manual_seed(0))
    policy, steps = LerobotObject(kind()), 6
    for slot in (0, 1):
        policy.begin_episode(slot, Episode(EpisodeSpec("s", 0, slot, slot), task))
    ours = [[], []]
    for step in range(0, steps, policy.n_action_steps):
        chunk = policy.predict([0, 1], {STATE: states[:, step], "task": ["s", "s"]})
        for slot in (0, 1):
            ours[slot] += list(chunk[slot])
    for slot in (0, 1):
        plain = kind()
        plain.reset()
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(
                Episode(EpisodeSpec("s", 0, slot, slot), task).torch_generator().initial_seed()
            )
            theirs = [
                plain.select_action({STATE: states[slot : slot + 1, step]})[0].numpy()
                for step in range(steps)
            ]
        assert np.allclose(ours[slot], theirs, atol=1e-6), slot


def test_random_numbers_that_depend_on_the_batch_are_warned_of(caplog):
    with caplog.at_level(logging.WARNING, logger="lerobot_nb"):
        LerobotObject(EntangledAndNoisy())
    assert "batch_size=1" in caplog.text


def test_a_policy_that_can_not_act_on_what_it_describes():
    policy = Base()
    policy.config.input_features = {STATE: PolicyFeature(FeatureType.STATE, (5,))}
    with pytest.raises(
        PolicyLoadError, match="can't act on observations as its configuration describes"
    ):
        LerobotObject(policy)
    with pytest.raises(PolicyLoadError, match="executes 1 to 2"):
        LerobotObject(Base(), n_action_steps=3)
