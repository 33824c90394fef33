"""Data-parallel training, on one machine or on several, and finding a TPU.

A `tf.distribute` strategy does the work: each replica computes the gradients of
its share of the batch, and all hold the same weights. Runs use a
`ReplicatedEstimator` like a TPUEstimator. Only those with several replicas, or
on a TPU, import this module.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api
from bertlib.hardware.replicas import Cluster, Replicas, without_tf_config
from bertlib.io.files import is_remote
from bertlib.settings.common import DeviceSettings

# Seconds that workers wait for each other before training starts.
_CONNECT_TIMEOUT = 600

# Seconds that a step may take. A worker waits in it for the others: for the
# slowest, and for the chief while it saves or evaluates.
_STEP_TIMEOUT = 7200


# TPUs


def find_tpu(flags: DeviceSettings, files: Mapping[str, str | None]):
  """Finds a TPU that answers and can read `files`; None for a `master`."""
  tpu_name, master = flags.tpu_name, flags.master
  named = tpu_name or master
  if not named:
    raise InputError(
      "--use_tpu: no TPU is named. Give --tpu_name=NAME or"
      " --tpu_name=grpc://HOST:PORT, or --tpu_name=local on a TPU VM"
    )
  # `files` are the paths that the TPU reads and writes, by flag.
  for flag, path in files.items():
    if path and not is_remote(path) and not _is_local(named):
      raise InputError(
        f"--{flag}={path}: is on this machine, where the TPU {named} cannot"
        " read it. Give a path in Cloud Storage, gs://BUCKET/..."
      )
  if not tpu_name:
    _check_answers(master)
    return None
  try:
    cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
      tpu_name, zone=flags.tpu_zone, project=flags.gcp_project
    )
    address = cluster.master()
  except Exception as error:  # network, missing library, credentials, ...
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise InputError(
      f"--tpu_name={tpu_name}: its address was not found in Google Cloud"
      f" ({reason}). Outside Google Cloud, or without google-api-python-client"
      " and credentials, give the address, grpc://HOST:PORT"
    ) from error
  _check_answers(address)
  return cluster


def _is_local(named: str) -> bool:
  """True if a TPU, by name or address, is in this machine."""
  hosts = r"(localhost|127\.0\.0\.1|\[::1\])"
  return named == "local" or bool(re.match(rf"\w+://{hosts}(:|$)", named))


def _check_answers(address: str) -> None:
  """Raises InputError if no TPU answers at an address or in this machine."""
  if address in ("", "local"):
    with tf.Session("", graph=tf.Graph()) as session:
      if any(d.device_type == "TPU" for d in session.list_devices()):
        return
    raise InputError(
      "--tpu_name=local: TensorFlow finds no TPU in this machine. Run this on a"
      " TPU VM, with the TensorFlow build for TPUs"
    )
  if not address.startswith("grpc://"):
    return
  try:
    url = urlsplit(address)
    socket.create_connection((url.hostname, url.port), timeout=5).close()
  except (OSError, ValueError, TypeError) as error:
    raise InputError(
      f"{address}: no TPU answers there ({error}). Check that the TPU is"
      " running, that the address has the form grpc://HOST:PORT, and that this"
      " machine may connect to it"
    ) from error


# Processes


def find_cluster(is_wanted: bool) -> Cluster | None:
  """Workers of the run, initializing no device; None for a single process."""
  cluster = read_cluster(os.environ)
  if cluster and not is_wanted:
    raise InputError(
      "TF_CONFIG lists several workers. Give --distribution=multi_worker to"
      " train with them, or --distribution=off to train on this one only"
    )
  if is_wanted and not cluster:
    raise InputError(
      "--distribution=multi_worker: there is only one worker. List several in"
      " TF_CONFIG, or start them by srun with several tasks"
    )
  return cluster


def read_cluster(environment: Mapping[str, str]) -> Cluster | None:
  """Cluster of `TF_CONFIG` or else Slurm; None for a single process."""
  if environment.get("TF_CONFIG"):
    cluster = _cluster_of_tf_config(environment["TF_CONFIG"])
  elif int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
    cluster = _cluster_of_slurm(environment)
  else:
    return None
  return cluster if len(cluster.addresses) > 1 else None


def _cluster_of_tf_config(text: str) -> Cluster:
  """Cluster of a `TF_CONFIG` in the format of TensorFlow 1 or 2."""
  try:
    config = json.loads(text)
    jobs = config.get("cluster") or {"worker": ["localhost:0"]}
    task = config.get("task") or {"type": next(iter(jobs)), "index": 0}
    others = sorted(set(jobs) - {"chief", "master", "worker"})
    if others:
      raise InputError(
        f"TF_CONFIG: has a job {others[0]!r}, but there are only workers and a"
        ' chief. List them under "worker", and at most one under "chief"'
      )
    # TensorFlow 1 called the chief "master".
    first = "chief" if "chief" in jobs else "master"
    named = [
      (job, index, address)
      for job in (first, "worker")
      for index, address in enumerate(jobs.get(job, []))
    ]
    tasks = [(job, index) for job, index, _ in named]
    own = tasks.index((task["type"], int(task["index"])))
    addresses = [address for _, _, address in named]
    for address in addresses:
      if not re.fullmatch(r"[^/\s]+:\d+", address):
        raise ValueError(address)
    if len(set(addresses)) < len(addresses):
      raise ValueError(addresses)
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    if isinstance(error, InputError):
      raise
    raise InputError(
      'TF_CONFIG: expected {"cluster": {"worker": ["HOST:PORT", ...]}, "task":'
      ' {"type": "worker", "index": 0}} with the task in the cluster, but found'
      f" {text}"
    ) from error
  return Cluster(addresses, own)


def _cluster_of_slurm(environment: Mapping[str, str]) -> Cluster:
  """Cluster of a Slurm step; TensorFlow's resolver reads `os.environ`."""
  num_tasks = int(environment["SLURM_STEP_NUM_TASKS"])
  # Slurm assigns the GPUs; these counts only give each task an address.
  resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
    gpus_per_node=num_tasks, gpus_per_task=1, auto_set_gpu=False
  )
  addresses = resolver.cluster_spec().job_tasks("worker")
  # The resolver's own index is wrong for hosts such as n9 and n10: it sorts
  # them by name, and Slurm by number.
  host = environment["SLURMD_NODENAME"]
  on_host = [
    index
    for index, address in enumerate(addresses)
    if address.rpartition(":")[0] == host
  ]
  return Cluster(addresses, on_host[int(environment["SLURM_LOCALID"])])


