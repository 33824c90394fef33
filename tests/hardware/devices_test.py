"""Tests of the devices and workers that flags and environment select."""

import json
import os
import sys

import pytest
import tensorflow.compat.v1 as tf
from parametrize import parametrize

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.hardware import devices, distribution
from bertlib.hardware.devices import Devices
from bertlib.hardware.replicas import Cluster, Replicas
from bertlib.settings.common import ComputeSettings, DeviceSettings
from bertlib.tasks.classification.settings import ClassifierSettings

pytestmark = pytest.mark.unit

on_each_switch = parametrize(
  "switch", {"use_tpu": True}, {"distribution": "tpu"}
)
WHEEL = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def name_cluster(monkeypatch, index):
  task = {"type": "worker", "index": index}
  config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": task}
  monkeypatch.setenv("TF_CONFIG", json.dumps(config))


@on_each_switch
def test_on_tpu_is_true_before_and_after_the_tpu_is_found(switch, monkeypatch):
  name_cluster(monkeypatch, 1)  # which a TPU ignores
  monkeypatch.setattr(distribution, "find_tpu", lambda *_: "the TPU")
  settings = DeviceSettings(**switch, tpu_name="local")
  found = devices.find(settings)
  assert settings.on_tpu and found.on_tpu
  assert found == Devices(settings, tpu_cluster="the TPU")
  assert found.is_chief


@on_each_switch
@parametrize("recorded", None, {"precision": "float16"})
def test_auto_precision_on_a_tpu_is_bfloat16(switch, recorded):
  settings = ComputeSettings(precision="auto", xla="off")
  found = Devices(DeviceSettings(**switch))
  assert devices.choose(settings, found, recorded).precision == "bfloat16"


@parametrize("text", "", "{}", '{"cluster": {"worker": ["a:1"]}}')
def test_a_single_worker_needs_no_flag(monkeypatch, text):
  monkeypatch.setenv("TF_CONFIG", text)
  assert devices.find(DeviceSettings()).replicas.cluster is None


@parametrize("kind", None, "mirrored")
def test_several_workers_need_a_flag(monkeypatch, kind):
  name_cluster(monkeypatch, 0)
  with pytest.raises(InputError, match=r"^TF_CONFIG lists several workers"):
    devices.find(DeviceSettings(distribution=kind))


@parametrize(
  "index, flags, problem",
  (0, {"num_replicas": 2}, "without GPUs each worker has one replica"),
  (None, {}, "there is only one worker"),
)
def test_workers_that_cannot_be_are_refused(monkeypatch, index, flags, problem):
  monkeypatch.delenv("TF_CONFIG", raising=False)
  if index is not None:
    name_cluster(monkeypatch, index)
  with pytest.raises(InputError, match=problem):
    devices.find(DeviceSettings(distribution="multi_worker", **flags))


@pytest.fixture
def build(monkeypatch):
  """Sets what TensorFlow was built for, and the GPU of the machine."""

  def set_code(built_for, capability):
    info = {"is_cuda_build": True, "cuda_compute_capabilities": built_for}
    details = {"device_name": "GPU Z", "compute_capability": capability}
    present = {key: value for key, value in info.items() if value is not None}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: present)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["GPU"])
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "get_device_details", lambda _: details)

  devices.gpus_without_code.cache_clear()
  yield set_code
  devices.gpus_without_code.cache_clear()


@parametrize(
  "built_for, capability, has_code",
  (WHEEL, (7, 5), True),
  (WHEEL, (8, 6), True),
  (WHEEL, (9, 0), True),
  (WHEEL, (10, 0), False),
  (WHEEL, (12, 0), False),
  (["sm_89"], (8, 6), False),
  (["compute_120"], (12, 1), True),
  (["sm_90a", "12.0"], (12, 0), True),
  (None, (9, 0), True),
  (None, None, True),
)
def test_gpus_without_code_are_found(built_for, capability, has_code, build):
  build(built_for, capability)
  assert (devices.gpus_without_code() == ()) == has_code


