"""Policies behind a websocket: the same records as with the policy here, and whatever goes wrong is said and costs nothing that was recorded."""

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from served import Seeing, Troubled
from synthetic import Noisy, WholeBatch, synthetic_envs

from lerobot_nb.evaluation.config import EvalConfig
from lerobot_nb.evaluation.evaluate import EvalRun, evaluate
from lerobot_nb.policies.base import PolicyLoadError, PolicyUnavailable
from lerobot_nb.policies.commands import serve_command
from lerobot_nb.policies.factory import make_policy
from lerobot_nb.policies.remote import TOKEN_VARIABLE, RemotePolicy, pack, unpack
from lerobot_nb.policies.serve import PolicyServer
from lerobot_nb.results.records import same_episode

TESTS = Path(__file__).parent
QUICK = {"connect_timeout_s": 5.0, "reconnect_timeout_s": 10.0}


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def assert_equal_records(records, expected, but_for=()):
    assert [
        same_episode(a, b, ignore=list(but_for)) for a, b in zip(records, expected, strict=True)
    ] == [[]] * len(expected)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


# --- the same policy, here and there ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, pixels",
    [(lambda: Noisy(k=4), False), (Noisy, True), (Seeing, True)],
    ids=["numpy", "numpy pixels", "torch pixels"],
)
@pytest.mark.parametrize("slots", [1, 3])
def test_records_are_those_of_the_policy_itself(tmp_path, make, pixels, slots):
    config = EvalConfig(3, batch_size=slots, placement="driver")
    expected = evaluate(
        synthetic_envs(pixels=pixels), make(), config, output_dir=tmp_path / "here"
    ).records()
    with PolicyServer(make(), port=0) as server:
        run = evaluate(
            synthetic_envs(pixels=pixels), server.address, config, output_dir=tmp_path / "there"
        )
        again = evaluate(
            synthetic_envs(pixels=pixels), server.address, config, output_dir=tmp_path / "again"
        )
    assert [record.error for record in run.records()] == [None] * 9
    assert_equal_records(run.records(), expected)
    assert_equal_records(again.records(), expected)
    assert run.manifest["policy"]["served"]["class"].endswith(make().__class__.__name__)


def test_slots_are_answered_in_one_batch(tmp_path):
    policy = Seeing()
    with PolicyServer(policy, port=0, max_wait_s=0.2) as server:
        evaluate(
            synthetic_envs(pixels=True),
            server.address,
            EvalConfig(4, batch_size=4, max_batch=4, n_spare=0, max_wait_s=5.0),
            output_dir=tmp_path / "run",
        )
    assert max(policy.batches) == 4
    policy = Seeing()
    with PolicyServer(policy, port=0, max_wait_s=0.2, max_batch=2) as server:
        evaluate(
            synthetic_envs(pixels=True),
            server.address,
            EvalConfig(4, batch_size=4, max_batch=4, n_spare=0, max_wait_s=5.0),
            output_dir=tmp_path / "two",
        )
    assert max(policy.batches) == 2


def test_a_policy_that_is_reset_as_a_whole(tmp_path):
    expected = evaluate(
        synthetic_envs(), WholeBatch(), EvalConfig(2, batch_size=1), output_dir=tmp_path / "here"
    ).records()
    with PolicyServer(make_policy(WholeBatch()), port=0) as server:
        run = evaluate(
            synthetic_envs(),
            server.address,
            EvalConfig(2, batch_size=1),
            output_dir=tmp_path / "there",
        )
        first = RemotePolicy(server.address)
        with pytest.raises(PolicyLoadError, match="batch_size=1"):
            RemotePolicy(server.address)
        first.end_run()
    assert_equal_records(run.records(), expected)


