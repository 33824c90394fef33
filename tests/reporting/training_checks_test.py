"""Tests of the doctor's checks of steps, disk, memory and time."""

import re

import pytest

import modeling
from bertlib.checkpoints.task_record import TaskRecord
from bertlib.cli import option
from bertlib.cli.steps import Steps
from bertlib.compute import precision
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import tf_records
from bertlib.hardware.devices import Devices
from bertlib.hardware.distribution import Replicas
from bertlib.reporting import training_checks
from bertlib.reporting.doctor import LengthSummary
from bertlib.settings.classifier import ClassifierSettings
from bertlib.training import memory_plan
from bertlib.training.task import Run, Task
from optimization import StepOptions

pytestmark = pytest.mark.unit

CONFIG = modeling.BertConfig(30522)


TASK = Task(
  TaskRecord("a_script"),
  None,
  tf_records.token_layout(128),
  ["loss"],
  num_output_positions=1,
  loss_bytes=10**8,
)


@pytest.fixture
def estimate(monkeypatch):
  """Estimates training on 100 examples of 50 tokens each."""
  monkeypatch.setattr(
    precision, "product_rates", lambda *_, **__: {"float32": 1e9}
  )

  def estimate(devices, **flags):
    settings = option.make(ClassifierSettings, do_train=True, **flags)
    devices = Devices(settings.devices, **devices)
    run = Run(settings, devices, TASK, CONFIG, None, None, None)
    plan, lengths = (FastCompute(), StepOptions()), LengthSummary(100, 50.0)
    training_checks.estimate_training(Steps(True), run, plan, lengths)

  return estimate


@pytest.mark.parametrize(
  ("devices", "batch_size", "num_sharing"),
  [
    ({}, 64, 1),
    ({"replicas": Replicas(4, on_gpu=True)}, 16, 1),
    ({"replicas": Replicas(4)}, 16, 4),
  ],
)
def test_memory_check_uses_the_batch_of_a_replica(
  monkeypatch, tmp_path, estimate, devices, batch_size, num_sharing
):
  checked = []
  monkeypatch.setattr(training_checks, "available_memory", lambda: 10**10)
  monkeypatch.setattr(
    training_checks, "check_memory", lambda *sizes: checked.append(sizes)
  )
  flags = {"train_batch_size": 64, "max_seq_length": 128}
  estimate(devices, output_dir=str(tmp_path), **flags)
  shape = memory_plan.StepShape(128, num_output_positions=1)
  one = memory_plan.step_bytes(CONFIG, batch_size, shape)
  assert checked == [(num_sharing * (one + 10**8), 10**10, num_sharing * 10**8)]


def test_disk_and_time_are_of_the_runs_of_all_seeds(monkeypatch, estimate, log):
  checked = []
  monkeypatch.setattr(
    training_checks, "check_disk", lambda _, size: checked.append(size)
  )
  for seeds in (0, 3):
    estimate({}, seeds=seeds)
  assert checked[1] == 3 * checked[0]
  log = [line for line in log if line.startswith("time:")]
  one, three = (float(re.search(r"for (\S+) operations", m)[1]) for m in log)
  assert three == pytest.approx(3 * one, rel=0.01)
  assert "of training, for" in log[0]
  assert "of training with 3 seeds, for" in log[1]


@pytest.mark.parametrize(
  ("loss_bytes", "advice"),
  [(10**9, ". Give --memory_gb=4,"), (5 * 10**9, "a smaller --train_batch")],
)
def test_too_little_memory_names_what_helps(caplog, loss_bytes, advice):
  training_checks.check_memory(6 * 10**9, 4 * 10**9, loss_bytes)
  (message,) = caplog.messages
  assert message.startswith("memory: needs up to 6.0 GB, only 4.0 GB free")
  assert advice in message
