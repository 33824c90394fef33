"""Tests of receipts of runs, and of --rerun."""

import logging as python_logging
import os
from pathlib import Path

import commands
import numpy as np
import pytest
import run_outputs
import wrong_input_world

import create_pretraining_data
import run_classifier
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.io import files
from bertlib.reporting import receipts
from bertlib.tasks.classification.settings import ClassifierSettings

pytestmark = pytest.mark.train


def flags_of(script):
  """Flags of a script but for its output, with paths in the workspace."""
  flags = wrong_input_world.COMMANDS[script.__name__]
  return [f.replace("{world}/", "") for f in flags if "{out}" not in f]


TRAINING = [
  *(f for f in flags_of(run_classifier) if "data_dir" not in f),
  *("--train_file=train.tsv", "--dev_file=dev.tsv", "--do_eval"),
]


@pytest.fixture(scope="module")
def workspace(world):
  """The current folder, with a small model and data."""
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(world)
    yield


def call(*given):
  with commands.in_process(run_classifier) as main:
    main(*given)


def rerun(*given):
  call("--rerun=run/run.json", *given)


@pytest.fixture
def start(workspace, monkeypatch):
  """Runs the classifier until its training, which is left out."""
  monkeypatch.setattr(run_classifier, "train_classifier", open)

  def start(*given):
    with pytest.raises(TypeError):
      call(*given)

  return start


@pytest.fixture(scope="module")
def receipt(workspace):
  call(*TRAINING, "--seed=3", "--output_dir=run")
  return run_outputs.read_json("run/run.json")


def test_receipt_has_flags_versions_and_code(receipt):
  assert receipt["script"] == "run_classifier.py"
  assert {"--seed=3", "--output_dir=run", "--do_train"} < set(receipt["given"])
  assert not [g for g in receipt["given"] if "learning_rate" in g]
  assert receipt["flags"]["learning_rate"] == 5e-5
  assert receipt["seeds"] == {"seed": 3, "seeds": 0}
  assert {"python", "tensorflow-estimator", "numpy"} < set(receipt["versions"])
  assert receipt["versions"]["project"]
  assert receipt["device"]["cpu"] and receipt["device"]["cores"]
  names = {"all", "modeling.py", "bertlib/reporting/receipts.py"}
  assert names < set(receipt["code"])
  assert receipt["started"] <= receipt["ended"]


def test_receipt_has_fingerprints_of_the_files(receipt):
  by_path = {file["path"]: file for file in receipt["files"]}
  assert {(f["what"], path) for path, f in by_path.items()} == {
    ("vocabulary", "vocab.txt"),
    ("config", "bert_config.json"),
    ("checkpoint", "model.ckpt.index"),
    ("data", "train.tsv"),
    ("data", "dev.tsv"),
  }
  size = os.path.getsize("model.ckpt.data-00000-of-00001")
  assert by_path["model.ckpt.index"]["data_bytes"] == size
  # The value that `sha256sum` prints.
  expected = receipts.hashlib.sha256(Path("vocab.txt").read_bytes()).hexdigest()
  assert by_path["vocab.txt"]["sha256"] == expected
  assert "train_file" in by_path["train.tsv"]["flags"]


def test_receipt_has_the_results(receipt):
  written = run_outputs.read_results("run/eval_results.txt")
  assert set(receipt["results"]) == set(written)
  assert np.float32(written["eval_loss"]) == receipt["results"]["eval_loss"]
  assert receipt["checkpoint"]["path"] == "run/model.ckpt-2.index"


def test_rerun_repeats_bit_for_bit(receipt, caplog):
  with caplog.at_level(python_logging.INFO, logger="absl"):
    rerun("--output_dir=again")
  again = run_outputs.read_json("again/run.json")
  assert again["results"] == receipt["results"]
  assert "results are identical to the earlier ones" in caplog.text
  assert "The weights are identical to the earlier ones" in caplog.text
  run_outputs.assert_same_variables("run", "again")


def test_rerun_needs_another_output_dir(receipt):
  with pytest.raises(InputError, match="Give another --output_dir"):
    rerun("--output_dir=./run")


