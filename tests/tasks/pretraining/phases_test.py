"""Tests of which phases are run, by which worker, and which are finished."""

import contextlib
import json
import os
import sys

import absl.flags
import pytest
from absl.testing import flagsaver

import run_pretraining
from bertlib.checkpoints import finding
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.settings.pretraining import PretrainingSettings
from bertlib.tasks.pretraining import phases
from bertlib.training import child_run, devices, heartbeat, tpu

pytestmark = pytest.mark.unit

STEPS = {"phase_1": 40, "phase_2": 12}


@pytest.fixture
def flag_files(tmp_path, monkeypatch):
  """The current folder, with two flag files."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("TF_CONFIG", raising=False)
  write_flags("")
  return tmp_path


def write_flags(more, second=None):
  """Writes the flag files, with `more` in both or `second` in the second."""
  for number, (steps, added) in enumerate(
    zip(STEPS.values(), (more, more if second is None else second)), start=1
  ):
    with open(f"{number}.flags", "w") as file:
      file.write(f"--num_train_steps={steps}\n{added}\n")


@pytest.fixture
def command(flag_files, monkeypatch):
  """Parses the settings of a command line, as `main` does."""
  known = absl.flags.FLAGS
  before = set(known)
  run_pretraining.define_flags()

  def settings(*more):
    argv = ["run_pretraining.py", "--do_train", "--output_dir=out"]
    argv += ["--bert_config_file=config.json", "--input_file=x"]
    argv.append("--phases=1.flags,2.flags")
    monkeypatch.setattr(sys, "argv", [*argv, *more])
    known(sys.argv)
    return option.from_flags(PretrainingSettings)

  with flagsaver.flagsaver():
    yield settings
  defined = absl.flags.FlagValues()
  for name in set(known) - before:
    if name == known[name].name:
      defined[name] = known[name]
  known.remove_flag_values(defined)
  known.unparse_flags()


@pytest.fixture
def trained(monkeypatch):
  """Steps by folder name; fake subprocesses train up to the last step."""
  steps, runs = {}, []

  def run(folder, flags):
    name = os.path.basename(folder)
    runs.append((name, [f for f in flags if f.startswith("--init_ch")]))
    steps[name] = max(steps.get(name, 0), STEPS[name])

  def last_checkpoint(folder):
    step = steps.get(os.path.basename(folder))
    return f"{folder}/model.ckpt-{step}" if step else None

  def steps_done(folder):
    return steps.get(os.path.basename(folder), 0)

  monkeypatch.setattr(child_run, "run", run)
  monkeypatch.setattr(finding, "last_checkpoint", last_checkpoint)
  monkeypatch.setattr(finding, "steps_done", steps_done)
  steps["runs"] = runs
  return steps


def run_all(settings):
  planned = phases.read_phases(settings)
  settings = phases.with_cluster(settings, planned)
  if settings.devices.is_chief:
    os.makedirs("out", exist_ok=True)
  phases.run_phases(settings, planned)


def test_each_phase_starts_from_the_weights_of_the_previous_one(
  command, trained
):
  run_all(command())
  assert trained["runs"] == [
    ("phase_1", []),
    ("phase_2", ["--init_checkpoint=out/phase_1/model.ckpt-40"]),
  ]


def run_names(trained):
  """Names of the phases run since the last call."""
  names = [name for name, _ in trained["runs"]]
  trained["runs"].clear()
  return names


def test_finished_phases_are_not_run(command, trained):
  run_all(command())
  run_names(trained)
  run_all(command())
  assert run_names(trained) == []


def test_phase_with_more_steps_is_run(command, trained, monkeypatch):
  run_all(command())
  run_names(trained)
  monkeypatch.setitem(STEPS, "phase_2", 20)
  write_flags("")
  run_all(command())
  assert run_names(trained) == ["phase_2"]


def test_phase_without_weights_is_run(command, trained):
  run_all(command())
  run_names(trained)
  del trained["phase_1"]
  run_all(command())
  assert run_names(trained) == ["phase_1"]


def test_phase_ended_by_early_stopping_is_finished(
  command, trained, monkeypatch
):
  run = child_run.run

  def stop_early(folder, flags):
    run(folder, flags)
    trained["phase_1"] = 13

  monkeypatch.setattr(child_run, "run", stop_early)
  run_all(command())
  run_names(trained)
  run_all(command())
  assert run_names(trained) == []


def test_phases_of_an_older_version_are_run_again(command, trained):
  run_all(command())
  run_names(trained)
  os.remove("out/phases.json")
  run_all(command())
  assert run_names(trained) == ["phase_1", "phase_2"]


@pytest.mark.parametrize("killed", ["phase_1", "phase_2"])
def test_failed_phase_is_not_finished(command, trained, monkeypatch, killed):
  run = child_run.run

  def fail(folder, flags):
    run(folder, flags)
    if os.path.basename(folder) == killed:  # fails after the last step
      raise InputError(f"{folder}: the run failed")

  with monkeypatch.context() as patch:
    patch.setattr(child_run, "run", fail)
    with pytest.raises(InputError, match="the run failed"):
      run_all(command())
  run_names(trained)
  run_all(command())
  assert run_names(trained)[0] == killed


def test_receipts_do_not_decide_what_is_run(command, trained):
  run_all(command())
  run_names(trained)
  for name in STEPS:
    os.makedirs(f"out/{name}")
    with open(f"out/{name}/run.json", "w") as file:
      file.write("none")
  run_all(command())
  assert run_names(trained) == []


@pytest.mark.parametrize(
  "content", ["", "[]", '{"ended": [{"folder": "phase_1"}]}']
)
def test_malformed_state_is_an_input_error(command, trained, content):
  os.makedirs("out")
  with open("out/phases.json", "w") as file:
    file.write(content)
  with pytest.raises(InputError, match=r"^out/phases\.json: .*Remove it"):
    run_all(command())


# Several workers


def name_cluster(monkeypatch, index):
  config = {
    "cluster": {"worker": ["a:1", "b:2"]},
    "task": {"type": "worker", "index": index},
  }
  monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_flag_file_of_a_phase_selects_its_cluster(command, monkeypatch):
  name_cluster(monkeypatch, 1)
  write_flags("--distribution=multi_worker")
  settings = command()
  planned = phases.read_phases(settings)
  assert [phase.cluster.index for phase in planned] == [1, 1]
  assert not phases.with_cluster(settings, planned).devices.is_chief


def test_command_line_selects_the_cluster_of_all_phases(command, monkeypatch):
  name_cluster(monkeypatch, 0)
  settings = command("--distribution=multi_worker")
  planned = phases.read_phases(settings)
  assert phases.with_cluster(settings, planned).devices.is_chief


def test_phases_of_a_single_process_have_no_cluster(command, monkeypatch):
  name_cluster(monkeypatch, 1)
  write_flags("--distribution=off")
  settings = command()
  planned = phases.read_phases(settings)
  assert [phase.cluster for phase in planned] == [None, None]
  assert phases.with_cluster(settings, planned).devices.is_chief


def test_phase_without_distribution_refuses_a_cluster(command, monkeypatch):
  name_cluster(monkeypatch, 0)
  write_flags("--distribution=multi_worker", second="")
  with pytest.raises(InputError, match=r"^2\.flags: TF_CONFIG lists several"):
    phases.read_phases(command())


@pytest.mark.parametrize("switch", ["--use_tpu", "--distribution=tpu"])
def test_only_the_phases_connect_to_the_tpu(
  command, trained, monkeypatch, switch
):
  def refuse(*_):
    raise AssertionError("a TPU serves one process at a time")

  monkeypatch.setattr(devices, "find", refuse)
  monkeypatch.setattr(tpu, "find_cluster", refuse)
  name_cluster(monkeypatch, 0)
  run_all(command(switch, "--tpu_name=local"))
  assert run_names(trained) == ["phase_1", "phase_2"]


def fake_chief(settings, monkeypatch, trained):
  """Finishes the phase as the chief would whenever a worker waits for it."""
  waited = []

  class Watch:
    def __init__(self, folder):
      self._folder = folder

    def wait_until(self, condition):
      assert not condition()
      name = f"phase_{len(waited) + 1}"
      waited.append(name)
      trained[name] = STEPS[name]
      planned = phases.read_phases(settings)
      os.makedirs(self._folder, exist_ok=True)
      phases._record_finished(self._folder, planned[len(waited) - 1])
      assert condition()

  monkeypatch.setattr(heartbeat, "Watch", Watch)
  return waited


def test_worker_waits_for_the_end_of_each_phase(command, trained, monkeypatch):
  name_cluster(monkeypatch, 1)
  settings = command("--distribution=multi_worker")
  waited = fake_chief(settings, monkeypatch, trained)
  run_all(settings)
  assert run_names(trained) == waited == ["phase_1", "phase_2"]


def test_only_the_chief_runs_a_phase_without_a_cluster(
  command, trained, monkeypatch
):
  name_cluster(monkeypatch, 1)
  write_flags("--distribution=multi_worker", second="--distribution=off")
  settings = command()
  waited = fake_chief(settings, monkeypatch, trained)
  run_all(settings)
  assert waited == ["phase_1", "phase_2"]
  assert run_names(trained) == ["phase_1"]


@pytest.mark.parametrize("index", [0, 1])
def test_only_the_chief_writes_heartbeats(command, trained, monkeypatch, index):
  name_cluster(monkeypatch, index)
  settings = command("--distribution=multi_worker")
  fake_chief(settings, monkeypatch, trained)
  folders = []

  @contextlib.contextmanager
  def beat(folder):
    folders.append(folder)
    yield

  monkeypatch.setattr(heartbeat, "beat", beat)
  run_all(settings)
  assert folders == (["out"] if index == 0 else [])
