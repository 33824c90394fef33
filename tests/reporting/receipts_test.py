"""Tests of receipts."""

import dataclasses
import datetime
import hashlib
import json
import math
import os

import pytest
import run_folders

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.io import receipt_file
from bertlib.io.receipt_file import with_receipt
from bertlib.reporting import receipts
from bertlib.tasks.classification.settings import ClassifierSettings
from bertlib.tasks.pretraining.settings import PretrainingSettings

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def environment(monkeypatch):
  """Spares hashing the code and finding versions."""
  monkeypatch.setattr(receipts, "code_hashes", dict)
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
    folder = str(tmp_path)
    return begin((), command_line, output_dir=folder, do_train=do_train)

  return start


def finish(receipt):
  """Ends a run; returns the content of its receipt."""
  receipt.finish({"eval_accuracy": 0.5})
  return receipt_file.read(receipt._path)


def save(path):
  path.parent.mkdir(exist_ok=True)
  path.write_text('model_checkpoint_path: "model.ckpt-1"\n')


@pytest.mark.parametrize("name", ["checkpoint", "seed_7/checkpoint"])
def test_a_resumed_training_has_no_duration(start, monkeypatch, tmp_path, name):
  times = (f"2026-11-23T{hour}:00:00+00:00" for hour in range(10, 20))
  monkeypatch.setattr(receipts, "_now", lambda: next(times))
  hour = datetime.timedelta(hours=1)
  assert receipt_file.duration(finish(start())) == hour
  save(tmp_path / name)
  assert receipt_file.duration(finish(start(do_train=False))) == hour
  assert receipt_file.duration(finish(start())) is None


def test_receipts_of_other_runs_are_kept(start, tmp_path):
  for seed in (1, 2, 2, 3):
    start([f"--seed={seed}"])
  for number in (1, 2):
    other = json.loads((tmp_path / f"run-{number}.json").read_text())
    assert other["given"] == [f"--seed={number}"]


def test_paths_may_be_no_utf_8(start):
  given = ["--data_dir=für/f\udcfcr"]  # in UTF-8 and in Latin-1
  assert finish(start(given))["given"] == given


@pytest.mark.parametrize(
  "names", ["wiki-*", "wiki-*,books-*", "books-*, wiki-0", "books-*,wiki-0"]
)
def test_a_flag_may_name_several_data_files(tmp_path, names):
  for name in ("wiki-0", "news-0"):
    (tmp_path / name).write_text("text")
  settings = option.make(
    PretrainingSettings,
    input_file=names.replace("wiki", f"{tmp_path}/wiki"),
    output_dir=str(tmp_path / "output"),
  )
  receipt = receipts.Receipt("run_pretraining.py", settings)
  receipt.start(settings, [f"{tmp_path}/wiki-0", f"{tmp_path}/news-0"])
  recorded = json.loads((tmp_path / "output" / "run.json").read_text())
  found = [file["flags"] for file in recorded["files"]]
  assert found == [["input_file"], []]


@pytest.mark.parametrize("text", ['{"given": [', '{"given": []}', "[]"])
def test_a_malformed_receipt_is_kept(start, tmp_path, text):
  (tmp_path / "run.json").write_text(text)
  start()
  assert (tmp_path / "run-1.json").read_text() == text


# Numbers that JSON does not have


def test_a_receipt_is_strict_json(start, tmp_path):
  start().finish({"eval_pearson": math.nan, "best_f1_thresh": -math.inf})
  text = (tmp_path / "run.json").read_text()
  receipt = json.loads(text, parse_constant=pytest.fail)
  assert receipt["results"] == {"eval_pearson": None, "best_f1_thresh": None}


@pytest.mark.parametrize(
  ("old", "new", "line"),
  [
    (None, None, "All 1 results are identical"),
    (9, 3, "eval_loss was 9, is now 3"),
  ],
)
def test_results_are_compared_with_those_before(old, new, line, caplog):
  before, now = (
    {"results": {"eval_loss": v}, "checkpoint": None} for v in (old, new)
  )
  caplog.set_level("INFO", logger="absl")
  receipts.log_differences(before, now)
  assert line in caplog.text


# --rerun


def recorded(**changed):
  return run_folders.receipt("other", data={}, results=None) | changed


@pytest.fixture
def rerun(tmp_path):
  """The command line that repeats a run with some flags."""
  path = tmp_path / "run.json"

  def rerun(given, *arguments, **more):
    path.write_text(json.dumps(recorded(given=given, **more)))
    argv = ["run_classifier.py", f"--rerun={path}", *arguments]
    outputs = option.output_flags(ClassifierSettings)
    return with_receipt(argv, outputs)[0][1:]

  return rerun


def test_flags_of_the_command_follow_those_of_the_receipt(tmp_path):
  path = str(tmp_path / "run.json")
  receipt = recorded(given=["--a=1", "--b"])
  (tmp_path / "run.json").write_text(json.dumps(receipt))
  script = "run_classifier.py"
  for named in ([f"--rerun={path}"], ["--rerun", path]):
    found = with_receipt([script, "--c", "2", *named, "--a=3"])
    assert found == ([script, "--a=1", "--b", "--c", "2", "--a=3"], path)
  assert with_receipt(["x.py", "--a"]) == (["x.py", "--a"], None)
  with pytest.raises(InputError, match=r"is of run_classifier\.py"):
    with_receipt(["x.py", f"--rerun={path}"])