@terminal.on_stop_signals(terminal.stop)  # nothing is to be saved yet
def _join(replicas: Replicas, config: tf.ConfigProto) -> tf.distribute.Server:
  """Starts this worker's server and waits for those of all others."""
  cluster = replicas.cluster
  own = cluster.addresses[cluster.index]
  # Otherwise a call to a lost worker waits until it is back.
  os.environ.setdefault("GRPC_FAIL_FAST", "true")
  # A copy without the filters, by which the strategy hides the devices of other
  # workers, which `_check_devices` lists.
  config = tf.ConfigProto.FromString(config.SerializeToString())
  del config.device_filters[:]
  config.device_count[replicas.device_type] = replicas.num_local
  try:
    server = tf.distribute.Server(
      {"worker": list(cluster.addresses)},
      job_name="worker",
      task_index=cluster.index,
      config=config,
    )
  except tf.errors.OpError as error:
    raise InputError(
      f"{own}: the port cannot be opened; it may be in use. Give another one"
      " in TF_CONFIG"
    ) from error
  for address in cluster.addresses:
    _wait_for(address)
  _check_devices(replicas, server.target)
  return server


def _check_devices(replicas: Replicas, target: str) -> None:
  """Refuses workers with different numbers of devices."""
  # Without a time limit it would wait for a worker that is lost meanwhile.
  config = tf.ConfigProto(operation_timeout_in_ms=1000 * _CONNECT_TIMEOUT)
  try:
    with tf.Graph().as_default(), tf.Session(target, config=config) as session:
      devices = session.list_devices()
  except tf.errors.OpError as error:
    raise _lost_worker() from error
  for index, address in enumerate(replicas.cluster.addresses):
    num_devices = sum(
      device.device_type == replicas.device_type
      and f"/task:{index}/" in device.name
      for device in devices
    )
    if num_devices != replicas.num_local:
      raise InputError(
        f"{address}: the worker there has {num_devices} {replicas.device_type}"
        f" replicas, but this one has {replicas.num_local}. Give all workers"
        " the same --num_replicas"
      )


def _connect(address: str) -> None:
  """Connects to a worker once; OSError if it does not answer."""
  host, _, port = address.rpartition(":")
  socket.create_connection((host, int(port)), timeout=5).close()


def _wait_for(address: str) -> None:
  """Waits until a worker answers."""
  start, is_logged = time.monotonic(), False
  while True:
    try:
      _connect(address)
      return
    except OSError as error:
      waited = time.monotonic() - start
      if waited > _CONNECT_TIMEOUT:
        raise InputError(
          f"{address}: no worker answers there ({error.strerror or error})."
          " Start the same command on all machines of the cluster"
        ) from error
      if waited > 5 and not is_logged:
        logging.info("Waiting for the worker at %s", address)
        is_logged = True
    time.sleep(0.2)


