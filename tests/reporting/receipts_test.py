"""Tests of receipts."""

import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
import types

import commands
import pytest
import run_folders
from parametrize import parametrize
from refused import assert_refused

from bertlib.cli import command_line, option
from bertlib.cli.absl import flags
from bertlib.io import receipt_file
from bertlib.reporting import receipts
from bertlib.tasks.classification.settings import ClassifierSettings

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def environment(monkeypatch):
  """Spares finding versions."""
  monkeypatch.setattr(receipts, "versions", dict)


def begin(files=(), command_line=(), **flags):
  """Begins a run with some flags; returns its receipt."""
  settings = option.make(ClassifierSettings, **flags)
  given = dataclasses.replace(settings.receipt, command_line=command_line)
  settings = dataclasses.replace(settings, receipt=given)
  receipt = receipts.Receipt("run_classifier.py", settings)
  receipt.start(settings, files)
  return receipt


@pytest.fixture
def start(tmp_path):
  def start(command_line=(), do_train=True):
    return begin((), command_line, output_dir=str(tmp_path), do_train=do_train)

  return start


def finish(receipt):
  """Ends a run; returns the content of its receipt."""
  receipt.finish({"eval_accuracy": 0.5})
  return next(receipt_file.read_all(os.path.dirname(receipt._path)))


def save(path):
  path.parent.mkdir(exist_ok=True)
  path.write_text('model_checkpoint_path: "model.ckpt-1"\n')


def test_paths_may_be_no_utf_8(start):
  given = ["--data_dir=für/f\udcfcr"]  # in UTF-8 and in Latin-1
  assert finish(start(given))["given"] == given