def test_resuming_and_pairing_ask_who_is_served(tmp_path):
    with PolicyServer(Noisy(k=2), port=0) as server:
        evaluate(synthetic_envs(), server.address, EvalConfig(2), output_dir=tmp_path / "run")
    from lerobot_nb.results.run_folder import RunFolderError

    with PolicyServer(Seeing(), port=0) as server:
        with pytest.raises(RunFolderError, match="policy.served"):
            evaluate(
                synthetic_envs(),
                server.address,
                EvalConfig(2),
                output_dir=tmp_path / "run",
                resume=True,
            )
    with PolicyServer(Noisy(k=2), port=0) as server:  # elsewhere, but the same policy
        assert (
            evaluate(
                synthetic_envs(),
                server.address,
                EvalConfig(2),
                output_dir=tmp_path / "run",
                resume=True,
            ).status
            == "finished"
        )


# --- who may ask --------------------------------------------------------------------------------------------------------


def test_tokens(monkeypatch):
    with PolicyServer(Noisy(), port=0, token="s3cret") as server:
        with pytest.raises(PolicyLoadError, match=f"wants a token.*{TOKEN_VARIABLE}"):
            RemotePolicy(server.address, **QUICK)
        monkeypatch.setenv(TOKEN_VARIABLE, "s3cre")
        with pytest.raises(PolicyLoadError, match="refuses the token") as caught:
            RemotePolicy(server.address, **QUICK)
        assert "s3cre" not in str(caught.value)
        monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
        policy = RemotePolicy(server.address, **QUICK)
        assert policy.name == "noisy" and "s3cret" not in json.dumps(policy.identity())
        policy.end_run()
        with urllib.request.urlopen(server.address.replace("ws:", "http:") + "/healthz") as answer:
            assert (answer.status, answer.read()) == (200, b"OK\n")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--policy", "zero", "--host", "0.0.0.0"], "no_token"),
        (["--policy", "nobody"], "not known"),
        (["--policy", "zero", "--policy_kwargs", "[1]"], "dictionary"),
        (["--policy", "zero", "--max_batch", "0"], "max_batch"),
        ([], "--policy"),
    ],
)
def test_wrong_usage_of_the_server(arguments, words, capsys):
    try:
        code = serve_command(arguments)
    except SystemExit as end:
        code = end.code
    assert code == 2 and words in capsys.readouterr().err


def test_a_port_that_is_taken(capsys):
    with PolicyServer(Noisy(), port=0) as server:
        assert serve_command(["--policy", "zero", "--port", str(server.port)]) == 2
    assert "address already in use" in capsys.readouterr().err


# --- messages that don't fit --------------------------------------------------------------------------------------------


def test_observations_that_are_too_large(tmp_path):
    with PolicyServer(Noisy(), port=0, max_message_mb=0.02) as server:
        run = evaluate(
            synthetic_envs(n_tasks=1, pixels=True, frame_size=(100, 100)),
            server.address,
            EvalConfig(2, batch_size=1, max_error_rate=1.0),
            output_dir=tmp_path / "run",
        )
        assert all(
            "max_message_mb" in record.error and record.end_reason == "error"
            for record in run.records()
        )
        assert (
            evaluate(
                synthetic_envs(n_tasks=1, pixels=True),
                server.address,
                EvalConfig(2),
                output_dir=tmp_path / "small",
            ).eval_info["overall"]["n_errors"]
            == 0
        )


@pytest.mark.parametrize(
    "trouble, words",
    [("raises", "divided by zero"), ("shape", r"must be \(1, k, 2\)"), ("nan", "non-finite")],
)
def test_what_the_served_policy_does_wrong_is_its_error(tmp_path, trouble, words):
    import re

    with PolicyServer(Troubled(trouble), port=0) as server:
        run = evaluate(
            synthetic_envs(n_tasks=1),
            server.address,
            EvalConfig(2, max_error_rate=1.0),
            output_dir=tmp_path / "run",
        )
    assert [record.end_reason for record in run.records()] == ["error"] * 2 and all(
        re.search(words, record.error) for record in run.records()
    )


def test_a_policy_that_hangs(tmp_path):
    with PolicyServer(Troubled("hangs"), port=0) as server:
        run = evaluate(
            synthetic_envs(n_tasks=1),
            server.address,
            EvalConfig(1, max_error_rate=1.0, max_retries=1),
            output_dir=tmp_path / "run",
            policy_kwargs={"policy_timeout_s": 0.5},
        )
    (record,) = run.records()
    assert (
        record.end_reason == "error"
        and "policy_timeout_s=0.5" in record.error
        and record.attempt == 2
    )


