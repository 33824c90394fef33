"""Replicas of a model that train together, on one machine or on many.

A strategy of `tf.distribute` does the work: each replica takes its share of a
batch's examples, gradients are added up, and the weights stay the same in all.
What is particular to one strategy or another is here; to the scripts a
`ReplicatedEstimator` is like a TPUEstimator, and gives the same results.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib import estimator_api
from bertlib.checkpoints import finding
from bertlib.data import input_pipeline
from bertlib.errors import InputError

# How long workers wait for each other before training, in seconds.
_PATIENCE = 600


# Processes


class Cluster(NamedTuple):
  """The processes that train together.

  Attributes:
    addresses: HOST:PORT of each. The first is the chief, which alone writes
      checkpoints and results.
    index: which of them this process is.
  """

  addresses: Sequence[str]
  index: int

  @property
  def is_chief(self) -> bool:
    """Whether this process is the first."""
    return self.index == 0


def read_cluster(environment: Mapping[str, str]) -> Cluster | None:
  """The processes that the environment tells of.

  Args:
    environment: its variables. `TF_CONFIG` goes before those of Slurm.

  Returns:
    The `Cluster`; None where there is one process alone.

  Raises:
    InputError: `TF_CONFIG` cannot be made sense of.
  """
  if environment.get("TF_CONFIG"):
    cluster = _of_tf_config(environment["TF_CONFIG"])
  elif int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
    cluster = _of_slurm(environment)
  else:
    return None
  return cluster if len(cluster.addresses) > 1 else None


def _of_tf_config(text: str) -> Cluster:
  """The processes of a `TF_CONFIG`, of the form of TensorFlow 1 or 2."""
  try:
    config = json.loads(text)
    jobs = config.get("cluster") or {"worker": ["localhost:0"]}
    task = config.get("task") or {"type": next(iter(jobs)), "index": 0}
    others = sorted(set(jobs) - {"chief", "master", "worker"})
    if others:
      raise InputError(
        f"TF_CONFIG: has a job {others[0]!r}, but all processes train alike:"
        ' name them as "worker", and maybe one of them as "chief"'
      )
    first = "chief" if "chief" in jobs else "master"
    named = [
      (job, index, address)
      for job in (first, "worker")
      for index, address in enumerate(jobs.get(job, []))
    ]
    tasks = [(job, index) for job, index, _ in named]
    own = tasks.index((task["type"], int(task["index"])))
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    if isinstance(error, InputError):
      raise
    raise InputError(
      'TF_CONFIG: is not of the form {"cluster": {"worker": ["HOST:PORT",'
      ' ...]}, "task": {"type": "worker", "index": 0}} with the task in the'
      f" cluster: {text}"
    ) from error
  return Cluster([address for _, _, address in named], own)


def _of_slurm(environment: Mapping[str, str]) -> Cluster:
  """The processes of a Slurm step, of which TensorFlow asks `os.environ`."""
  num_tasks = int(environment["SLURM_STEP_NUM_TASKS"])
  # Which GPUs a task sees is left to Slurm; there are enough for an address.
  resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
    gpus_per_node=num_tasks, gpus_per_task=1, auto_set_gpu=False
  )
  addresses = resolver.cluster_spec().job_tasks("worker")
  _, index = resolver.get_task_info()
  return Cluster(addresses, index)


def _join(cluster: Cluster, config: tf.ConfigProto) -> tf.distribute.Server:
  """Starts to serve the other processes, and waits until all of them do.

  Args:
    cluster: the processes.
    config: of the session.

  Returns:
    The server, which runs as long as the process does.

  Raises:
    InputError: an address is taken, or one is silent for ten minutes.
  """
  own = cluster.addresses[cluster.index]
  # Else a question to a lost process would wait for it to come back.
  os.environ.setdefault("GRPC_FAIL_FAST", "true")
  config = tf.ConfigProto.FromString(config.SerializeToString())
  del config.device_filters[:]
  try:
    server = tf.distribute.Server(
      {"worker": list(cluster.addresses)},
      job_name="worker",
      task_index=cluster.index,
      config=config,
    )
  except tf.errors.OpError as error:
    raise InputError(
      f"{own}: cannot be served at; is its port taken? Name another in"
      " TF_CONFIG"
    ) from error
  for address in cluster.addresses:
    _wait_for(address)
  return server


def _connect(address: str) -> None:
  """Asks whether a process answers; OSError if it does not."""
  host, _, port = address.rpartition(":")
  socket.create_connection((host, int(port)), timeout=5).close()


def _wait_for(address: str) -> None:
  """Waits until a process answers."""
  start, told = time.monotonic(), False
  while True:
    try:
      _connect(address)
      return
    except OSError as error:
      waited = time.monotonic() - start
      if waited > _PATIENCE:
        raise InputError(
          f"{address}: no worker answers there ({error.strerror or error})."
          " Start the same command on all machines of the cluster"
        ) from error
      if waited > 5 and not told:
        logging.info("Waiting for the worker at %s", address)
        told = True
    time.sleep(0.2)


# Strategies


class Replicas(NamedTuple):
  """Where the replicas of a run are.

  Attributes:
    num_local: those of this process, on its GPUs or on its CPU.
    cluster: the processes; None for this one alone.
    on_gpu: whether they are on GPUs.
  """

  num_local: int
  cluster: Cluster | None = None
  on_gpu: bool = False

  @property
  def num_processes(self) -> int:
    """How many processes there are."""
    return len(self.cluster.addresses) if self.cluster else 1

  @property
  def count(self) -> int:
    """How many replicas there are in all."""
    return self.num_local * self.num_processes

  @property
  def is_chief(self) -> bool:
    """Whether this process writes checkpoints and results."""
    return not self.cluster or self.cluster.is_chief

  @property
  def shard(self) -> input_pipeline.Shard:
    """The part of each batch that this process reads."""
    index = self.cluster.index if self.cluster else 0
    return input_pipeline.Shard(index, self.num_processes, self.num_local)


def writes_summaries() -> bool:
  """Whether this process writes for TensorBoard; asked within a strategy."""
  return tf.distribute.get_strategy().extended.should_save_summary


def _local_strategy(num_replicas: int, on_gpu: bool = False):
  """Of replicas in this process alone, for a graph."""
  kind = "gpu" if on_gpu else "cpu"
  devices = [f"/{kind}:{number}" for number in range(num_replicas)]
  # Added up in the same order each time.
  exchange = tf.distribute.ReductionToOneDevice() if kind == "cpu" else None
  return tf.distribute.MirroredStrategy(devices, cross_device_ops=exchange)


def _worker_strategy(replicas: Replicas):
  """Of the replicas of all processes, for a graph."""
  cluster = replicas.cluster
  resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
    task_type="worker",
    task_id=cluster.index,
    num_accelerators={"GPU": replicas.num_local if replicas.on_gpu else 0},
    rpc_layer="grpc",
  )
  return tf.distribute.experimental.MultiWorkerMirroredStrategy(
    cluster_resolver=resolver
  )


def _session_config(replicas: Replicas) -> tf.ConfigProto:
  """That of a session on the devices of this process."""
  config = tf.ConfigProto(allow_soft_placement=True)
  if not replicas.on_gpu:
    config.device_count["CPU"] = replicas.num_local
  return config


# The Estimator


class ReplicatedEstimator:
  """An Estimator whose batches are shared by replicas; as TPUEstimator is.

  All processes train. Scoring and prediction are the chief's, with the
  replicas that it has itself.

  Attributes:
    model_dir: folder of its checkpoints, which all processes read.
  """

  def __init__(
    self,
    model_fn,
    model_dir: str,
    replicas: Replicas,
    run_config: Mapping[str, Any],
    train_batch_size: int | None = None,
    eval_batch_size: int | None = None,
    predict_batch_size: int | None = None,
  ):
    """Takes what it is made of.

    Args:
      model_fn: gives a `TPUEstimatorSpec`.
      model_dir: folder of its checkpoints.
      replicas: where the replicas are.
      run_config: further arguments of a `RunConfig`.
      train_batch_size: examples a step, of all replicas together.
      eval_batch_size: likewise, of scoring.
      predict_batch_size: likewise, of prediction.
    """
    self.model_dir = model_dir
    # A strategy would convert what it runs, which is made of graph code.
    self._model_fn = tf.autograph.experimental.do_not_convert(model_fn)
    self._replicas = replicas
    self._run_config = dict(run_config)
    self._train_batch_size = train_batch_size
    self._eval_batch_size = eval_batch_size
    self._predict_batch_size = predict_batch_size

  def train(self, input_fn, max_steps: int, hooks=(), saving_listeners=()):
    """Trains up to a step; does nothing where that has been reached.

    Args:
      input_fn: of `params`, gives the batches of this process's shard.
      max_steps: the step.
      hooks: of each process's session.
      saving_listeners: told of checkpoints; the chief's alone, which saves.

    Raises:
      InputError: the replicas cannot share a batch evenly, or another process
        was lost.
    """
    if self._train_batch_size % self._replicas.count:
      raise InputError(
        f"--train_batch_size={self._train_batch_size} cannot be shared by"
        f" {self._replicas.count} replicas; give a multiple of that"
      )
    if finding.steps_done(self.model_dir) >= max_steps:
      return  # for which no other process has to be there
    cluster = self._replicas.cluster
    if cluster:
      hooks = [*hooks, _StopOnLostWorker(cluster.addresses)]
    # In a graph no strategy starts a server.
    with tf.Graph().as_default(), _without_warnings():
      estimator = self._training_estimator()
      try:
        estimator.train(
          lambda: input_fn(
            {
              "batch_size": self._train_batch_size,
              "shard": self._replicas.shard,
            }
          ),
          hooks=list(hooks),
          max_steps=max_steps,
          saving_listeners=list(saving_listeners),
        )
      except estimator_api.NanLossDuringTrainingError as error:
        raise InputError(
          "the loss is no number; the first worker tells of it"
        ) from error
      except tf.errors.OpError as error:
        if not cluster or isinstance(error, _OWN_FAULTS):
          raise
        raise _lost_worker() from error

  def _training_estimator(self):
    """An Estimator of this process's part in training."""
    replicas, cluster = self._replicas, self._replicas.cluster
    config = _session_config(replicas)
    settings = {"model_dir": self.model_dir, **self._run_config}
    if cluster:
      strategy = _worker_strategy(replicas)
      config = strategy.update_config_proto(config)
      settings["master"] = _join(cluster, config).target
    else:
      strategy = _local_strategy(replicas.num_local, replicas.on_gpu)
    if not replicas.is_chief:
      # Nor events, whose file might have the name of the chief's.
      settings |= {
        "save_checkpoints_steps": None,
        "save_summary_steps": 0,
        "log_step_count_steps": None,
      }
    with without_tf_config():
      run_config = estimator_api.RunConfig(
        train_distribute=strategy, session_config=config, **settings
      )

    def model_fn(features, mode, params, config):
      spec = self._model_fn(features, None, mode, params, config)
      return spec.as_estimator_spec()

    return estimator_api.Estimator(
      model_fn, config=run_config, params={"batch_size": self._train_batch_size}
    )

  def evaluate(
    self, input_fn, steps: int | None = None, checkpoint_path: str | None = None
  ) -> dict[str, Any]:
    """Scores the model.

    Args:
      input_fn: of `params`.
      steps: most batches that are taken; None for all.
      checkpoint_path: of the weights; None for the folder's last.

    Returns:
      The metrics of the model by name, `global_step`, and `loss`, a mean over
      batches.
    """
    mode = estimator_api.ModeKeys.EVAL
    with tf.Graph().as_default():
      whole = self._build(mode, input_fn, self._eval_batch_size)
      metrics = {}
      if whole.specs[0].eval_metrics:
        metric_fn, _ = whole.specs[0].eval_metrics
        tensors = zip(*(spec.eval_metrics[1] for spec in whole.specs))
        metrics = metric_fn(*map(whole.join, tensors))
      losses = [spec.loss for spec in whole.specs]
      metrics["loss"] = tf.metrics.mean(tf.add_n(losses) / len(losses))
      values = {name: value for name, (value, _) in metrics.items()}
      values["global_step"] = tf.train.get_global_step()
      updates = [update for _, update in metrics.values()]
      hooks = whole.specs[0].evaluation_hooks  # the same for all replicas
      for hook in hooks:
        hook.join_replicas(whole.join)
      done = 0
      with self._session(checkpoint_path, hooks) as session:
        while done != steps:
          try:
            session.run(updates)
          except tf.errors.OutOfRangeError:
            break
          done += 1
        return session.raw_session().run(values)

  def predict(self, input_fn, checkpoint_path: str | None = None):
    """Predicts.

    Args:
      input_fn: of `params`.
      checkpoint_path: of the weights; None for the folder's last.

    Yields:
      The predictions of each example by name, in order.
    """
    mode = estimator_api.ModeKeys.PREDICT
    with tf.Graph().as_default():
      whole = self._build(mode, input_fn, self._predict_batch_size)
      predictions = {
        name: whole.join([spec.predictions[name] for spec in whole.specs])
        for name in whole.specs[0].predictions
      }
      session = self._session(checkpoint_path)
    with session:
      while True:
        try:
          batch = session.run(predictions)
        except tf.errors.OutOfRangeError:
          return
        for row in zip(*batch.values()):
          yield dict(zip(batch, row))

  def _build(self, mode, input_fn, batch_size: int) -> _Whole:
    """Builds the model on each of this process's replicas."""
    num_replicas = self._replicas.num_local
    params = {"batch_size": batch_size}
    with without_tf_config():
      run_config = estimator_api.EstimatorRunConfig(model_dir=self.model_dir)
    strategy = _local_strategy(num_replicas, self._replicas.on_gpu)
    specs, sizes = [], []

    @tf.autograph.experimental.do_not_convert
    def build(part, size):
      sizes.append((size, tf.shape(tf.nest.flatten(part)[0])[0]))
      specs.append(self._model_fn(part, None, mode, params, run_config))

    with strategy.scope(), _without_warnings():
      tf.train.get_or_create_global_step()
      batches = strategy.make_input_fn_iterator(
        lambda _: input_pipeline.split_batches(input_fn(params), num_replicas)
      )
      strategy.run(build, args=batches.get_next())
    tf.add_to_collection(
      tf.GraphKeys.TABLE_INITIALIZERS, tf.group(batches.initialize())
    )
    size, rows = sizes[0]
    return _Whole(specs, size, rows * num_replicas)

  def _session(self, checkpoint_path: str | None, hooks=()):
    """A session with the weights of a checkpoint, for the current graph."""
    return tf.train.SingularMonitoredSession(
      hooks,
      config=_session_config(self._replicas),
      checkpoint_filename_with_path=(
        checkpoint_path or finding.last_checkpoint(self.model_dir)
      ),
    )