@pytest.mark.parametrize(
  ("flags", "values", "chosen"),
  [
    ("auto auto", "bfloat16 off", "--precision=bfloat16 --xla=off"),
    ("float32 auto", "float32 off", "--xla=off"),
    ("auto on", "float64 on", ""),
    # --xla=on would compile evaluation on a GPU, which the run did not.
    ("float32 auto", "float32 on", ""),
    ("", "bfloat16 off", ""),
  ],
)
def test_rerun_uses_the_values_chosen_for_auto(rerun, flags, values, chosen):
  flags, values = (
    dict(zip(("precision", "xla"), text.split())) for text in (flags, values)
  )
  found = rerun(["--a=1"], "--b", flags=flags, **values)
  assert found == ["--a=1", *chosen.split(), "--b"]


def test_outputs_of_a_receipt_are_not_written(rerun):
  given = ["--do_train", "--output_dir=precious", "--seed=1"]
  with pytest.raises(InputError, match=r"Give another --output_dir than"):
    rerun(given, "--seed=2")
  assert rerun(given, "--output_dir=new", "--seed=2") == [
    "--do_train",
    "--seed=1",
    "--output_dir=new",
    "--seed=2",
  ]
  assert rerun(given, "--output_dir", "new")[-2:] == ["--output_dir", "new"]


@pytest.mark.parametrize(
  "argument",
  [
    "-flagfile=flags",
    "--undefok=output_dir",
    "--rerun=run.json",
    "",
    "--\noutput_dir=precious",
  ],
)
def test_arguments_that_no_run_records_are_refused(rerun, argument):
  with pytest.raises(InputError, match=r"run\.json: .* is not a flag of a run"):
    rerun(["--do_train", argument], "--output_dir=new")


@pytest.mark.parametrize("argument", ["--output_dir", "-output_dir=precious"])
def test_other_spellings_of_an_output_are_left_out(rerun, argument):
  assert rerun([argument], "--output_dir=new") == ["--output_dir=new"]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(tmp_path, kind):
  path = tmp_path / kind
  make = {"pipe": os.mkfifo, "folder": os.mkdir}
  make.get(kind, lambda path: path.symlink_to("/dev/zero"))(path)
  assert receipts.fingerprint(str(path))["hashed"] == "nothing"
  digest = hashlib.sha256().hexdigest()
  entry = run_folders.data_file(path, ["train_file"], digest, 0)
  receipt = tmp_path / "run.json"
  receipt.write_text(json.dumps(recorded(files=[entry])))
  settings = option.make(
    ClassifierSettings, output_dir=str(tmp_path / "new"), rerun=str(receipt)
  )
  with pytest.raises(InputError, match=f"^{path}: is not the file used in"):
    receipts.check_rerun(settings)


# Resuming with other data


@pytest.fixture
def resume(tmp_path, caplog):
  """Trains, then resumes with files; returns the warning."""

  def train(contents, **flags):
    for name, text in contents.items():
      (tmp_path / name).write_text(text)
    begin(
      [str(tmp_path / name) for name in contents],
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


@pytest.mark.parametrize(
  ("now", "named"),
  [
    ({"train.tsv": "1", "dev.tsv": "2"}, None),
    ({"train.tsv": "1", "dev.tsv": "changed", "test.tsv": "new"}, None),
    ({"train.tsv": "changed", "dev.tsv": "2"}, "train.tsv"),
    ({"train.tsv": "1", "train-2.tsv": "3", "dev.tsv": "2"}, "train-2.tsv"),
    ({"dev.tsv": "2"}, "train.tsv"),
  ],
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


# Resuming on other devices


@pytest.mark.parametrize(
  ("before", "now", "named"),
  [
    ({}, {}, None),
    ({"threads": 2}, {"threads": 1}, "threads 2, now 1"),
    ({"onednn": False}, {"onednn": True}, "onednn False, now True"),
    ({"cpu": "a"}, {"cpu": "b"}, None),
  ],
)
def test_resuming_with_other_arithmetic_is_said(
  before, now, named, resume, monkeypatch, caplog
):
  device = receipts.device()
  devices = iter([device | before, device, device | now])
  monkeypatch.setattr(receipts, "device", lambda: next(devices))
  assert not resume({"train.tsv": "1"}, {"train.tsv": "1"})
  warnings = [m for m in caplog.messages if "was trained with" in m]
  assert len(warnings) == bool(named)
  assert not named or f"was trained with {named}. The weights" in warnings[0]


@pytest.mark.parametrize(
  ("flag", "named"),
  [
    ({"train_batch_size": 8}, "train_batch_size 32, now 8"),
    ({"seed": 5}, "seed 12345, now 5"),
    ({"log_steps": 5}, None),
  ],
)
def test_resuming_with_other_steps_is_said(flag, named, resume, caplog):
  assert not resume({"train.tsv": "1"}, {"train.tsv": "1"}, **flag)
  warnings = [m for m in caplog.messages if "was trained with" in m]
  assert len(warnings) == bool(named)
  assert not named or f"was trained with {named}. The weights" in warnings[0]


def test_a_receipt_of_an_earlier_version_has_no_threads(
  resume, monkeypatch, caplog
):
  device = receipts.device()
  old = {key: device[key] for key in ("cpu", "cores", "gpus")}
  devices = iter([old, old, device])
  monkeypatch.setattr(receipts, "device", lambda: next(devices))
  assert not resume({"train.tsv": "1"}, {"train.tsv": "1"})
  assert "was trained with" not in caplog.text
