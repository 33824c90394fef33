"""Tests of receipts of runs, and of --rerun."""

import json
import logging as python_logging
import os

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_model

import create_pretraining_data
import modeling
import run_classifier
from bertlib.checkpoints import checkpoint_writer
from bertlib.cli import option
from bertlib.cli import rerun as rerun_flags
from bertlib.cli.errors import InputError
from bertlib.io import files
from bertlib.reporting import receipts
from bertlib.settings.classifier import ClassifierSettings

pytestmark = pytest.mark.train

WORDS = ["a", "the", "cat", "dog", "sat", "ran", "home", "is", "good"]
VOCAB = [*tiny_model.SPECIAL, *WORDS]
CONFIG = tiny_model.config(len(VOCAB))
ROWS = ["the cat sat\ty", "the dog ran home\tn", "a cat is good\ty"] * 4
FLAGS = {
  run_classifier: {
    "bert_config_file": "config.json",
    "vocab_file": "vocab.txt",
    "output_dir": "out",
    "do_train": True,
    "max_seq_length": 16,
    "task_name": "tsv",
    "train_file": "train.tsv",
    "dev_file": "dev.tsv",
    "labels": "n,y",
    "train_batch_size": 4,
    "do_eval": True,
    "xla": "off",
  },
  create_pretraining_data: {
    "input_file": "text.txt",
    "output_file": "made.tf_record",
    "vocab_file": "vocab.txt",
    "max_seq_length": 16,
  },
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
  """The current folder, with a small model and data."""
  before = os.getcwd()
  os.chdir(tmp_path_factory.mktemp("rerun"))
  write("vocab.txt", "\n".join(VOCAB))
  write("config.json", CONFIG.to_json_string())
  with tf.Graph().as_default():
    modeling.BertModel(CONFIG, False, tf.zeros([1, 4], tf.int32))
    shapes = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
  random = np.random.RandomState(0)
  weights = {
    name: random.normal(0, 0.02, shape).astype("f")
    for name, shape in shapes.items()
  }
  checkpoint_writer.write_variables("bert.ckpt", weights)
  write("train.tsv", "\n".join(ROWS))
  write("dev.tsv", "\n".join(f"it {row}" for row in ROWS[:3]))
  write("text.txt", "the cat sat\na dog ran\n\nit is good\nthe mat is bad\n")
  yield
  os.chdir(before)


def write(path, text):
  with open(path, "wb" if isinstance(text, bytes) else "w") as file:
    file.write(text)


def arguments(script, **changed):
  return commands.as_flags(FLAGS[script] | changed)


def call(script, *given):
  """Runs a script in this process; raises its error after the clean-up."""
  error = None
  with commands.in_process(script) as main:
    try:
      main(*given)
    except BaseException as raised:
      error = raised
  if error:
    raise error


def train(workspace, *more, **changed):
  call(run_classifier, *arguments(run_classifier, **changed), *more)


def rerun(workspace, receipt, *more, script=run_classifier):
  call(script, f"--rerun={receipt}", *more)


@pytest.fixture(scope="module")
def receipt(workspace):
  train(workspace, "--seed=3", output_dir="run", init_checkpoint="bert.ckpt")
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
  assert {"all", "modeling.py", "bertlib/reporting/doctor.py"} < set(
    receipt["code"]
  )
  assert receipt["started"] <= receipt["ended"]


def test_receipt_has_fingerprints_of_the_files(receipt):
  by_path = {file["path"]: file for file in receipt["files"]}
  assert {(f["what"], path) for path, f in by_path.items()} == {
    ("vocabulary", "vocab.txt"),
    ("config", "config.json"),
    ("checkpoint", "bert.ckpt.index"),
    ("data", "train.tsv"),
    ("data", "dev.tsv"),
  }
  size = os.path.getsize("bert.ckpt.data-00000-of-00001")
  assert by_path["bert.ckpt.index"]["data_bytes"] == size
  # The value that `sha256sum` prints.
  with open("vocab.txt", "rb") as file:
    expected = receipts.hashlib.sha256(file.read()).hexdigest()
  assert by_path["vocab.txt"]["sha256"] == expected
  assert "train_file" in by_path["train.tsv"]["flags"]


def test_receipt_has_the_results(receipt):
  written = run_outputs.read_results("run/eval_results.txt")
  assert set(receipt["results"]) == set(written)
  assert np.float32(written["eval_loss"]) == receipt["results"]["eval_loss"]
  assert receipt["checkpoint"]["path"] == "run/model.ckpt-9.index"


def test_killed_run_has_a_receipt_without_results(workspace, monkeypatch):
  def die(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(run_classifier, "train_classifier", die)
  with pytest.raises(KeyboardInterrupt):
    train(workspace, output_dir="killed")
  assert run_outputs.read_json("killed/run.json")["results"] is None


def test_single_process_of_a_cluster_writes_a_receipt(workspace, monkeypatch):
  cluster = {"worker": ["a:1", "b:2"]}
  task = {"type": "worker", "index": 1}
  text = json.dumps({"cluster": cluster, "task": task})
  monkeypatch.setenv("TF_CONFIG", text)
  monkeypatch.setattr(run_classifier, "train_classifier", open)
  with pytest.raises(TypeError):
    train(workspace, "--distribution=off", output_dir="alone")
  assert (
    run_outputs.read_json("alone/run.json")["script"] == "run_classifier.py"
  )


def test_receipt_of_another_run_is_kept(workspace, monkeypatch):
  monkeypatch.setattr(run_classifier, "train_classifier", open)
  for more in ([], ["--seed=1"], ["--seed=1"], ["--seed=2"]):
    with pytest.raises(TypeError):
      train(workspace, *more, output_dir="several")
  given = [
    [
      flag
      for flag in run_outputs.read_json(f"several/{name}.json")["given"]
      if "seed" in flag
    ]
    for name in ("run-1", "run-2", "run")
  ]
  assert given == [[], ["--seed=1"], ["--seed=2"]]


def test_rerun_repeats_bit_for_bit(workspace, receipt, caplog):
  with caplog.at_level(python_logging.INFO, logger="absl"):
    rerun(workspace, "run/run.json", "--output_dir=again")
  again = run_outputs.read_json("again/run.json")
  assert again["results"] == receipt["results"]
  assert "results are identical to the earlier ones" in caplog.text
  assert "The weights are identical to the earlier ones" in caplog.text
  before, now = map(tf.train.load_checkpoint, ["run", "again"])
  for name in before.get_variable_to_shape_map():
    np.testing.assert_array_equal(
      before.get_tensor(name), now.get_tensor(name), err_msg=name
    )


@pytest.mark.parametrize("more", [[], ["--output_dir=./run"]])
def test_rerun_needs_another_output_dir(workspace, receipt, more):
  with pytest.raises(InputError, match="Give another --output_dir"):
    rerun(workspace, "run/run.json", *more)


@pytest.fixture
def spoil(receipt):
  """Changes a file until the test is over."""
  saved = {}

  def change(path):
    with open(path, "rb") as file:
      saved[path] = file.read()
    write(path, saved[path] + b"\n")

  yield change
  for path, content in saved.items():
    write(path, content)


@pytest.mark.parametrize(
  ("path", "flag"),
  [
    ("train.tsv", "train_file"),
    ("vocab.txt", "vocab_file"),
    ("config.json", "bert_config_file"),
    ("bert.ckpt.index", "init_checkpoint"),
  ],
)
def test_rerun_with_changed_files_is_refused(
  workspace, spoil, caplog, path, flag
):
  spoil(path)
  with pytest.raises(
    InputError, match=rf"^{path}: is not the file .*--{flag}$"
  ):
    rerun(workspace, "run/run.json", "--output_dir=refused")
  assert f"{path}: has changed since" in caplog.text
  assert not os.path.exists("refused")


def test_rerun_accepts_a_changed_file_that_is_given_again(
  workspace, spoil, monkeypatch
):
  spoil("train.tsv")
  monkeypatch.setattr(run_classifier, "train_classifier", open)
  with pytest.raises(TypeError):  # raised after the checks
    rerun(
      workspace,
      "run/run.json",
      "--output_dir=given_again",
      "--train_file=train.tsv",
    )


def test_changed_code_and_versions_are_warnings(
  workspace, receipt, monkeypatch, caplog
):
  monkeypatch.setattr(run_classifier, "train_classifier", open)
  hashes = receipt["code"] | {"modeling.py": "0"}
  monkeypatch.setattr(receipts, "code_hashes", lambda: hashes)
  found = receipts.versions() | {"numpy": "9.9"}
  monkeypatch.setattr(receipts, "versions", lambda: found)
  with pytest.raises(TypeError):
    rerun(workspace, "run/run.json", "--output_dir=code")
  assert "the code has changed since: modeling.py" in caplog.text
  assert ", is now 9.9" in caplog.text


def test_a_dry_run_checks_a_rerun(workspace, spoil, capsys):
  spoil("dev.tsv")
  with pytest.raises(InputError, match="failed steps"):
    rerun(workspace, "run/run.json", "--output_dir=x", "--doctor")
  first, *_ = capsys.readouterr().out.splitlines()
  assert first.startswith("fail  rerun")
  assert "dev.tsv: is not the file used" in first


def test_rerun_refuses_other_files_and_other_scripts(workspace, receipt):
  for command, expected in (
    (["x.py", "--rerun=config.json"], "config.json"),
    (["x.py", "--rerun=train.tsv"], "train.tsv"),
    (["x.py", "--rerun=run/run.json"], "is of run_classifier.py"),
  ):
    with pytest.raises(InputError, match=expected):
      rerun_flags.with_receipt(command)


def test_flags_of_the_command_follow_those_of_the_receipt():
  receipt = {"script": "x.py", "given": ["--a=1", "--b"], "results": None}
  receipt |= {"path": "", "files": [], "code": {}, "versions": {}}
  receipt |= {"started": "", "device": {}}
  write("given.json", json.dumps(receipt))
  for rerun in (["--rerun=given.json"], ["--rerun", "given.json"]):
    found = rerun_flags.with_receipt(["x.py", "--c", "2", *rerun, "--a=3"])
    assert found == (
      ["x.py", "--a=1", "--b", "--c", "2", "--a=3"],
      "given.json",
    )
  assert rerun_flags.with_receipt(["x.py", "--a"]) == (["x.py", "--a"], None)


@pytest.mark.parametrize(
  ("flags", "recorded", "xla", "chosen"),
  [
    (
      {"precision": "auto", "xla": "auto"},
      "bfloat16",
      "off",
      ["bfloat16", "off"],
    ),
    ({"precision": "float32", "xla": "auto"}, "float32", "off", [None, "off"]),
    ({"precision": "auto", "xla": "on"}, "float64", "on", [None, None]),
    # --xla=on would compile evaluation on a GPU, which the run did not.
    ({"precision": "float32", "xla": "auto"}, "float32", "on", [None, None]),
    ({}, "bfloat16", "off", [None, None]),
  ],
)
def test_rerun_uses_the_values_chosen_for_auto(
  tmp_path, monkeypatch, flags, recorded, xla, chosen
):
  monkeypatch.chdir(tmp_path)
  receipt = {"script": "x.py", "given": ["--a=1"], "results": None}
  receipt |= {"path": "", "files": [], "code": {}, "versions": {}}
  receipt |= {"started": "", "device": {}}
  receipt |= {"flags": flags, "precision": recorded, "xla": xla}
  write("chosen.json", json.dumps(receipt))
  argv, _ = rerun_flags.with_receipt(["x.py", "--rerun=chosen.json", "--b"])
  expected = [
    f"--{name}={value}"
    for name, value in zip(("precision", "xla"), chosen)
    if value
  ]
  assert argv == ["x.py", "--a=1", *expected, "--b"]


@pytest.mark.unit
def test_data_making_can_be_repeated(workspace):
  given = arguments(create_pretraining_data)
  commands.succeed("create_pretraining_data.py", *given)
  made = run_outputs.read_json("made.tf_record.run.json")
  assert made["given"] == sorted(given)
  done = commands.succeed(
    "create_pretraining_data.py",
    "--rerun=made.tf_record.run.json",
    "--output_file=again.tf_record",
  )
  assert "results are identical to the earlier ones" in done.stderr
  with (
    open("made.tf_record", "rb") as one,
    open("again.tf_record", "rb") as two,
  ):
    assert one.read() == two.read()
  assert files.find_files(["made*"]) == ["made.tf_record"]
  line = commands.fail(
    "create_pretraining_data.py", "--rerun=made.tf_record.run.json"
  )
  assert "Give another --output_file" in line


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
def test_of_a_large_data_set_the_ends_of_later_files_are_hashed(
  tmp_path, monkeypatch
):
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
