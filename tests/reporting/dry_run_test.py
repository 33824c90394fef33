"""Tests of --doctor: dry runs of the commands, and what they estimate."""

import collections
import re

import commands
import pytest
import wrong_input_world
from parametrize import parametrize
from refused import assert_refused

import create_pretraining_data
import extract_features
import modeling
import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_reranker
import run_squad
import tokenization
from bertlib.checkpoints import model_folder
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.compute import precision
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import example_checks, labeled_examples, tf_records
from bertlib.hardware.devices import Devices
from bertlib.hardware.replicas import Replicas
from bertlib.io import files
from bertlib.reporting import training_checks
from bertlib.task.task_record import StepShape, Task, TaskRecord
from bertlib.tasks.classification.settings import ClassifierSettings
from bertlib.training import step_plan
from bertlib.training.runs import Run
from optimization import StepOptions

pytestmark = pytest.mark.graph


@pytest.fixture
def dry_run(world, capsys, monkeypatch):
  """Runs a script; returns (status, text) by step and the error at the end."""
  monkeypatch.setattr(precision, "product_rates", lambda *_, **__: {"": 1e9})

  def dry_run(script, *flags):
    before, error = set(world.iterdir()), None
    given = *wrong_input_world.COMMANDS[script.__name__], "--doctor", *flags
    with commands.in_process(script) as main:
      try:
        main(*(flag.format(world=world, out=world / "out") for flag in given))
      except InputError as raised:
        error = str(raised)
    assert set(world.iterdir()) == before
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split(None, 2) for line in lines]
    return {name: (status, *text) for status, name, *text in steps}, error

  return dry_run


@parametrize(
  "script, more",
  (run_classifier, ["--do_eval", "--labels=no,yes"]),
  (run_squad, ["--num_workers=1"]),
  (run_embeddings, ["--do_eval", "--dev_file={world}/questions.tsv"]),
  (run_reranker, ["--do_eval", "--dev_file={world}/lists.tsv"]),
  (run_ner, []),
  (run_pretraining, []),
  (extract_features, []),
  (create_pretraining_data, []),
)
def test_all_steps_of_a_valid_run_pass(dry_run, script, more):
  found, error = dry_run(script, *more)
  assert {status for status, *_ in found.values()} == {"pass"}
  assert len(found) > 3 and error is None


@parametrize(
  "script, flags, step, expected",
  (run_classifier, "--labels=no,yes --text_b_column=3", "data", "no column"),
  (run_classifier, "--class_weights=2:1", "classes", "give LABEL:WEIGHT"),
  (run_classifier, "--output_dir={world}/vocab.txt/x", "disk", "Not a dir"),
  (run_classifier, "--num_replicas=3", "batches", "among 3 replicas"),
  (run_squad, "--train_batch_size=99", "windows", "not enough for one step"),
  (run_ner, "--train_file={world}/vocab.txt", "sentences", "without tags"),
  (run_embeddings, "--matryoshka_dims=9", "vectors", "must be 8"),
  (run_reranker, "--teacher={world}/trained", "models", "holds no model"),
  (run_pretraining, "--input_file={world}/dev.tsv", "data", "dev.tsv: "),
  (extract_features, "--init_checkpoint={world}/mrpc", "model", "a folder"),
  (create_pretraining_data, "--input_file=/dev/null", "text", "no text"),
)
def test_invalid_input_fails_the_step_that_reads_it(
  dry_run, script, flags, step, expected
):
  found, error = dry_run(script, *flags.split())
  status, text = found[step]
  assert status == "fail" and expected in text
  assert error.startswith("--doctor: failed steps: ")


def test_only_dependents_of_a_failed_step_are_skipped(dry_run):
  found, _ = dry_run(run_classifier, "--bert_config_file=gone.json")
  statuses = {name: status for name, (status, *_) in found.items()}
  assert [name for name in found if statuses[name] == "fail"] == ["config"]
  expected = dict.fromkeys(["vocabulary", "run", "texts"], "skip")
  expected |= dict.fromkeys(["checkpoint", "data"], "pass")
  assert expected.items() <= statuses.items()


def test_labels_that_are_missing_are_a_warning(caplog):
  sets = {"the dev set": ["y"] * 26 + ["n"]}
  labeled_examples.check_labels(["n", "y", "z"], sets)
  assert caplog.messages == ["the dev set has no z"]


def test_truncated_examples_are_a_warning(caplog):
  examples = [example_checks.Encoded([2, 3], *size) for size in [(2,), (2, 99)]]
  found = example_checks.check_encoded(examples, 9, 200, None)
  assert found == example_checks.LengthSummary(200, 2.0)
  assert "50.0% are truncated, by 99 tokens on average" in caplog.text