class _Whole(NamedTuple):
  """A model on several replicas, each of which has a part of a batch.

  Attributes:
    specs: what `model_fn` gave, of each replica.
    size: int32 [], examples of the batch.
    num_rows: int32 [], the same with those that fill the last part up.
  """

  specs: Sequence[Any]
  size: Any
  num_rows: Any

  def join(self, parts: Sequence[Any]):
    """A tensor of the whole batch, from those of its parts.

    Args:
      parts: [k * rows of a part, ...].

    Returns:
      [k * size, ...].
    """
    with tf.device("/cpu:0"):
      joined = tf.concat(parts, axis=0)
      return joined[: tf.shape(joined)[0] // self.num_rows * self.size]


# Errors that say nothing of other processes.
_OWN_FAULTS = (
  tf.errors.InvalidArgumentError,
  tf.errors.ResourceExhaustedError,
  tf.errors.NotFoundError,
  tf.errors.DataLossError,
)


class _StopOnLostWorker(tf.train.SessionRunHook):
  """Ends a run that would otherwise wait for a lost worker.

  Up to the end of the first step, in which workers wait to be asked, by looking
  whether the others are there; then by refusing a second session.
  """

  def __init__(self, addresses: Sequence[str], seconds: float = 5.0):
    self._addresses = addresses
    self._seconds = seconds
    self._has_begun = False
    self._has_stepped = threading.Event()

  def after_create_session(self, session, coord):
    del session, coord
    if self._has_begun:
      raise _lost_worker()
    self._has_begun = True

  def begin(self):
    threading.Thread(target=self._watch, daemon=True).start()

  def after_run(self, run_context, run_values):
    del run_context, run_values
    self._has_stepped.set()

  def _watch(self) -> None:
    while not self._has_stepped.wait(self._seconds):
      try:
        for address in self._addresses:
          _connect(address)
      except OSError:
        if not self._has_stepped.is_set():
          # The main thread waits in TensorFlow, where nothing reaches it.
          program = os.path.basename(sys.argv[0])
          print(f"{program}: error: {_lost_worker()}", file=sys.stderr)
          os._exit(1)


def _lost_worker() -> InputError:
  return InputError(
    "another worker was lost, so training stopped here too. Start the same"
    " command on all machines: it goes on from the last checkpoint"
  )


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
  """Keeps back what TensorFlow says of a strategy's own input pipelines."""
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "To make it possible to preserve tf.data")
    yield


@contextlib.contextmanager
def without_tf_config() -> Iterator[None]:
  """Hides the cluster from RunConfig, which knows only parameter servers."""
  text = os.environ.pop("TF_CONFIG", None)
  try:
    yield
  finally:
    if text is not None:
      os.environ["TF_CONFIG"] = text