@pytest.fixture
def spoil(receipt):
  """Changes a file until the test is over."""
  saved = {}

  def change(path):
    saved[path] = Path(path).read_bytes()
    Path(path).write_bytes(saved[path] + b"\n")

  yield change
  for path, content in saved.items():
    Path(path).write_bytes(content)


@pytest.mark.parametrize(
  ("path", "flag"),
  [
    ("train.tsv", "train_file"),
    ("vocab.txt", "vocab_file"),
    ("model.ckpt.index", "init_checkpoint"),
  ],
)
def test_rerun_with_changed_files_is_refused(spoil, caplog, path, flag):
  spoil(path)
  message = rf"^{path}: is not the file .*--{flag}$"
  with pytest.raises(InputError, match=message):
    rerun("--output_dir=refused")
  assert f"{path}: has changed since" in caplog.text
  assert not os.path.exists("refused")


def test_rerun_accepts_a_changed_file_that_is_given_again(spoil, start):
  spoil("train.tsv")
  given = "--output_dir=given_again", "--train_file=train.tsv"
  start("--rerun=run/run.json", *given)


def test_changed_code_and_versions_warn(receipt, start, monkeypatch, caplog):
  hashes = receipt["code"] | {"modeling.py": "0"}
  monkeypatch.setattr(receipts, "code_hashes", lambda: hashes)
  found = receipts.versions() | {"numpy": "9.9"}
  monkeypatch.setattr(receipts, "versions", lambda: found)
  start("--rerun=run/run.json", "--output_dir=code")
  assert "the code has changed since: modeling.py" in caplog.text
  assert ", is now 9.9" in caplog.text


def test_a_dry_run_checks_a_rerun(spoil, capsys):
  spoil("dev.tsv")
  with pytest.raises(InputError, match="failed steps"):
    rerun("--output_dir=x", "--doctor")
  first, *_ = capsys.readouterr().out.splitlines()
  assert first.startswith("fail  rerun")
  assert "dev.tsv: is not the file used" in first


@pytest.mark.unit
def test_data_making_can_be_repeated(workspace):
  script = "create_pretraining_data.py"
  given = [*flags_of(create_pretraining_data), "--output_file=made.tf_record"]
  commands.succeed(script, *given)
  receipt = "made.tf_record.run.json"
  assert run_outputs.read_json(receipt)["given"] == sorted(given)
  done = commands.succeed(
    script, f"--rerun={receipt}", "--output_file=again.tf_record"
  )
  assert "results are identical to the earlier ones" in done.stderr
  made, again = Path("made.tf_record"), Path("again.tf_record")
  assert made.read_bytes() == again.read_bytes()
  assert files.find_files(["made*"]) == ["made.tf_record"]


@pytest.mark.graph
def test_fingerprint_of_a_large_file_covers_its_ends(tmp_path, monkeypatch):
  monkeypatch.setattr(receipts, "_LARGE", 10**7)
  path = str(tmp_path / "large")
  with open(path, "wb") as file:
    file.truncate(10**7 + 1)

  def hash_with(offset):
    with open(path, "r+b") as file:
      file.seek(offset)
      file.write(b"x")
    found = receipts.fingerprint(path)
    assert found["bytes"] == 10**7 + 1 and found["hashed"] != "all"
    return found["sha256"]

  first = receipts.fingerprint(path)
  middle = hash_with(5 * 10**6)
  assert receipts.is_unchanged(first)
  assert len({middle, hash_with(0), hash_with(10**7)}) == 3
  assert not receipts.is_unchanged(first)


@pytest.mark.graph
def test_a_large_data_set_hashes_ends_of_later_files(tmp_path, monkeypatch):
  monkeypatch.setattr(receipts, "_LARGE_SET", 10**6)
  paths = [str(tmp_path / name) for name in "abc"]
  for path, size in zip(paths, (3 * 10**6, 3 * 10**6, 10**6)):
    with open(path, "wb") as file:
      file.truncate(size)
  settings = option.make(ClassifierSettings, output_dir=str(tmp_path / "out"))
  receipt = receipts.Receipt("run_classifier.py", settings)
  receipt.start(settings, paths)
  found = run_outputs.read_json(tmp_path / "out" / "run.json")["files"]
  assert [file["hashed"] == "all" for file in found] == [True, False, True]
  assert all(map(receipts.is_unchanged, found))
