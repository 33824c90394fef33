"""Tests of the receipts of trainings, and of their repetition."""

import hashlib
from pathlib import Path

import commands
import numpy as np
import pytest
import run_outputs
import wrong_input_world

import create_pretraining_data
import run_classifier
from bertlib.cli import option
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


@pytest.fixture(scope="module")
def receipt(workspace):
  call(*TRAINING, "--seed=3", "--output_dir=run")
  return run_outputs.read_json("run/run.json")["training"]


def test_receipt_has_flags_and_versions(receipt):
  assert receipt["script"] == "run_classifier.py"
  assert {"--seed=3", "--output_dir=run", "--do_train"} < set(receipt["given"])
  assert not [g for g in receipt["given"] if "learning_rate" in g]
  assert receipt["flags"]["learning_rate"] == 5e-5
  assert {"python", "tensorflow-estimator", "numpy"} < set(receipt["versions"])
  assert receipt["versions"]["project"]
  assert receipt["device"]["cpu"] and receipt["device"]["cores"]
  assert receipt["started"] <= receipt["ended"]


def test_receipt_has_fingerprints_of_the_files(receipt):
  by_path = {file["path"]: file for file in receipt["files"]}
  assert {(f["use"], path) for path, f in by_path.items()} == {
    ("training data", "train.tsv"),
    ("dev data", "dev.tsv"),
  }
  # The value that `sha256sum` prints.
  expected = hashlib.sha256(Path("train.tsv").read_bytes()).hexdigest()
  assert by_path["train.tsv"]["sha256"] == expected


def test_receipt_has_the_results(receipt):
  written = run_outputs.read_results("run/eval_results.txt")
  assert set(receipt["results"]) == set(written)
  assert np.float32(written["eval_loss"]) == receipt["results"]["eval_loss"]
  assert receipt["checkpoint"] == "run/model.ckpt-2"


def test_the_flags_of_a_training_repeat_it_bit_for_bit(receipt):
  call("--flagfile=run/run.flags", "--output_dir=again", "--do_eval")
  again = run_outputs.read_json("again/run.json")["training"]
  assert again["results"] == receipt["results"]
  run_outputs.assert_same_variables("run", "again")


@pytest.mark.unit
def test_the_receipt_of_an_output_file_is_of_one_run(workspace):
  given = [*flags_of(create_pretraining_data), "--output_file=made.tf_record"]
  commands.succeed("create_pretraining_data.py", *given)
  receipt = run_outputs.read_json("made.tf_record.run.json")
  assert receipt["given"] == sorted(given)
  (file,) = receipt["files"]
  assert (file["use"], file["path"]) == ("text", "corpus.txt")
  made = Path("made.tf_record").read_bytes()
  assert receipt["results"]["sha256"] == [hashlib.sha256(made).hexdigest()]
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

  first = receipts.fingerprint(path)["sha256"]
  middle = hash_with(5 * 10**6)
  assert middle == first
  assert len({middle, hash_with(0), hash_with(10**7)}) == 3


@pytest.mark.graph
def test_a_large_data_set_hashes_ends_of_later_files(tmp_path, monkeypatch):
  monkeypatch.setattr(receipts, "_LARGE_SET", 10**6)
  paths = [str(tmp_path / name) for name in "abc"]
  for path, size in zip(paths, (3 * 10**6, 3 * 10**6, 10**6)):
    with open(path, "wb") as file:
      file.truncate(size)
  settings = option.make(ClassifierSettings, output_dir=str(tmp_path / "out"))
  receipt = receipts.Receipt("run_classifier.py", settings)
  receipt.start(settings, [(path, None) for path in paths])
  (entry,) = run_outputs.read_json(tmp_path / "out" / "run.json").values()
  found = entry["files"]
  assert [file["hashed"] == "all" for file in found] == [True, False, True]
