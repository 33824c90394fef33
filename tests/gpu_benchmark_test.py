"""Tests of `benchmarks.gpu` at toy size, on a CPU."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import gpu, gpu_checks, results

TOY = SimpleNamespace(toy=True, **gpu_checks.TOY)


@pytest.mark.train
@pytest.mark.parametrize(
  "check",
  [
    gpu_checks.cpu_numbers,
    gpu_checks.xla,
    gpu_checks.unpadding,
    gpu_checks.defaults,
    gpu_checks.optimizer_on_cpu,
    gpu_checks.float16_run,
  ],
)
def test_check_passes_at_toy_size(check):
  answer = next(check(TOY))
  assert answer["passed"] is True, answer["description"]


@pytest.mark.train
def test_other_losses_fail_a_check(monkeypatch):
  losses = iter([[1.0, 0.9], [1.0, 0.901]])
  monkeypatch.setattr(
    gpu_checks,
    "_train",
    lambda *args, **more: gpu_checks.Trained(next(losses), 1.0, 0, None),
  )
  assert next(gpu_checks.unpadding(TOY))["passed"] is False


@pytest.mark.unit
def test_share_of_the_peak_is_that_of_the_products():
  work = {"layers": 12, "hidden": 768, "heads": 12, "seq_length": 128}
  seconds = {"ours": [0.2, 0.1, 0.3], "transformers": [0.4, 0.3, 0.2]}
  found = gpu.summary(
    {**work, "is_training": True, "batch_size": 100}, seconds, peak=1e15
  )
  assert found["sequences_per_second"] == 500
  assert found["ratio"] == pytest.approx(1.5)
  # 85 million weights in products, 6 operations each and token; and attention.
  operations = 100 * 128 * (6 * 84.9e6 + 12 * 12 * 128 * 768)
  share = operations / 0.2 / 1e15
  assert found["share_of_peak"] == pytest.approx(share, rel=0.01)


@pytest.mark.slow
def test_command_checks_measures_and_writes_json(tmp_path):
  path = tmp_path / "gpu.jsonl"
  done = subprocess.run(
    [
      *(sys.executable, "-m", "benchmarks.gpu", "--toy", f"--json_file={path}"),
      *("--checks=planned_memory", "--passes=1", "--steps=1", "--peer_python="),
    ],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert "not run planned_memory" in done.stdout
  checks, speed = results.read(path)
  assert [c["passed"] for c in checks.more["checks"]] == [None]
  assert speed.values["a step"]["ours"][0] > 0
  assert speed.more["model"] == "toy"
  assert speed.more["share_of_peak"] > 0
