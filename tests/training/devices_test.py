"""Tests of which devices and processes flags and environment name."""

import dataclasses
import json

import pytest

from bertlib.errors import InputError
from bertlib.settings.common import ComputeSettings, DeviceSettings
from bertlib.training import devices, distribution, tpu

pytestmark = pytest.mark.unit

SWITCHES = [{"use_tpu": True}, {"distribution": "tpu"}]
on_each_switch = pytest.mark.parametrize("switch", SWITCHES)


def name_cluster(monkeypatch, index):
  """Sets a TF_CONFIG of two workers."""
  config = {
    "cluster": {"worker": ["a:1", "b:2"]},
    "task": {"type": "worker", "index": index},
  }
  monkeypatch.setenv("TF_CONFIG", json.dumps(config))


@on_each_switch
def test_a_tpu_is_one_before_it_is_found_and_after(switch, monkeypatch):
  monkeypatch.setattr(tpu, "find_cluster", lambda *_: "the TPU")
  asked = DeviceSettings(**switch, tpu_name="local")
  found = devices.find(asked, trains=True)
  assert asked.on_tpu and found.on_tpu
  assert found == dataclasses.replace(asked, tpu_cluster="the TPU")
  assert found.is_chief


@on_each_switch
def test_a_tpu_computes_in_bfloat16_whenever_that_is_asked(switch):
  asked = ComputeSettings(precision="auto", xla="off")
  chosen = devices.choose(asked, DeviceSettings(**switch))
  assert chosen.precision == "bfloat16"
  with pytest.raises(InputError, match="--precision=float16"):
    devices.choose(
      ComputeSettings(precision="float16"), DeviceSettings(**switch)
    )


@on_each_switch
def test_a_tpu_is_no_matter_of_tf_config(switch, monkeypatch):
  name_cluster(monkeypatch, 1)
  monkeypatch.setattr(tpu, "find_cluster", lambda *_: "the TPU")
  asked = DeviceSettings(**switch, tpu_name="local")
  assert devices.find_cluster(asked, trains=True) is None
  assert devices.find(asked, trains=True).is_chief


@pytest.mark.parametrize("index", [0, 1])
def test_the_chief_is_the_first_of_tf_config(index, monkeypatch):
  name_cluster(monkeypatch, index)
  asked = DeviceSettings(distribution="multi_worker")
  found = devices.find(asked, trains=True)
  assert found.replicas.cluster == devices.find_cluster(asked, trains=True)
  assert found.is_chief == (index == 0)


def test_a_process_that_trains_alone_is_its_own_chief(monkeypatch):
  name_cluster(monkeypatch, 1)
  found = devices.find(DeviceSettings(distribution="off"), trains=True)
  assert found.is_chief and found.replicas is None


def test_replicas_are_on_the_gpus_that_were_found(monkeypatch):
  gpus = ["GPU 0", "GPU 1"]
  for found in (gpus, []):
    monkeypatch.setattr(
      devices.tf.config, "list_physical_devices", lambda _, found=found: found
    )
    replicas = devices.find(DeviceSettings(num_replicas=2)).replicas
    assert replicas == distribution.Replicas(2, on_gpu=bool(found))