@parametrize(
  "log, has_code",
  ("W gpu] TensorFlow was not built with CUDA kernel binaries", False),
  ("I gpu] Created device", True),
)
def test_log_shows_missing_code(log, has_code, build, monkeypatch, tmp_path):
  python = tmp_path / "python"
  python.write_text(f"#!/bin/sh\necho '{log}' >&2\n")
  python.chmod(0o755)
  monkeypatch.setattr(sys, "executable", str(python))
  build(None, (12, 0))
  assert (devices.gpus_without_code() == ()) == has_code


def test_a_gpu_without_code_is_named_and_xla_off(build, monkeypatch, caplog):
  monkeypatch.setattr(tf, "Session", None)  # XLA is not tried
  build(WHEEL, (12, 0))
  devices.find(DeviceSettings(distribution="off"))
  settings = ComputeSettings(precision="float32", xla="auto")
  assert devices.choose(settings, Devices(DeviceSettings())).xla == "off"
  shown = f"GPU Z (compute capability 12.0): TensorFlow {tf.__version__} has no"
  assert shown in caplog.text


def test_xla_is_off_if_it_cannot_compile(build, monkeypatch, caplog):
  def fail(*_):
    raise tf.errors.InternalError(None, None, "No ptxas is available")

  build(WHEEL, (9, 0))
  monkeypatch.setattr(tf.Session, "run", fail)
  settings = ComputeSettings(precision="float32", xla="auto")
  assert devices.choose(settings, Devices(DeviceSettings())).xla == "off"
  (message,) = caplog.messages
  assert "tensorflow[and-cuda]" in message and "No ptxas" in message


@parametrize("index", 0, 1)
def test_chief_is_the_first_worker_of_tf_config(index, monkeypatch):
  name_cluster(monkeypatch, index)
  settings = DeviceSettings(distribution="multi_worker")
  found = devices.find(settings)
  assert found.replicas.cluster == distribution.read_cluster(os.environ)
  assert found.is_chief == (index == 0)
  alone = devices.find(DeviceSettings(distribution="off"))
  assert alone.is_chief and alone.replicas.count == 1


@parametrize(
  "seeds, before, after",
  (0, {}, {}),
  (2, {}, {GROWTH: "true"}),
  (2, {GROWTH: "false"}, {GROWTH: "false"}),
)
def test_runs_of_several_seeds_share_gpus(monkeypatch, seeds, before, after):
  environment = before.copy()
  monkeypatch.setattr(os, "environ", environment)
  devices.find_and_choose(option.make(ClassifierSettings, seeds=seeds))
  assert environment == after


@parametrize("gpus", ["GPU 0", "GPU 1"], [])
def test_replicas_are_on_gpus_if_there_are_any(monkeypatch, gpus):
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: gpus)
  replicas = devices.find(DeviceSettings(num_replicas=2)).replicas
  assert replicas == Replicas(2, on_gpu=bool(gpus))


@parametrize(
  "devices, batch_size, sharing",
  ({}, 96, 1),
  ({"replicas": Replicas(2, on_gpu=True)}, 48, 1),
  ({"replicas": Replicas(2)}, 48, 2),
  ({"replicas": Replicas(1, Cluster(["a:1", "b:1", "c:1"], 0))}, 32, 1),
  ({"flags": DeviceSettings(use_tpu=True, num_tpu_cores=8)}, 12, 1),
)
def test_the_share_of_a_replica(devices, batch_size, sharing):
  devices = Devices(**{"flags": DeviceSettings()} | devices)
  assert devices.share_of(96) == batch_size
  assert devices.replicas_per_memory == sharing


def test_num_threads_is_what_tensorflow_reads(monkeypatch):
  names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
  for name in names:
    monkeypatch.setenv(name, "7")
  for given, expected in (({}, "7"), ({"num_threads": 3}, "3")):
    devices.find(DeviceSettings(**given))
    assert [os.environ[name] for name in names] == [expected] * 2