@contextmanager
def a_server_of_another_kind(handler, **settings):
    """Stands in for servers that are not ours, or not well: a bare websocket with a handler of one
    line.
    """
    from websockets.sync.server import serve

    def quietly(connection):
        from websockets.exceptions import ConnectionClosed

        try:
            handler(connection)
        except ConnectionClosed:
            pass  # the client has heard enough

    server = serve(quietly, "127.0.0.1", 0, compression=None, **settings)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "greeting, words",
    [
        (b"\xc1\xc1", "not a policy server"),
        ("hello", "refuses: hello"),
        (pack([1, 2]), "not a policy server"),
        (pack({"lerobot_nb": {"protocol": 99}}), "version 99"),
        (pack({"lerobot_nb": {"protocol": 1}}), "not valid"),
        (pack({"lerobot_nb": 3}), "version 3"),
    ],
)
def test_metadata_that_make_no_sense(greeting, words):
    with a_server_of_another_kind(lambda connection: connection.send(greeting)) as address:
        with pytest.raises(PolicyLoadError, match=words):
            RemotePolicy(address, **QUICK)


@pytest.mark.parametrize(
    "answer, words",
    [
        (b"\xc1", "not a msgpack message"),
        (pack([1]), "answered with list"),
        (pack({"action": 1}), "answered with dict with .'action'."),
        (pack({"actions": [1, 2]}), "answered with dict"),
        (pack({"actions": np.zeros((0, 2))}), "answered with dict"),
        (pack({"actions": np.zeros((3, 5), np.float32)}), r"shape \(1, 3, 5\)"),
        ("oh no", "raised: oh no"),
        (
            pack({b"__ndarray__": True, b"data": b"1", b"dtype": "|O", b"shape": [1]}),
            "not a msgpack message",
        ),
        (pack({"actions": np.full((1, 2), np.nan)}), "non-finite"),
    ],
)
def test_answers_that_make_no_sense(tmp_path, answer, words):
    import re

    def handler(connection):
        connection.send(pack({}))
        for _ in connection:
            connection.send(answer)

    with a_server_of_another_kind(handler) as address:
        run = evaluate(
            synthetic_envs(n_tasks=1),
            address,
            EvalConfig(2, max_error_rate=1.0),
            output_dir=tmp_path / "run",
            policy_kwargs=QUICK,
        )
    assert [record.end_reason for record in run.records()] == ["error"] * 2
    assert all(re.search(words, record.error) for record in run.records()), run.records()[0].error


def test_another_server_that_refuses_large_messages(tmp_path):
    def handler(connection):
        connection.send(pack({}))
        for _ in connection:
            connection.send(pack({"actions": np.zeros((1, 2), np.float32)}))

    with a_server_of_another_kind(handler, max_size=2000) as address:
        run = evaluate(
            synthetic_envs(n_tasks=1, pixels=True),
            address,
            EvalConfig(1, max_error_rate=1.0),
            output_dir=tmp_path / "run",
            policy_kwargs=QUICK,
        )
    assert "larger than the other side accepts" in run.records()[0].error


def test_what_is_no_websocket():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        with pytest.raises(PolicyLoadError, match="not a policy server|not a websocket"):
            RemotePolicy(f"ws://127.0.0.1:{web.server_address[1]}", **QUICK)
        web.shutdown()
    with pytest.raises(PolicyLoadError, match="lerobot-nb serve"):
        RemotePolicy(f"ws://127.0.0.1:{free_port()}", connect_timeout_s=0.3)
    with pytest.raises(PolicyLoadError, match="not an address"):
        RemotePolicy("ws://", **QUICK)


# --- servers that go away -----------------------------------------------------------------------------------------------