# Strategies


def _local_strategy(num_replicas: int, on_gpu: bool = False):
  """Strategy for the replicas of this process, for graph mode."""
  kind = "gpu" if on_gpu else "cpu"
  devices = [f"/{kind}:{number}" for number in range(num_replicas)]
  # Sums in the same order each time, so that runs repeat bit for bit.
  exchange = tf.distribute.ReductionToOneDevice() if kind == "cpu" else None
  return tf.distribute.MirroredStrategy(devices, cross_device_ops=exchange)


def _worker_strategy(replicas: Replicas):
  """Strategy for the replicas of all processes, for graph mode."""
  cluster = replicas.cluster
  resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
    task_type="worker",
    task_id=cluster.index,
    num_accelerators={"GPU": replicas.num_local if replicas.on_gpu else 0},
    rpc_layer="grpc",
  )
  # In graph mode AUTO would send the gradients of GPUs through host memory.
  kinds = tf.distribute.experimental.CollectiveCommunication
  return tf.distribute.experimental.MultiWorkerMirroredStrategy(
    communication=kinds.NCCL if replicas.on_gpu else kinds.AUTO,
    cluster_resolver=resolver,
  )


def _session_config(replicas: Replicas) -> tf.ConfigProto:
  """Session config for the devices of this process."""
  config = tf.ConfigProto(allow_soft_placement=True)
  if not replicas.on_gpu:
    config.device_count["CPU"] = replicas.num_local
  return config


# The Estimator


class ReplicatedEstimator:
  """Estimator that splits each batch among replicas, as TPUEstimator does."""

  # All processes train. Only the chief evaluates and predicts, on its own
  # replicas.
  def __init__(
    self,
    model_fn,
    model_dir: str,
    replicas: Replicas,
    run_config: Mapping[str, Any],
    # Examples per step, of all replicas together; a multiple of their number.
    train_batch_size: int | None = None,
    # Examples per batch of this process's replicas.
    eval_batch_size: int | None = None,
    predict_batch_size: int | None = None,
  ):
    """Stores the settings; `model_fn` returns a `TPUEstimatorSpec`."""
    self.model_dir = model_dir
    # A strategy would run AutoGraph on the model_fn, which is graph code.
    self._model_fn = tf.autograph.experimental.do_not_convert(model_fn)
    self._replicas = replicas
    self._run_config = dict(run_config)
    self._train_batch_size = train_batch_size
    self._eval_batch_size = eval_batch_size
    self._predict_batch_size = predict_batch_size

  def train(self, input_fn, max_steps: int, hooks=(), saving_listeners=()):
    """Trains until `max_steps`; `saving_listeners` are for the chief alone."""
    cluster = self._replicas.cluster
    if cluster:
      hooks = [*hooks, _StopOnLostWorker(cluster.addresses)]
    # In graph mode the strategy starts no server of its own.
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
          "the loss is NaN or Inf; see the chief worker's log"
        ) from error
      except tf.errors.OpError as error:
        if not cluster or isinstance(error, _OWN_ERRORS):
          raise
        raise _lost_worker() from error

  def _training_estimator(self):
    """Estimator for this process's part in training."""
    replicas, cluster = self._replicas, self._replicas.cluster
    config = _session_config(replicas)
    settings = {"model_dir": self.model_dir, **self._run_config}
    if cluster:
      strategy = _worker_strategy(replicas)
      config = strategy.update_config_proto(config)
      config.operation_timeout_in_ms = 1000 * _STEP_TIMEOUT
      settings["master"] = _join(replicas, config).target
    else:
      strategy = _local_strategy(replicas.num_local, replicas.on_gpu)
    if not replicas.is_chief:
      # Event files could have the same name as the chief's.
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
    """Metrics by name, `global_step`, and `loss` as mean over batches."""
    mode = estimator_api.ModeKeys.EVAL
    with tf.Graph().as_default():
      model = self._build(mode, input_fn, self._eval_batch_size)
      metrics = {}
      if model.specs[0].eval_metrics:
        metric_fn, _ = model.specs[0].eval_metrics
        tensors = zip(*(spec.eval_metrics[1] for spec in model.specs))
        metrics = metric_fn(*map(model.join, tensors))
      losses = [spec.loss for spec in model.specs]
      metrics["loss"] = tf.metrics.mean(tf.add_n(losses) / len(losses))
      values = {name: value for name, (value, _) in metrics.items()}
      values["global_step"] = tf.train.get_global_step()
      updates = [update for _, update in metrics.values()]
      hooks = model.specs[0].evaluation_hooks  # the same for all replicas
      for hook in hooks:
        hook.join_replicas(model.join)
      done = 0
      with self._session(checkpoint_path, hooks) as session:
        # Until the end of the input if `steps` is None.
        while done != steps:
          try:
            session.run(updates)
          except tf.errors.OutOfRangeError:
            break
          done += 1
        return session.raw_session().run(values)

  def predict(self, input_fn, checkpoint_path: str | None = None):
    """Yields the predictions of each example by name, in order."""
    mode = estimator_api.ModeKeys.PREDICT
    with tf.Graph().as_default():
      model = self._build(mode, input_fn, self._predict_batch_size)
      predictions = {
        name: model.join([spec.predictions[name] for spec in model.specs])
        for name in model.specs[0].predictions
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

  def _build(self, mode, input_fn, batch_size: int) -> _ReplicatedModel:
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
        lambda _: _split_batches(input_fn(params), num_replicas)
      )
      strategy.run(build, args=batches.get_next())
    # The session initializes the iterators with the tables.
    tf.add_to_collection(
      tf.GraphKeys.TABLE_INITIALIZERS, tf.group(batches.initialize())
    )
    size, rows = sizes[0]
    return _ReplicatedModel(specs, size, rows * num_replicas)

  def _session(self, checkpoint_path: str | None, hooks=()):
    """Session for the current graph, with the weights of a checkpoint."""
    return tf.train.SingularMonitoredSession(
      hooks,
      config=_session_config(self._replicas),
      checkpoint_filename_with_path=(
        checkpoint_path or tf.train.latest_checkpoint(self.model_dir)
      ),
    )


