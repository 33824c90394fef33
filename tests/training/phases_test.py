"""Which phases are run, by whom, and which have ended."""

import contextlib
import json
import os
import sys

import absl.flags
import pytest
from absl.testing import flagsaver

import run_pretraining
from bertlib.checkpoints import finding
from bertlib.errors import InputError
from bertlib.settings import option
from bertlib.settings.pretraining import PretrainingSettings
from bertlib.training import child_run, devices, heartbeat, phases, tpu

pytestmark = pytest.mark.unit

STEPS = {"phase_1": 40, "phase_2": 12}


@pytest.fixture
def place(tmp_path, monkeypatch):
  """A folder with two files of flags; it is the current one."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("TF_CONFIG", raising=False)
  write_flags("")
  return tmp_path


def write_flags(more, second=None):
  for number, (steps, own) in enumerate(
    zip(STEPS.values(), (more, more if second is None else second)), start=1
  ):
    with open(f"{number}.flags", "w") as file:
      file.write(f"--num_train_steps={steps}\n{own}\n")


@pytest.fixture
def command(place, monkeypatch):
  """Makes the settings of a command line, as `main` does."""
  known = absl.flags.FLAGS
  before = set(known)
  run_pretraining.define_flags()

  def settings(*more):
    argv = ["run_pretraining.py", "--do_train", "--output_dir=out"]
    argv += ["--bert_config_file=config.json", "--phases=1.flags,2.flags"]
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
  """Steps that folders have; what runs there adds its own."""
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


def carry_out(settings):
  planned = phases.read_phases(settings)
  settings = phases.with_cluster(settings, planned)
  if settings.devices.is_chief:
    os.makedirs("out", exist_ok=True)
  phases.run_phases(settings, planned)


def test_each_phase_begins_with_the_weights_of_the_one_before(command, trained):
  carry_out(command())
  assert trained["runs"] == [
    ("phase_1", []),
    ("phase_2", ["--init_checkpoint=out/phase_1/model.ckpt-40"]),
  ]


def run_names(trained):
  """Which phases were run since this was last asked."""
  names = [name for name, _ in trained["runs"]]
  trained["runs"].clear()
  return names


def test_phases_that_have_ended_are_not_run(command, trained):
  carry_out(command())
  run_names(trained)
  carry_out(command())
  assert run_names(trained) == []


def test_a_phase_that_is_to_be_longer_is_run(command, trained, monkeypatch):
  carry_out(command())
  run_names(trained)
  monkeypatch.setitem(STEPS, "phase_2", 20)
  write_flags("")
  carry_out(command())
  assert run_names(trained) == ["phase_2"]


def test_a_phase_whose_weights_are_gone_is_run(command, trained):
  carry_out(command())
  run_names(trained)
  del trained["phase_1"]
  carry_out(command())
  assert run_names(trained) == ["phase_1"]


def test_a_phase_that_stopped_early_has_ended(command, trained, monkeypatch):
  run = child_run.run

  def lose_patience(folder, flags):
    run(folder, flags)
    trained["phase_1"] = 13

  monkeypatch.setattr(child_run, "run", lose_patience)
  carry_out(command())
  run_names(trained)
  carry_out(command())
  assert run_names(trained) == []


def test_phases_of_an_older_version_are_looked_at_again(command, trained):
  carry_out(command())
  run_names(trained)
  os.remove("out/phases.json")
  carry_out(command())
  assert run_names(trained) == ["phase_1", "phase_2"]


@pytest.mark.parametrize("killed", ["phase_1", "phase_2"])
def test_a_phase_that_failed_has_not_ended(
  command, trained, monkeypatch, killed
):
  run = child_run.run

  def fail(folder, flags):
    run(folder, flags)
    if os.path.basename(folder) == killed:  # all steps are done, not the rest
      raise InputError(f"{folder}: the run failed")

  with monkeypatch.context() as patch:
    patch.setattr(child_run, "run", fail)
    with pytest.raises(InputError, match="the run failed"):
      carry_out(command())
  run_names(trained)
  carry_out(command())
  assert run_names(trained)[0] == killed


def test_no_receipt_decides_what_is_run(command, trained):
  carry_out(command())
  run_names(trained)
  for name in STEPS:
    os.makedirs(f"out/{name}")
    with open(f"out/{name}/run.json", "w") as file:
      file.write("none")
  carry_out(command())
  assert run_names(trained) == []


@pytest.mark.parametrize(
  "content", ["", "[]", '{"ended": [{"folder": "phase_1"}]}']
)
def test_a_damaged_state_costs_a_line(command, trained, content):
  os.makedirs("out")
  with open("out/phases.json", "w") as file:
    file.write(content)
  with pytest.raises(InputError, match=r"^out/phases\.json: .*Remove it"):
    carry_out(command())


# Several processes


def name_cluster(monkeypatch, index):
  config = {
    "cluster": {"worker": ["a:1", "b:2"]},
    "task": {"type": "worker", "index": index},
  }
  monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_each_phase_says_which_processes_train_it(command, monkeypatch):
  name_cluster(monkeypatch, 1)
  write_flags("--distribution=multi_worker")
  settings = command()
  planned = phases.read_phases(settings)
  assert [phase.cluster.index for phase in planned] == [1, 1]
  assert not phases.with_cluster(settings, planned).devices.is_chief


def test_the_command_line_says_it_too(command, monkeypatch):
  name_cluster(monkeypatch, 0)
  settings = command("--distribution=multi_worker")
  planned = phases.read_phases(settings)
  assert phases.with_cluster(settings, planned).devices.is_chief


def test_phases_that_each_process_trains_alone_have_no_cluster(
  command, monkeypatch
):
  name_cluster(monkeypatch, 1)
  write_flags("--distribution=off")
  settings = command()
  planned = phases.read_phases(settings)
  assert [phase.cluster for phase in planned] == [None, None]
  assert phases.with_cluster(settings, planned).devices.is_chief


def test_a_cluster_that_a_phase_does_not_speak_of_is_refused(
  command, monkeypatch
):
  name_cluster(monkeypatch, 0)
  write_flags("--distribution=multi_worker", second="")
  with pytest.raises(InputError, match=r"^2\.flags: TF_CONFIG names processes"):
    phases.read_phases(command())


@pytest.mark.parametrize("switch", ["--use_tpu", "--distribution=tpu"])
def test_the_tpu_is_left_to_the_phases(command, trained, monkeypatch, switch):
  def refuse(*_):
    raise AssertionError("a TPU serves one process at a time")

  monkeypatch.setattr(devices, "find", refuse)
  monkeypatch.setattr(tpu, "find_cluster", refuse)
  name_cluster(monkeypatch, 0)
  carry_out(command(switch, "--tpu_name=local"))
  assert run_names(trained) == ["phase_1", "phase_2"]


def ending_phases(settings, monkeypatch, trained):
  """Has the chief do its part whenever a worker waits for it."""
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
      phases._note_end(self._folder, planned[len(waited) - 1])
      assert condition()

  monkeypatch.setattr(heartbeat, "Watch", Watch)
  return waited


def test_a_worker_waits_for_the_end_of_each_phase(
  command, trained, monkeypatch
):
  name_cluster(monkeypatch, 1)
  settings = command("--distribution=multi_worker")
  waited = ending_phases(settings, monkeypatch, trained)
  carry_out(settings)
  assert run_names(trained) == waited == ["phase_1", "phase_2"]


def test_a_phase_of_one_process_is_the_chief_s(command, trained, monkeypatch):
  name_cluster(monkeypatch, 1)
  write_flags("--distribution=multi_worker", second="--distribution=off")
  settings = command()
  waited = ending_phases(settings, monkeypatch, trained)
  carry_out(settings)
  assert waited == ["phase_1", "phase_2"]
  assert run_names(trained) == ["phase_1"]


@pytest.mark.parametrize("index", [0, 1])
def test_the_chief_alone_shows_that_it_is_alive(
  command, trained, monkeypatch, index
):
  name_cluster(monkeypatch, index)
  settings = command("--distribution=multi_worker")
  ending_phases(settings, monkeypatch, trained)
  shown = []

  @contextlib.contextmanager
  def beat(folder):
    shown.append(folder)
    yield

  monkeypatch.setattr(heartbeat, "beat", beat)
  carry_out(settings)
  assert shown == (["out"] if index == 0 else [])