def test_files_have_the_first_use_that_is_named(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ("train.tsv", "dev.tsv", "texts.tsv"):
    (tmp_path / name).write_text(name)
  given = [("train.tsv", "training data"), ("dev.tsv", "dev data")]
  given += [("train.tsv", "dev data"), ("texts.tsv", None), ("-", None)]
  begin(given, output_dir="output")
  (recorded,) = entries(tmp_path / "output").values()
  uses = {file["path"]: file["use"] for file in recorded["files"]}
  assert uses == {
    "train.tsv": "training data",
    "dev.tsv": "dev data",
    "texts.tsv": None,
  }


@parametrize("text", '{"given": [', '{"given": []}', "[]")
@parametrize("do_train", True, False)
def test_a_malformed_receipt_is_refused(start, tmp_path, text, do_train):
  (tmp_path / "run.json").write_text(text)
  (tmp_path / "run.flags").write_text("--seed=1")
  assert_refused(r"run\.json: .* Move it away, or", start, do_train=do_train)
  assert (tmp_path / "run.json").read_text() == text
  assert (tmp_path / "run.flags").read_text() == "--seed=1"


def test_a_receipt_is_strict_json(start, tmp_path):
  start().finish({"eval_pearson": math.nan, "best_f1_thresh": -math.inf})
  text = (tmp_path / "run.json").read_text()
  receipt = json.loads(text, parse_constant=pytest.fail)["training"]
  assert receipt["results"] == {"eval_pearson": None, "best_f1_thresh": None}


@parametrize("kind", "pipe", "device", "folder")
def test_only_regular_files_are_read(tmp_path, kind):
  path = tmp_path / kind
  make = {"pipe": os.mkfifo, "folder": os.mkdir}
  make.get(kind, lambda path: path.symlink_to("/dev/zero"))(path)
  assert receipts.fingerprint(str(path))["hashed"] == "nothing"


def entries(folder):
  return json.loads((folder / "run.json").read_text())


def test_each_kind_of_run_has_an_entry(start, tmp_path):
  for seed, do_train in ((1, True), (2, False), (3, False)):
    start([f"--seed={seed}"], do_train)
  given = {kind: entry["given"] for kind, entry in entries(tmp_path).items()}
  assert given == {"training": ["--seed=1"], "prediction": ["--seed=3"]}


def test_a_killed_run_has_an_entry(start, tmp_path):
  finish(start())
  start()
  assert entries(tmp_path)["training"]["results"] is None
  assert "ended" not in entries(tmp_path)["training"]


def test_an_evaluation_beside_a_training_leaves_its_entry(start, tmp_path):
  training = start()
  evaluation = start(do_train=False)
  training.finish({"loss": 1.0})
  evaluation.finish({"loss": 2.0})
  # In the order of their starts.
  assert [(k, e["results"]) for k, e in entries(tmp_path).items()] == [
    ("training", {"loss": 1.0}),
    ("prediction", {"loss": 2.0}),
  ]


_WRITER = """
import sys
from bertlib.cli import option
from bertlib.reporting import receipts
from bertlib.tasks.classification.settings import ClassifierSettings
receipts.versions = dict
settings = option.make(
  ClassifierSettings, output_dir=sys.argv[1], do_train=sys.argv[2] == "train"
)
receipt = receipts.Receipt("run_classifier.py", settings)
receipt.start(settings, ())
for number in range(200):
  receipt.record(number=number)
  found = receipts.receipt_file.read_entries(sys.argv[1] + "/run.json")
  assert found[receipt._kind]["number"] == number, (found, number)
"""


@pytest.mark.process
def test_two_processes_do_not_lose_entries_of_each_other(tmp_path):
  command = [sys.executable, "-c", _WRITER, str(tmp_path)]
  environment = os.environ | {"PYTHONPATH": commands.ROOT}
  both = [
    subprocess.Popen([*command, kind], env=environment)
    for kind in ("train", "predict")
  ]
  assert [process.wait() for process in both] == [0, 0]
  assert [e["number"] for e in entries(tmp_path).values()] == [199, 199]


def test_runs_of_earlier_versions_become_entries(start, tmp_path):
  path = tmp_path / "run.json"
  old = run_folders.receipt(tmp_path)
  path.write_text(json.dumps(old))
  start(do_train=False)
  assert entries(tmp_path)["training"] == old


def write_flags(settings, folder, *given):
  """The flags of a training in `run.flags`, read by absl."""
  made = parse(settings, *given, f"--output_dir={folder}", "--do_train")
  receipt = receipts.Receipt("run_x.py", made)
  choices = {"precision": "bfloat16", "xla": "on"}
  devices = types.SimpleNamespace(hardware={}, choices=choices, is_chief=True)
  receipt.start(made, (), devices)
  argv = ["run_x.py", f"--flagfile={folder}/run.flags"]
  return command_line.read_flag_files(argv, flags.FlagValues())[1:]


def parse(settings, *given):
  """Settings of a command line."""
  values = flags.FlagValues()
  option.define(settings, values, required=False)
  command_line.parse(["run_x.py", *given], values)
  return option.read_flags(settings, values)


@parametrize(
  "given",
  ['--data_dir=a folder/b\'s "c"', "--learning_rate=3e-05"],
  ["--labels=a b,'c',,\"d,e\""],
  ["--data_dir=# none", "--vocab_file=-x=--y"],
  ["--precision=auto"],
  ["--nodo_lower_case", "--init_checkpoint=", "--precision=float32"],
  ["--data_dir=für/f\u3000r"],
  ["--data_dir=$HOME/\\n"],
)
def test_flags_of_a_training_are_those_given(tmp_path, given):
  settings = ClassifierSettings
  found = write_flags(settings, tmp_path, *given)
  again = parse(settings, *found, f"--output_dir={tmp_path}")
  before = parse(settings, *given, f"--output_dir={tmp_path}", "--do_train")
  values, expected = map(option.values_of, (again, before))
  if expected["precision"] == "auto":
    expected["precision"] = "bfloat16"
  assert values == expected
  assert not [line for line in found if "output_dir" in line]
  assert "--precision=auto" not in found


def test_a_flag_that_is_given_twice_is_repeated(tmp_path):
  fields = [("rename", list[str], option.texts([], "Names.", section="data"))]
  settings = dataclasses.make_dataclass(
    "Settings", fields, bases=(ClassifierSettings,), frozen=True
  )
  given = ["--rename=a b", "--rename=c"]
  found = write_flags(settings, tmp_path, *given)
  assert [line for line in found if "rename" in line] == given


def test_an_evaluation_leaves_the_flags_of_the_training(start, tmp_path):
  start(["--seed=1"])
  before = (tmp_path / "run.flags").read_text()
  start(["--seed=2"], do_train=False)
  assert (tmp_path / "run.flags").read_text() == before


def test_the_file_says_where_and_how_to_use_it(start, tmp_path):
  start()
  first, second = (tmp_path / "run.flags").read_text().splitlines()
  assert first == f"# In {os.getcwd()}, this repeats the training:"
  assert second == (
    f"# python run_classifier.py --flagfile={tmp_path}/run.flags"
    " --output_dir=NEW"
  )


@pytest.fixture
def resume(tmp_path, caplog):
  """Trains, then resumes with files; returns the warning."""

  def train(contents, **flags):
    for name, text in contents.items():
      (tmp_path / name).write_text(text)
    uses = {"train": "training data", "dev": "dev data"}
    begin(
      [
        (str(tmp_path / name), uses.get(re.split("[.-]", name)[0]))
        for name in contents
      ],
      [str(flags)],
      output_dir=str(tmp_path / "output"),
      data_dir=str(tmp_path),
      **{"do_train": True} | flags,
    )

  def resume(before, now, **flags):
    train(before)
    save(tmp_path / "output" / "checkpoint")
    train({"new_texts.tsv": "a"}, do_train=False, do_predict=True)
    train(now, **flags)
    return [
      record.getMessage().replace(f"{tmp_path}/", "")
      for record in caplog.records
      if "other data" in record.getMessage()
    ]

  return resume


@parametrize(
  "now, named",
  ({"train.tsv": "1", "dev.tsv": "2"}, None),
  ({"train.tsv": "1", "dev.tsv": "changed", "test.tsv": "new"}, None),
  ({"train.tsv": "changed", "dev.tsv": "2"}, "train.tsv"),
  ({"train.tsv": "1", "train-2.tsv": "3", "dev.tsv": "2"}, "train-2.tsv"),
  ({"dev.tsv": "2"}, "train.tsv"),
)
def test_resuming_with_other_data_is_said(resume, now, named):
  warnings = resume({"train.tsv": "1", "dev.tsv": "2"}, now)
  assert len(warnings) == bool(named)
  if named:
    (warning,) = warnings
    assert warning.startswith("output: ")
    assert f"the contents of {named} differ" in warning


def test_an_evaluation_resumes_nothing(resume):
  assert not resume({"train.tsv": "1"}, {"train.tsv": "2"}, do_train=False)


def test_a_receipt_of_a_training_of_version_0_23_is_compared(tmp_path, caplog):
  tests = os.path.join(commands.ROOT, "tests")
  shutil.copy(f"{tests}/io/receipts/0.23.0/run-1.json", tmp_path / "run.json")
  save(tmp_path / "checkpoint")
  train_file = tmp_path / "train.tsv"
  train_file.write_text("other")
  trained_on = [(str(train_file), "training data")]
  begin(trained_on, output_dir=str(tmp_path), do_train=True)
  (data, arithmetic) = caplog.messages
  assert "resumes a training on other data" in data
  assert "was trained with seed 3, now 12345" in arithmetic


@parametrize(
  "before, now, flags, named",
  ({}, {}, {}, None),
  ({"threads": 2}, {"threads": 1}, {}, "threads 2, now 1"),
  ({"onednn": False}, {"onednn": True}, {}, "onednn False, now True"),
  ({"cpu": "a"}, {"cpu": "b"}, {}, None),
  ({"threads": None, "onednn": None}, {}, {}, None),  # of earlier versions
  ({}, {}, {"train_batch_size": 8}, "train_batch_size 32, now 8"),
  ({}, {}, {"seed": 5}, "seed 12345, now 5"),
  ({}, {}, {"save_checkpoints_steps": 5}, None),
)
def test_resuming_with_other_arithmetic_is_said(
  before, now, flags, named, resume, monkeypatch, caplog
):
  device = receipts.device()
  before = {k: v for k, v in (device | before).items() if v is not None}
  devices = iter([before, device, device | now])
  monkeypatch.setattr(receipts, "device", lambda: next(devices))
  assert not resume({"train.tsv": "1"}, {"train.tsv": "1"}, **flags)
  warnings = [m for m in caplog.messages if "was trained with" in m]
  assert len(warnings) == bool(named)
  assert not named or f"was trained with {named}. The weights" in warnings[0]