def _split_batches(batches, num_replicas: int):
  """Dataset of (batch of a replica, int32 [] examples in the whole batch)."""

  def split_batch(batch):
    size = tf.shape(next(iter(batch.values())))[0]
    rows = -(-size // num_replicas)
    # A batch that does not divide evenly repeats its last example.
    index = tf.minimum(tf.range(rows * num_replicas), size - 1)
    index = tf.reshape(index, [num_replicas, rows])
    split = {name: tf.gather(tensor, index) for name, tensor in batch.items()}
    return tf.data.Dataset.from_tensor_slices(
      (split, tf.fill([num_replicas], size))
    )

  return batches.flat_map(split_batch).prefetch(tf.data.AUTOTUNE)


class _ReplicatedModel(NamedTuple):
  """Model on several replicas, each of which computes a part of the batch."""

  specs: Sequence[Any]  # of each replica
  size: Any  # int32 [], number of examples in the batch
  num_rows: Any  # int32 [], with the padding of the last part

  def join(self, parts: Sequence[Any]):
    """Concatenates the replicas' tensors and drops the padding."""
    with tf.device("/cpu:0"):
      joined = tf.concat(parts, axis=0)
      # A tensor may have several rows per example.
      return joined[: tf.shape(joined)[0] // self.num_rows * self.size]


# Errors of this process, not of a lost worker.
_OWN_ERRORS = (
  tf.errors.InvalidArgumentError,
  tf.errors.ResourceExhaustedError,
  tf.errors.NotFoundError,
  tf.errors.DataLossError,
)


class _StopOnLostWorker(tf.train.SessionRunHook):
  """Ends a run that would otherwise wait for a lost worker."""

  def __init__(self, addresses: Sequence[str], seconds: float = 5.0):
    self._addresses = addresses
    self._seconds = seconds
    self._has_session = False
    self._has_stepped = threading.Event()

  def after_create_session(self, session, coord):
    del session, coord
    # Estimator opens a second session after an error.
    if self._has_session:
      raise _lost_worker()
    self._has_session = True

  def begin(self):
    threading.Thread(target=self._watch, daemon=True).start()

  def after_run(self, run_context, run_values):
    del run_context, run_values
    self._has_stepped.set()

  def _watch(self) -> None:
    # Until the first step completes; afterwards calls to a lost worker fail.
    while not self._has_stepped.wait(self._seconds):
      try:
        for address in self._addresses:
          _connect(address)
      except OSError:
        if not self._has_stepped.is_set():
          # The main thread blocks in TensorFlow and cannot be interrupted.
          program = os.path.basename(sys.argv[0])
          print(f"{program}: error: {_lost_worker()}", file=sys.stderr)
          os._exit(1)


def _lost_worker() -> InputError:
  return InputError(
    "another worker was lost, so training stopped here too. Re-run the same"
    " command on all machines to resume from the last checkpoint"
  )


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
  """Hides a TensorFlow warning about the strategy's own input pipeline."""
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "To make it possible to preserve tf.data")
    yield
