"""Tests of --doctor: dry runs of the commands, and what they estimate."""

import collections
import json
import os

import commands
import pytest
import tiny_model

import create_pretraining_data
import extract_features
import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_squad
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.compute import precision
from bertlib.data import tf_records
from bertlib.reporting import doctor, training_checks
from bertlib.settings.classifier import ClassifierSettings
from bertlib.tasks.pretraining import pretraining_instances

pytestmark = pytest.mark.graph

WORDS = "a the cat dog sat ran on mat home is good bad who where ."
VOCAB = [*tiny_model.SPECIAL, *WORDS.split()]
CONFIG = tiny_model.config(len(VOCAB))
TRAINING = {
  "bert_config_file": "config.json",
  "vocab_file": "vocab.txt",
  "output_dir": "out",
  "do_train": True,
  "max_seq_length": 16,
  "xla": "off",
}
FLAGS = {
  run_classifier: TRAINING
  | {
    "task_name": "tsv",
    "train_file": "train.tsv",
    "dev_file": "dev.tsv",
    "labels": "n,y",
    "train_batch_size": 4,
    "do_eval": True,
  },
  run_squad: TRAINING
  | {
    "train_file": "squad.json",
    "max_query_length": 6,
    "train_batch_size": 1,
    "num_workers": 1,
  },
  run_embeddings: TRAINING
  | {
    "train_file": "pairs.tsv",
    "dev_file": "pairs.tsv",
    "text_columns": "question,answer",
    "train_batch_size": 4,
    "do_eval": True,
  },
  run_ner: TRAINING | {"train_file": "train.conll", "train_batch_size": 4},
  run_pretraining: TRAINING
  | {
    "input_file": "good.tf_record",
    "max_predictions_per_seq": 3,
    "num_train_steps": 10,
  },
  extract_features: {
    "bert_config_file": "config.json",
    "vocab_file": "vocab.txt",
    "input_file": "text.txt",
    "output_file": "features.jsonl",
    "init_checkpoint": commands.ROOT,
    "max_seq_length": 16,
    "layers": -1,
  },
  create_pretraining_data: {
    "input_file": "text.txt",
    "output_file": "made.tf_record",
    "vocab_file": "vocab.txt",
    "max_seq_length": 16,
  },
}


@pytest.fixture(scope="module", autouse=True)
def workspace(tmp_path_factory):
  """The current folder, with a small config and data; nothing is measured."""
  patch = pytest.MonkeyPatch()
  patch.setattr(precision, "product_rates", lambda *_, **__: {"any": 1e9})
  patch.chdir(tmp_path_factory.mktemp("dry_run"))
  write("vocab.txt", "\n".join(VOCAB))
  write("config.json", CONFIG.to_json_string())
  rows = ["the cat sat\ty", "the dog ran home\tn", "a cat is good\ty"] * 4
  write("train.tsv", "\n".join(rows))
  write("dev.tsv", "\n".join(f"it {row}" for row in rows[:3]))
  write("short.tsv", "the cat sat\ty\nthe dog\n")
  write("train.conll", "the\tO\ncat\tB-PET\n\na\tO\ndog\tB-PET\n\n" * 4)
  write("untagged.conll", "the\ncat\n")
  pairs = ["who sat\tthe cat sat", "who ran\tthe dog ran"] * 4
  write("pairs.tsv", "\n".join(["question\tanswer", *pairs]))
  write("text.txt", "the cat sat\na dog ran\n\nit is good\nthe mat is bad\n")
  write("blank.txt", "\n \n")
  write("file", "")
  write_squad()
  write_records()
  yield
  patch.undo()


def write(path, text):
  with open(path, "w") as file:
    file.write(text)


def write_squad():
  question = {
    "id": "q",
    "question": "where is the cat",
    "answers": [{"text": "mat", "answer_start": 19}],
  }
  paragraph = {"context": "the cat sat on the mat", "qas": [question]}
  data = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
  write("squad.json", json.dumps(data))


def write_records():
  ids = [2, 8, 4, 3] + [0] * 12
  record = {
    "input_ids": ids,
    "input_mask": [int(i > 0) for i in ids],
    "segment_ids": [0] * 16,
    "masked_lm_positions": [2, 0, 0],
    "masked_lm_ids": [6, 0, 0],
    "masked_lm_weights": [1.0, 0.0, 0.0],
    "next_sentence_labels": [0],
  }
  layout = pretraining_instances.record_layout(16, 3)
  tf_records.write_records("good.tf_record", [record] * 9, layout)


def dry_run(capsys, script, **changed):
  """Statuses and texts of the steps by name, and the error at the end."""
  capsys.readouterr()
  before, error = set(os.listdir()), None
  flags = commands.as_flags(FLAGS[script] | changed)
  with commands.in_process(script) as main:
    try:
      main("--doctor", *flags)
    except InputError as raised:
      error = str(raised)
  assert set(os.listdir()) == before
  lines = [row.split(None, 2) for row in capsys.readouterr().out.splitlines()]
  return {name: (status, *text) for status, name, *text in lines}, error


