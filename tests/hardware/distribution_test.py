"""Tests of data-parallel training, compared with a single replica."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_pretraining
from parametrize import parametrize

import modeling
import run_pretraining
from bertlib.cli.errors import InputError
from bertlib.hardware import distribution
from bertlib.hardware.replicas import Cluster, Replicas
from bertlib.training import hooks, train_step

pytestmark = pytest.mark.unit

ADDRESSES = ["a:1", "b:2", "c:3"]
NUM_STEPS = 20
TWO_CPUS = tf.ConfigProto(device_count={"CPU": 2})
LONG = ["--num_train_steps=60", "--save_checkpoints_steps=20"]


def tf_config(cluster, kind, index):
  task = {"type": kind, "index": index}
  return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


@parametrize(
  "cluster, kind, index, expected",
  ({"worker": ADDRESSES}, "worker", 0, 0),
  ({"worker": ADDRESSES}, "worker", 2, 2),
  ({"chief": ADDRESSES[:1], "worker": ADDRESSES[1:]}, "chief", 0, 0),
  ({"worker": ADDRESSES[1:], "chief": ADDRESSES[:1]}, "worker", 1, 2),
  ({"master": ADDRESSES[:1], "worker": ADDRESSES[1:]}, "worker", 0, 1),
)
def test_cluster_is_read_from_tf_config(cluster, kind, index, expected):
  found = distribution.read_cluster(tf_config(cluster, kind, index))
  assert found == Cluster(ADDRESSES, expected)


def test_the_chief_may_omit_the_task():
  text = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}})
  assert distribution.read_cluster({"TF_CONFIG": text}).index == 0


@parametrize(
  "cluster",
  {"worker": ["a:1", "b:1"], "ps": ["c:1"]},
  {"worker": ["a:1", "b"]},
  {"worker": ["a:1", "http://b:1"]},
  {"worker": ["a:1", None]},
  {"worker": ["a:1", "a:1"]},
  {"worker": "a:1,b:1"},
)
def test_malformed_clusters_are_refused(cluster):
  with pytest.raises(InputError, match=r"^TF_CONFIG"):
    distribution.read_cluster(tf_config(cluster, "worker", 0))


@parametrize(
  "hosts, nodes", ("n[01-02]", ["n01", "n02"]), ("n[9-10]", ["n9", "n10"])
)
def test_every_task_of_slurm_finds_its_own_address(hosts, nodes, monkeypatch):
  monkeypatch.delenv("TF_CONFIG", raising=False)
  found = []
  for task in range(4):
    for name, value in {
      "SLURM_STEP_NUM_TASKS": "4",
      "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
      "SLURM_STEP_NODELIST": hosts,
      "SLURM_PROCID": str(task),
      "SLURM_LOCALID": str(task % 2),
      "SLURMD_NODENAME": nodes[task // 2],
    }.items():
      monkeypatch.setenv(name, value)
    found.append(distribution.read_cluster(os.environ))
  (addresses,) = {tuple(cluster.addresses) for cluster in found}
  own = [addresses[cluster.index] for cluster in found]
  assert sorted(own) == sorted(addresses)
  expected = [nodes[task // 2] for task in range(4)]
  assert [address.partition(":")[0] for address in own] == expected


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
  """A folder with records, and configs with dropout and without."""
  workspace = tmp_path_factory.mktemp("replicas")
  tiny_pretraining.write_data(workspace)
  config = tiny_pretraining.CONFIG.to_dict()
  assert config["hidden_dropout_prob"] > 0
  probs = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
  (workspace / "plain.json").write_text(json.dumps(config | probs))
  return workspace


def flags(workspace, output_dir, *more, config="plain"):
  values = {"num_train_steps": NUM_STEPS, "xla": "off"}
  values["bert_config_file"] = workspace / f"{config}.json"
  values["output_dir"] = workspace / output_dir
  return [*tiny_pretraining.flags(workspace, **values), *more]


@pytest.fixture(scope="module")
def main():
  with commands.in_process(run_pretraining) as main:
    yield main


@pytest.fixture(scope="module")
def train(workspace, main):
  """Trains, or resumes training, with further flags; returns the folder."""

  def run(name, *more, **options):
    main("--do_train", *flags(workspace, name, *more, **options))
    return workspace / name

  return run


@pytest.fixture(scope="module")
def single(train):
  return train("single")


def assert_same_training(*folders):
  """Asserts equal losses of the first and the last step, which are logged."""
  found = [run_outputs.read_scalars(folder)["loss"] for folder in folders]
  found = [[values[step] for step in (1, NUM_STEPS)] for values in found]
  np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.train
def test_replicas_have_the_same_losses_as_one(train, single):
  assert_same_training(train("mirrored", "--num_replicas=2"), single)


@pytest.mark.slow
def test_replicas_match_one_replica_with_options(train, workspace):
  more = ["--gradient_accumulation_steps=2", "--remask", "--optimizer=lamb"]
  more += [f"--vocab_file={workspace}/vocab.txt"]
  folders = [
    train(f"options_{count}", *more, f"--num_replicas={count}")
    for count in (1, 2)
  ]
  assert_same_training(*folders)


def run_by_two_replicas(function):
  with tf.Graph().as_default():
    strategy = distribution._local_strategy(2)
    with strategy.scope():
      results = strategy.experimental_local_results(strategy.run(function))
    with tf.Session(config=TWO_CPUS) as session:
      session.run(tf.global_variables_initializer())
      return session.run(results)


@pytest.mark.graph
def test_replicas_have_different_dropout_masks():
  """Otherwise, replicas with the same examples would have the same masks."""

  def draw():
    return modeling.dropout(
      tf.ones([64]), 0.5, (7, train_step.replica_number())
    )

  first, second = run_by_two_replicas(draw)
  assert (first != second).any()


@pytest.mark.graph
def test_replicas_share_the_loss_scale():
  assert run_by_two_replicas(lambda: train_step.LossScale(8.0).value) == (8, 8)


@pytest.mark.graph
def test_all_replicas_of_a_process_sum_its_stop_requests():
  """A worker that sums those of some replicas would wait for the others."""
  own = hooks.StopRequest()
  own.ends_early = True
  hook = hooks.SharedStop(own, hooks.StopRequest())
  with tf.Graph().as_default():
    strategy = distribution._local_strategy(2)
    with strategy.scope():
      strategy.run(hooks.share_stop_requests)
    hook.begin()
    asked = hook.before_run(None)
    with tf.Session(config=TWO_CPUS) as session:
      sums = session.run(asked.fetches, asked.feed_dict)
  assert [total.tolist() for total in sums] == [[0, 2], [0, 2]]


@parametrize("on_gpu", True, False)
def test_gpus_of_several_workers_communicate_by_nccl(monkeypatch, on_gpu):
  asked = {}
  experimental = tf.distribute.experimental
  kinds = experimental.CollectiveCommunication
  monkeypatch.setattr(
    experimental, "MultiWorkerMirroredStrategy", lambda **a: asked.update(a)
  )
  cluster = Cluster(["a:1", "b:1"], 0)
  distribution._worker_strategy(Replicas(2, cluster, on_gpu))
  assert asked["communication"] == (kinds.NCCL if on_gpu else kinds.AUTO)


@pytest.mark.train
def test_replicas_evaluate_and_predict_like_one(workspace, single, main):
  text = "the cat [MASK] on mat\nthe dog\nis good\n"
  (workspace / "lines.txt").write_text(text)
  scores, predictions = [], []
  for count in (1, 3):
    main(
      "--do_eval",
      "--do_predict",
      *flags(workspace, single.name, f"--num_replicas={count}"),
      f"--eval_input_file={workspace}/held_out.tfrecord",
      f"--predict_file={workspace}/lines.txt",
      f"--vocab_file={workspace}/vocab.txt",
      "--predict_batch_size=4",
    )
    results = run_outputs.read_numbers(single / "eval_results.txt")
    results.pop("loss")  # mean over batches, which are divided differently
    scores.append(results)
    lines = (single / "predictions.jsonl").read_text().splitlines()
    predictions.append([json.loads(line) for line in lines])
  assert scores[1] == pytest.approx(scores[0], rel=1e-5)
  assert len(predictions[0]) == len(predictions[1])
  for one, other in zip(*predictions):
    assert one["text"] == other["text"]
    found = [line.get("pseudo_perplexity", 0.0) for line in (one, other)]
    np.testing.assert_allclose(*found, rtol=1e-4)


def free_addresses(number):
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
    for bound in sockets:
      bound.bind(("localhost", 0))
    return [f"localhost:{bound.getsockname()[1]}" for bound in sockets]


# A worker that joins the others while signals are requests to stop.
_JOIN = """
import sys
_, root, num_local, index, *addresses = sys.argv
del sys.argv[1:]  # a command takes flags only
sys.path.insert(0, root)
from bertlib.cli import app
from bertlib.hardware import distribution
from bertlib.hardware.replicas import Cluster, Replicas
from bertlib.training import hooks