def start_server(port, policy="synthetic:Noisy", kwargs='{"k": 2, "look_s": 0.01}'):
    """A server in a process of its own."""
    words = ["serve", "--policy", policy, "--policy_kwargs", kwargs, "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "lerobot_nb.cli", *words],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "serving" in process.stdout.readline()
    return process


@pytest.fixture
def expected(tmp_path):
    return evaluate(
        synthetic_envs(),
        Noisy(k=2),
        EvalConfig(6, batch_size=3, placement="driver"),
        output_dir=tmp_path / "expected",
    ).records()


class KillAfter:
    """A progress display that kills the server once some episodes have ended, and does what
    follows.
    """

    def __init__(self, process, n, then=lambda: None):
        self.process, self.n, self.then = process, n, then

    def start(self, *_):
        pass

    def log(self, _):
        pass

    def update(self, *_):
        self.n -= 1
        if self.n == 0:
            self.process.kill()
            self.process.wait()
            self.then()

    def close(self):
        pass


def test_a_server_that_is_killed_and_started_again_costs_nothing(tmp_path, expected):
    port, started = free_port(), []
    first = start_server(port)
    thread = threading.Thread(target=lambda: (time.sleep(0.5), started.append(start_server(port))))
    try:
        run = evaluate(
            synthetic_envs(),
            f"ws://127.0.0.1:{port}",
            EvalConfig(6, batch_size=3),
            output_dir=tmp_path / "run",
            progress=KillAfter(first, 5, thread.start),
            policy_kwargs={"reconnect_timeout_s": 60.0},
        )
    finally:
        thread.join()
        for process in started:
            process.terminate()
            assert process.wait(20) == 0  # SIGTERM is how a server is told to end
    assert_equal_records(run.records(), expected, but_for=["attempt"])
    assert {record.attempt for record in run.records()} == {1, 2} and run.status == "finished"


def test_a_server_that_does_not_come_back_ends_the_run_which_can_be_resumed(tmp_path, expected):
    port = free_port()
    address, kwargs = f"ws://127.0.0.1:{port}", {"reconnect_timeout_s": 0.5}
    with pytest.raises(PolicyUnavailable, match="did not come back"):
        evaluate(
            synthetic_envs(),
            address,
            EvalConfig(6, batch_size=3),
            output_dir=tmp_path / "run",
            progress=KillAfter(start_server(port), 5),
            policy_kwargs=kwargs,
        )
    manifest = json.loads((tmp_path / "run/run.json").read_text())
    assert manifest["status"] == "interrupted" and "did not come back" in manifest["reason"]
    assert len((tmp_path / "run/episodes.jsonl").read_text().splitlines()) >= 5
    process = start_server(port)
    try:
        run = evaluate(
            synthetic_envs(),
            address,
            EvalConfig(6, batch_size=3),
            output_dir=tmp_path / "run",
            resume=True,
            policy_kwargs=kwargs,
        )
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert_equal_records(run.records(), expected, but_for=["attempt"])


def test_another_policy_in_its_place_is_noticed(tmp_path):
    port, started = free_port(), []
    first = start_server(port)
    try:
        with pytest.raises(PolicyUnavailable, match="another policy"):
            evaluate(
                synthetic_envs(),
                f"ws://127.0.0.1:{port}",
                EvalConfig(6, batch_size=3),
                output_dir=tmp_path / "run",
                progress=KillAfter(
                    first, 3, lambda: started.append(start_server(port, kwargs='{"k": 3}'))
                ),
            )
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_the_command_line_evaluates_a_served_policy(tmp_path, task, capsys):
    """With the action space and the random numbers of the episode, which the server is told."""
    from lerobot_nb.cli import main

    words = [
        "eval",
        "--benchmark",
        "gym",
        "--task",
        task,
        "--n_episodes",
        "2",
        "--episode_length",
        "20",
        "--render",
        "none",
        "--progress",
        "none",
    ]
    assert (
        main(
            [
                *words,
                "--policy",
                f"ws://127.0.0.1:{free_port()}",
                "--policy_kwargs",
                '{"connect_timeout_s": 0.2}',
                "--output_dir",
                str(tmp_path / "nobody"),
            ]
        )
        == 2
    )
    assert "lerobot-nb serve" in capsys.readouterr().err and not (tmp_path / "nobody").exists()
    assert main([*words, "--policy", "random", "--output_dir", str(tmp_path / "here")]) == 0
    with PolicyServer(make_policy("random"), port=0) as server:
        assert (
            main([*words, "--policy", server.address, "--output_dir", str(tmp_path / "there")]) == 0
        )
    assert_equal_records(
        EvalRun.load(tmp_path / "there").records(), EvalRun.load(tmp_path / "here").records()
    )


def test_the_command_line_says_that_the_server_is_gone(tmp_path, capsys, monkeypatch):
    from lerobot_nb.cli import main

    process = start_server(port := free_port(), "random", "{}")
    monkeypatch.setattr(
        "lerobot_nb.evaluation.progress.make_progress", lambda kind: KillAfter(process, 1)
    )
    code = main(
        [
            "eval",
            "--benchmark",
            "gym",
            "--task",
            "CartPole-v1",
            "--n_episodes",
            "9",
            "--batch_size",
            "1",
            "--render",
            "none",
            "--policy",
            f"ws://127.0.0.1:{port}",
            "--policy_kwargs",
            '{"reconnect_timeout_s": 0.3}',
            "--output_dir",
            str(tmp_path / "run"),
        ]
    )
    said = capsys.readouterr().err
    assert (
        code == 1 and "did not come back" in said and "--resume" in said and "Traceback" not in said
    )


# --- openpi's own client ------------------------------------------------------------------------------------------------


def test_openpis_client_talks_to_this_server():
    client = pytest.importorskip(
        "openpi_client.websocket_client_policy",
        reason="openpi-client is not installed (make test-lerobot has it)",
    )
    with PolicyServer(Seeing(), port=0, token="s3cret") as server:
        policy = client.WebsocketClientPolicy("127.0.0.1", server.port, api_key="s3cret")
        assert policy.get_server_metadata()["lerobot_nb"]["name"] == "seeing"
        image = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
        answers = [
            policy.infer(
                {"observation/image": image, "observation/state": np.arange(3.0), "prompt": "do it"}
                | more
            )
            for more in ({}, {}, {"reset": True})
        ]
        assert [answer["actions"].shape for answer in answers] == [(3, 2)] * 3 and answers[0][
            "server_timing"
        ]["batch"] == 1
        with pytest.raises(RuntimeError, match="KeyError"):
            policy.infer({"observation/state": np.arange(3.0)})
        assert policy.infer(
            {"observation/image": image, "observation/state": np.arange(3.0), "prompt": ""}
        )["actions"].shape == (3, 2)


def test_a_server_with_openpis_own_messages(tmp_path):
    """The loop of openpi's server (metadata, then observation and answer), with openpi's packing."""
    messages = pytest.importorskip(
        "openpi_client.msgpack_numpy",
        reason="openpi-client is not installed (make test-lerobot has it)",
    )
    seen = []

    def handler(connection):
        packer = messages.Packer()
        connection.send(packer.pack({"config": "pi0_fake"}))
        for message in connection:
            seen.append(messages.unpackb(message))
            state = seen[-1]["observation/state"]
            connection.send(
                packer.pack(
                    {
                        "actions": np.tanh(
                            np.tile(state[:2], (5, 1)) + seen[-1]["observation/image"].mean() / 255
                        ),
                        "policy_timing": {"infer_ms": np.float64(1)},
                    }
                )
            )

    with a_server_of_another_kind(handler) as address:
        run = evaluate(
            synthetic_envs(n_tasks=1, pixels=True),
            address,
            EvalConfig(3, batch_size=2),
            output_dir=tmp_path / "run",
            policy_kwargs={"n_action_steps": 2},
        )
    assert [record.error for record in run.records()] == [None] * 3 and run.manifest["policy"][
        "served"
    ] == {"config": "pi0_fake"}
    assert (
        set(seen[0]) == {"observation/image", "observation/state", "prompt"}
        and seen[0]["prompt"] == "do task 0"
    )
    assert seen[0]["observation/image"].dtype == np.uint8 and seen[0][
        "observation/image"
    ].shape == (32, 48, 3)
    assert unpack(messages.packb({"x": np.arange(3)}))["x"].tolist() == [0, 1, 2]