@pytest.mark.parametrize(
  "script",
  [script for script in FLAGS if script is not extract_features],
  ids=lambda script: script.__name__,
)
def test_all_steps_of_a_valid_run_pass(capsys, script):
  found, error = dry_run(capsys, script)
  assert {status for status, *_ in found.values()} == {"pass"}
  assert len(found) > 5 and error is None


@pytest.mark.parametrize(
  ("script", "changed", "name", "expected"),
  [
    (run_classifier, {"train_file": "short.tsv"}, "data", "row 2: has 1 colu"),
    (run_classifier, {"class_weights": "2:1"}, "classes", "give LABEL:WEIGHT"),
    (run_classifier, {"output_dir": "file/out"}, "disk", "Not a directory"),
    (run_classifier, {"num_replicas": 3}, "batches", "among 3 replicas"),
    (run_squad, {"train_batch_size": 9}, "windows", "not enough for one step"),
    (run_ner, {"train_file": "untagged.conll"}, "sentences", "without tags"),
    (run_embeddings, {"matryoshka_dims": "9"}, "vectors", "must be 16"),
    (run_pretraining, {"input_file": "text.txt"}, "data", "text.txt: "),
    (extract_features, {}, "model", "a folder without a TensorFlow checkpoint"),
    (create_pretraining_data, {"input_file": "blank.txt"}, "text", "no text"),
  ],
)
def test_invalid_input_fails_the_step_that_reads_it(
  capsys, script, changed, name, expected
):
  found, error = dry_run(capsys, script, **changed)
  status, text = found[name]
  assert status == "fail" and expected in text
  assert error.startswith("--doctor: failed steps: ")


def test_only_dependents_of_a_failed_step_are_skipped(capsys):
  found, _ = dry_run(capsys, run_classifier, bert_config_file="gone.json")
  by_status = {"fail": set(), "skip": set(), "pass": set()}
  for name, (status, *_) in found.items():
    by_status[status].add(name)
  assert by_status["fail"] == {"config"}
  assert {"vocabulary", "run", "texts"} <= by_status["skip"]
  assert {"checkpoint", "data"} <= by_status["pass"]


# What is estimated


def test_a_time_budget_is_the_time_of_its_steps(log):
  flags = FLAGS[run_pretraining] | {"time_budget_minutes": 3}
  del flags["num_train_steps"]
  with commands.in_process(run_pretraining) as main:
    main("--doctor", *commands.as_flags(flags))
  (line,) = [line for line in log if line.startswith("time: ")]
  assert "0:03:00 of training" in line


def test_labels_that_are_missing_or_rare_are_warnings(caplog):
  sets = {"the dev set": ["y"] * 26 + ["n"]}
  doctor.check_labels(["n", "y", "z"], sets)
  missing, rare = caplog.messages[-2:]
  assert missing == "the dev set has no z"
  assert rare == "y is 26 times as frequent as n"


def test_truncated_examples_are_a_warning(caplog):
  examples = [doctor.Encoded([2, 3], 2), doctor.Encoded([2, 3], 2, 99)]
  found = doctor.check_encoded(examples, 9, 200)
  assert found == doctor.LengthSummary(200, 2.0)
  assert "50.0% are truncated, by 99 tokens on average" in caplog.text


@pytest.mark.parametrize("count", [0, 1, 1999, 2000, 2001, 9000])
def test_sample_has_at_most_the_requested_size(count):
  found = doctor.sample(range(count))
  assert min(count, 1000) <= len(found) <= 2000


@pytest.mark.parametrize(
  ("bad", "expected"), [([3, 9], "id 9"), ([-1], "id -1")]
)
def test_ids_out_of_range_are_refused(bad, expected):
  doctor.check_ids([0, 8], 9, "x")
  with pytest.raises(InputError, match=f"^x: has the {expected}"):
    doctor.check_ids(bad, 9, "x")


def test_too_little_disk_space_is_refused(monkeypatch):
  usage = collections.namedtuple("usage", "total used free")
  monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(9, 4, 5))
  with pytest.raises(InputError, match="--keep_checkpoint_max"):
    doctor.check_disk("out", 6)


def test_checkpoint_bytes_count_the_checkpoints_kept():
  settings = option.make(ClassifierSettings, save_checkpoints_steps=10)
  # The checkpoints kept, and the one being written.
  for num_steps, number in ((5, 2), (15, 3), (1000, 3)):
    num_bytes = training_checks.checkpoint_bytes(settings, 100, num_steps)
    assert num_bytes == number * 12 * 100


def test_checkpoint_bytes_count_checkpoints_between_evaluations():
  settings = option.make(
    ClassifierSettings,
    save_checkpoints_steps=10,
    eval_steps=100,
    keep_checkpoint_max=7,
  )
  num_bytes = training_checks.checkpoint_bytes(settings, 100, 1000)
  assert num_bytes == (8 * 12 + 2 * 4) * 100