def main(_):
  cluster = Cluster(addresses, int(index))
  replicas = Replicas(int(num_local), cluster)
  config = distribution._session_config(replicas)
  with hooks.StopRequest():
    print("joining", flush=True)
    distribution._join(replicas, config)
    print("joined", flush=True)
    sys.stdin.read()

app.parse_flags()
app.run(main)
"""


@contextlib.contextmanager
def running(programs, environments):
  """Processes of Python, by their arguments and environment variables."""
  quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
  processes = [
    subprocess.Popen(
      [sys.executable, *map(str, program)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=os.environ | environment | quiet,
    )
    for program, environment in zip(programs, environments)
  ]
  try:
    yield processes
  finally:
    for process in processes:
      process.kill()
      process.communicate()


def joining(addresses, *nums_local):
  """Processes that join a cluster, each with a number of replicas."""
  programs = [
    ["-c", _JOIN, commands.ROOT, num_local, index, *addresses]
    for index, num_local in enumerate(nums_local)
  ]
  return running(programs, [{}] * len(programs))


@pytest.mark.process
def test_a_worker_that_waits_for_the_others_is_stopped_by_sigterm():
  addresses = free_addresses(2)
  with joining(addresses, 1) as (process,):
    assert process.stdout.readline() == "joining\n"
    host, port = addresses[0].split(":")
    commands.wait_until(lambda: is_open(host, int(port)), process)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
  assert process.returncode == 128 + signal.SIGTERM
  assert log.splitlines()[-1].endswith("stopped by SIGTERM")


def is_open(host, port):
  with socket.socket() as client:
    return client.connect_ex((host, port)) == 0


@pytest.mark.process
def test_workers_with_different_numbers_of_devices_are_refused():
  with joining(free_addresses(2), 2, 1) as processes:
    statuses, logs = zip(*wait(processes))
  assert statuses == (1, 1), logs
  # The other worker may find that this one is lost.
  assert "the same --num_replicas" in "".join(logs)


def succeed(number, arguments):
  """Runs workers that must succeed; returns their logs."""
  with workers(number, arguments) as processes:
    statuses, logs = zip(*wait(processes))
  assert not any(statuses), logs
  return logs


def workers(number, arguments):
  cluster = {"worker": free_addresses(number)}
  script = os.path.join(commands.ROOT, "run_pretraining.py")
  command = [script, "--do_train", "--distribution=multi_worker", *arguments]
  environments = [tf_config(cluster, "worker", n) for n in range(number)]
  return running([command] * number, environments)


def wait(processes):
  """Returns status and log of each process when all have ended."""
  logs = [process.communicate(timeout=600)[1] for process in processes]
  return list(zip((p.returncode for p in processes), logs))


@pytest.mark.slow
def test_workers_stop_together_at_early_stopping(workspace):
  folder = workspace / "patience"
  more = ["--learning_rate=0", "--eval_steps=4", "--patience=2"]
  more += ["--save_checkpoints_steps=4"]
  more += ["--do_eval", f"--eval_input_file={workspace}/held_out.tfrecord"]
  succeed(2, flags(workspace, folder, *more))
  # The third evaluation ends it; the other worker learns of it a step later.
  assert run_outputs.steps_done(folder) == 13
  assert (folder / "eval_results.txt").exists()


@pytest.fixture(scope="module")
def replicas(train):
  """Output folder of a run of two replicas in this process, with dropout."""
  return train("replicas", "--num_replicas=2", *LONG, config="bert_config")


@pytest.mark.slow  # a killed worker is like it
def test_run_stopped_at_one_worker_resumes(workspace, replicas):
  folder = workspace / "stopped"
  arguments = flags(workspace, folder, *LONG, config="bert_config")
  with workers(2, arguments) as processes:
    commands.wait_until((folder / "model.ckpt-20.index").exists, *processes)
    processes[1].send_signal(signal.SIGTERM)
    for status, log in wait(processes):
      assert status == 128 + signal.SIGTERM, log
      assert "Stopped by SIGTERM at step" in log.splitlines()[-1]
  assert 20 <= run_outputs.steps_done(folder) < 60
  succeed(2, arguments)
  run_outputs.assert_same_variables(folder, replicas)


@pytest.mark.process
@parametrize("lost", pytest.param(0, marks=pytest.mark.slow), 1)
def test_run_with_a_killed_worker_resumes(workspace, replicas, lost):
  folder = workspace / f"lost_{lost}"
  arguments = flags(workspace, folder, *LONG, config="bert_config")
  with workers(2, arguments) as processes:
    commands.wait_until(lambda: run_outputs.steps_done(folder), *processes)
    processes[lost].send_signal(signal.SIGKILL)
    results = wait(processes)
  assert results[lost][0] == -signal.SIGKILL
  status, log = results[1 - lost]
  assert status == 1 and "another worker was lost" in log.splitlines()[-1], log
  assert 0 < run_outputs.steps_done(folder) < 60
  assert "from step 0 to" not in "".join(succeed(2, arguments))
  run_outputs.assert_same_variables(folder, replicas)