@parametrize("num_pieces", 2, 3)
def test_words_of_many_pieces_are_a_warning(num_pieces, caplog):
  caplog.set_level("INFO")
  vocab = dict(zip(["[CLS]", "[SEP]", "a", "##b", "."], range(5)))
  tokenizer = tokenization.FullTokenizer(vocab)
  ids = [0, 2, *[3] * (num_pieces - 1), 4, 1, 0, 0]  # the last two are padding
  example = example_checks.Encoded(ids, len(ids) - 2)
  example_checks.check_encoded([example], 9, 1, tokenizer)
  assert f"{num_pieces}.00 pieces per word" in caplog.text
  assert ("know the language" in caplog.text) == (num_pieces > 2.2)


@parametrize("do_lower_case", False, True)
def test_texts_with_other_ids_when_composed_are_a_warning(
  do_lower_case, caplog
):
  vocab = ["[UNK]", "[CLS]", "[SEP]", "caf\u00e9", "cafe"]
  vocab = dict(zip(vocab, range(5)))
  tokenizer = tokenization.FullTokenizer(vocab, do_lower_case)
  texts = ["caf\u00e9", "cafe", "cafe\u0301", "\u212b"]  # the last is unknown
  example_checks.check_encoded([], 9, 4, tokenizer, texts)
  # Without marks, both forms are the same.
  expected = "in NFC, the usual form of letters with marks: 1, the first: 'cafe"
  assert (expected in caplog.text) != do_lower_case


@parametrize("count", 0, 2000, 2001, 9000)
def test_sample_has_at_most_the_requested_size(count):
  assert min(count, 1000) <= len(example_checks.sample(range(count))) <= 2000


@parametrize("bad, expected", ([3, 9], "id 9"), ([-1], "id -1"))
def test_ids_out_of_range_are_refused(bad, expected):
  example_checks.check_ids([0, 8], 9, "x")
  with pytest.raises(InputError, match=f"^x: has the {expected}"):
    example_checks.check_ids(bad, 9, "x")


def test_too_little_disk_space_is_refused(monkeypatch):
  usage = collections.namedtuple("usage", "total used free")
  monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage(9, 4, 5))
  assert_refused("--keep_checkpoint_max", files.check_disk, "out", 6)


@parametrize(
  "flags, num_steps, expected",
  # The checkpoints kept, and the one being written.
  ({}, 5, 2 * 12),
  ({}, 15, 3 * 12),
  ({}, 1000, 3 * 12),
  ({}, 0, 3 * 12),  # within a budget
  ({"eval_steps": 100, "keep_checkpoint_max": 7}, 1000, 8 * 12 + 2 * 4),
)
def test_checkpoint_bytes_count_checkpoints(flags, num_steps, expected):
  settings = option.make(ClassifierSettings, save_checkpoints_steps=10, **flags)
  found = training_checks.checkpoint_bytes(settings, 100, num_steps)
  assert found == expected * 100


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

  def estimate(devices, count_steps=None, **flags):
    settings = option.make(ClassifierSettings, do_train=True, **flags)
    devices = Devices(settings.devices, **devices)
    run = Run(settings, devices, TASK, CONFIG, None, None, None)
    plan = step_plan.Plan(FastCompute(), StepOptions())
    lengths = example_checks.LengthSummary(100, 50.0)
    step = Steps(True)
    training_checks.estimate_training(step, run, plan, lengths, count_steps)

  return estimate


@parametrize(
  "devices, batch_size, num_sharing",
  ({}, 64, 1),
  ({"replicas": Replicas(4, on_gpu=True)}, 16, 1),
  ({"replicas": Replicas(4)}, 16, 4),
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
  shape = StepShape(128, num_output_positions=1)
  one = step_plan.step_bytes(CONFIG, batch_size, shape, FastCompute())
  assert checked == [(num_sharing * (one + 10**8), 10**10)]


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


def test_checkpoints_of_an_unknown_number_of_steps_take_disk(
  monkeypatch, estimate
):
  checked = []
  monkeypatch.setattr(
    training_checks, "check_disk", lambda _, size: checked.append(size)
  )
  estimate({}, count_steps=lambda _: 0, keep_checkpoint_max=7)
  num_weights = model_folder.num_weights(CONFIG)
  assert checked == [8 * 12 * num_weights + 5 * 100 * 128]


def test_too_little_memory_names_what_helps(caplog):
  training_checks.check_memory(6 * 10**9, 4 * 10**9)
  (message,) = caplog.messages
  fault = "memory: needs up to 6.0 GB, only 4.0 GB free. Give"
  assert message.startswith(fault)
  assert "--memory_gb=4," in message
