"""Tests of the doctor's checks of steps, disk, memory and time."""

import dataclasses

import pytest

import modeling
import optimization
from bertlib.compute import FastCompute
from bertlib.reporting import training_checks
from bertlib.reporting.doctor import Lengths
from bertlib.settings import option
from bertlib.settings.classifier import ClassifierSettings
from bertlib.settings.common import DeviceSettings
from bertlib.training import memory_plan
from bertlib.training.distribution import Replicas
from bertlib.training.task import Run, Task

pytestmark = pytest.mark.unit

CONFIG = modeling.BertConfig(30522)


class MemoryOnly:
  """A doctor that runs only the memory check."""

  def check(self, name, function, *arguments, after=()):
    del after
    if name == "memory":
      return function(*arguments)
    return (FastCompute(), optimization.StepOptions())


@pytest.mark.parametrize(
  ("devices", "batch_size", "num_sharing"),
  [
    ({}, 64, 1),
    ({"replicas": Replicas(4, on_gpu=True)}, 16, 1),
    ({"replicas": Replicas(4)}, 16, 4),
  ],
)
def test_memory_check_uses_the_batch_of_a_replica(
  monkeypatch, devices, batch_size, num_sharing
):
  settings = option.make(
    ClassifierSettings, do_train=True, train_batch_size=64, max_seq_length=128
  )
  settings = dataclasses.replace(settings, devices=DeviceSettings(**devices))
  task = Task("a_script", None, {}, ["loss"], num_output_positions=1)
  run = Run(settings, task, CONFIG, None, None, None)
  checked = []
  monkeypatch.setattr(
    training_checks, "check_memory", lambda size, _: checked.append(size)
  )
  training_checks.check_training(MemoryOnly(), run, Lengths(100, 50.0))
  one = memory_plan.step_bytes(CONFIG, batch_size, 128, num_output_positions=1)
  assert checked == [num_sharing * one]
