"""Tests of the benchmarks: their results, checks, and runs at toy size."""

import json
import math
import os
import sys
from types import SimpleNamespace

import commands
import numpy as np
import pytest
import reference_data
import run_pretraining_test
import tensorflow.compat.v1 as tf
import tiny_model
import tiny_pretraining
from parametrize import parametrize
from safetensors.numpy import load_file

import modeling
from benchmarks import (
  embeddings,
  gpu,
  inference,
  inference_works,
  lockstep,
  packing,
  pretraining_plan,
  results,
  side_by_side,
  training_step,
)
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs
from website import fine_tuning

pytestmark = pytest.mark.unit


def run(json_file, module, *flags):
  """Runs a benchmark without its peers; returns its output and its results."""
  output = commands.python(
    *("-m", f"benchmarks.{module}", "--peer_python=", "--passes=1"),
    *(f"--json_file={json_file}", *flags),
  )
  return output, results.read(json_file)


# What all share: comparisons, and lines of results

VALUES = {
  "a step": {"ours": [2.0, 2.0, 4.0], "other": [6.0, 4.0, 4.0]},
  "spearman": {"ours": [0.5], "other": [0.4]},
}


def make(**fields):
  ratios = results.compare(VALUES, results.pairs_with("ours", VALUES))
  sides = {name: {"description": "", "versions": {}} for name in VALUES}
  defaults = {"benchmark": "a", "work": "b", "command": "c", "date": "d"}
  return results.Result(
    **{**defaults, **fields},
    processor="",
    instruction_sets="",
    threads=2,
    versions={},
    sides=sides,
    values=VALUES,
    ratios=ratios,
  )


def test_ratios_are_those_of_each_pass():
  pairs = [("a step", "ours", "other")]
  assert results.compare(VALUES, pairs) == [
    results.Ratio("a step", "ours", "other", 2.0, 1.0, 3.0)
  ]


def test_a_time_below_the_tick_of_the_clock_has_no_ratio():
  values = {"masks of an epoch": {"remask": [0.0, 0.1], "other": [0.2, 0.2]}}
  pairs = [("masks of an epoch", "remask", "other")]
  assert results.compare(values, pairs) == []


def test_lines_are_appended_and_read_as_they_were(tmp_path):
  first, second = make(work="one"), make(work="two", device="a GPU")
  path = tmp_path / "results.jsonl"
  for result in (first, second):
    results.append(path, result)
  assert results.read(path) == [first, second]


@parametrize(
  "words,shown",
  (["--glue_dir=/home/me/glue"], " --glue_dir=glue"),
  (["--glue_dir=glue/MRPC/"], " --glue_dir=MRPC/"),
  (["--files=/a/b.txt,../c/d.txt"], " --files=b.txt,d.txt"),
  (["--vocab", "/home/me/vocab.txt"], " --vocab vocab.txt"),
  (["--passes=3", "--json_file=/a/b.jsonl", "--x"], " --passes=3 --x"),
  (["--json_file", "/a/b.jsonl"], ""),
  (["--launcher=taskset -c 0"], " '--launcher=taskset -c 0'"),
)
def test_commands_have_no_folders(words, shown, monkeypatch):
  monkeypatch.setattr(results.os, "environ", {"HOME": "/home/me"})
  command = results.command_line("benchmarks.a", words)
  assert command == "python -m benchmarks.a" + shown


def fail():
  raise OSError("no compiler")


def test_variant_that_cannot_be_compiled_is_named_and_skipped():
  variants = side_by_side.with_compiled("float32", "auto")
  assert variants == {"float32": False, "float32, torch.compile": True}
  best, description = side_by_side.fastest(
    {name: fail if compiles else dict for name, compiles in variants.items()}, 1
  )
  assert best == "float32"
  assert "float32, torch.compile failed: OSError" in description


def test_packages_that_the_other_code_lacks_are_named(monkeypatch):
  flags = SimpleNamespace(peer_python=sys.executable)
  monkeypatch.setattr(side_by_side, "FLAGS", flags)
  side_by_side.check_peers("numpy")
  with pytest.raises(InputError, match=r"pip install no-such-package`$"):
    side_by_side.check_peers("numpy", "no-such-package")


def test_too_few_examples_are_refused(monkeypatch, tmp_path):
  side_by_side.check_number("glue/MRPC", 32, 32)
  with pytest.raises(InputError, match="glue/MRPC: has 31 of the 32 examples"):
    side_by_side.check_number("glue/MRPC", 31, 32)
  flags = SimpleNamespace(steps=2, batch_size=3)
  monkeypatch.setattr(lockstep, "FLAGS", flags)
  monkeypatch.setattr(lockstep, "read_rows", lambda task: [{}] * 5)
  with pytest.raises(InputError, match="tags: has 5 of the 6 examples"):
    lockstep.write_batches("tags", str(tmp_path / "batches.npz"))


# Embeddings


@pytest.fixture
def published():
  """A small folder of sentence-transformers."""
  return os.path.dirname(
    reference_data.golden("sentence_transformers", "6.2.0", "modules.json")
  )


@parametrize("num_layers", 0, 1)
def test_only_the_upper_layers_become_random(published, tmp_path, num_layers):
  embeddings.reinitialize(published, str(tmp_path / "a"), num_layers)
  embeddings.reinitialize(published, str(tmp_path / "b"), num_layers)
  before, a, b = (
    load_file(os.path.join(folder, "model.safetensors"))
    for folder in (published, tmp_path / "a", tmp_path / "b")
  )
  assert a.keys() == before.keys()
  with open(os.path.join(published, "config.json")) as file:
    total = json.load(file)["num_hidden_layers"]
  scopes = {f"encoder.layer.{total - n}." for n in range(1, num_layers + 1)}
  for name, tensor in a.items():
    np.testing.assert_array_equal(tensor, b[name])  # the same seed
    if tensor.ndim == 2:
      is_kept = not any(scope in name for scope in scopes)
      assert np.array_equal(tensor, before[name]) == is_kept, name


@pytest.mark.process
@parametrize("steps", "", "step 1 of 1", "step 1 of 9\nstep 9 of 9")
def test_training_is_timed_from_its_second_step(steps):
  printed = f"import sys; print({steps!r}, file=sys.stderr)"
  answer, _ = embeddings.run("-c", printed, train_batch_size=4)
  assert ("training" in answer) == ("9" in steps)


@pytest.mark.slow
def test_small_embeddings_are_trained(published, tmp_path):
  lines = ["sentence1\tsentence2\tscore"]
  lines += [f"text {a}\ttext {b}\t{a % 6}" for a in range(8) for b in range(2)]
  for name in ("train.tsv", "dev.tsv"):
    (tmp_path / name).write_text("\n".join(lines) + "\n")
  output, (result,) = run(
    tmp_path / "results.jsonl",
    "embeddings",
    *(f"--sentence_transformers_dir={published}", f"--stsb_dir={tmp_path}"),
    *("--reinitialize_layers=1", "--precision=float32", "--max_seq_length=16"),
    *("--train_batch_size=4", "--num_train_epochs=1"),
  )
  assert "before training: spearman" in output
  for name in ("training", "whole command", "spearman"):
    assert len(result.values[name]["ours"]) == 1


@pytest.mark.slow
def test_a_small_reranker_is_timed(published, tmp_path):
  texts = [
    {"context": f"text {n}", "qas": [{"id": f"{n}", "question": f"what {n}"}]}
    for n in range(8)
  ]
  squad_file = tmp_path / "squad.json"
  squad_file.write_text(json.dumps({"data": [{"paragraphs": texts}]}))
  start = tmp_path / "start"
  embeddings.run("convert_checkpoint.py", input=published, output=start)
  _, (result,) = run(
    tmp_path / "results.jsonl",
    "reranking",
    *(f"--squad_file={squad_file}", f"--model_dir={start}"),
    *("--hugging_face_dir=", "--batch_size=2", "--steps=4"),
    *("--max_seq_length=16", "--precision=float32"),
  )
  assert result.values["pairs"]["ours"][0] > 0


# Checks of a GPU, on a CPU

TOY = SimpleNamespace(toy=True, **gpu.TOY)


@pytest.mark.train
@parametrize(
  "check",
  gpu.cpu_numbers,
  gpu.xla,
  gpu.fast_compute,
  gpu.defaults,
  gpu.float16_run,
)
def test_check_passes_at_toy_size(check):
  answer = next(check(TOY))
  assert answer["passed"] is True, answer["description"]


@pytest.mark.train
def test_other_losses_fail_a_check(monkeypatch):
  losses = iter([[1.0, 0.9], [1.0, 0.901]])
  monkeypatch.setattr(
    gpu,
    "_train",
    lambda *args, **more: gpu.Trained(next(losses), 1.0, 0, None),
  )
  assert next(gpu.fast_compute(TOY))["passed"] is False


def test_share_of_the_peak_is_that_of_the_products():
  work = {"layers": 12, "hidden": 768, "heads": 12, "seq_length": 128}
  seconds = {"ours": [0.2, 0.1, 0.3], "hugging face": [0.4, 0.3, 0.4]}
  found = gpu.summary(
    {**work, "predicts": False, "batch_size": 100}, seconds, peak=1e15
  )
  assert found["sequences_per_second"] == 500
  # 85 million weights in products, 6 operations each and token; and attention.
  operations = 100 * 128 * (6 * 84.9e6 + 12 * 12 * 128 * 768)
  share = operations / 0.2 / 1e15
  assert found["share_of_peak"] == pytest.approx(share, rel=0.01)


@pytest.mark.slow
def test_command_checks_measures_and_writes_json(tmp_path):
  output, (checks, speed) = run(
    tmp_path / "gpu.jsonl",
    *("gpu", "--toy", "--checks=planned_memory", "--steps=1"),
  )
  assert "not run planned_memory" in output
  assert [c["passed"] for c in checks.more["checks"]] == [None]
  assert speed.values["a step"]["ours"][0] > 0
  assert speed.more["model"] == "toy"
  assert speed.more["share_of_peak"] > 0


# Inference


def test_ratios_are_to_each_peer_at_its_best():
  values = {
    "batches": {
      "predictor-float32": [2.0, 2.0, 4.0],
      "transformers-float32": [9.0, 9.0, 9.0],
      "transformers-int8": [6.0, 4.0, 4.0],
    }
  }
  pairs = list(inference.pairs_of(values))
  assert pairs == [("batches", "predictor-float32", "transformers-int8")]


@parametrize(
  "settings, expected",
  ({}, [[1, 2], [0]]),
  ({"unsorted_size": 2}, [[0, 1], [2]]),
)
def test_outputs_of_batches_are_in_order(settings, expected, monkeypatch):
  monkeypatch.setattr(inference_works, "_TOKENS_PER_BATCH", 18)
  batches = []

  def run(batch):
    batches.append(batch)
    return [10 * row for row in batch]

  outputs = inference_works.in_sorted_batches(
    SimpleNamespace(**settings), [1, 9, 5], run
  )
  assert outputs == [0, 10, 20]
  assert batches == expected


@pytest.mark.slow
def test_a_small_model_is_timed(tmp_path):
  vocab_file = tmp_path / "vocab.txt"
  vocab = [*tiny_model.SPECIAL, "##s", "1", "one", "two"]
  vocab_file.write_text("\n".join(vocab) + "\n")
  _, (batches, alone) = run(
    tmp_path / "results.jsonl",
    *("inference", "--models=tiny", "--sides=predictor-float32"),
    *("--works=tokens,tokens-one", f"--vocab_file={vocab_file}"),
    *("--max_texts=2", "--latency_runs=2"),
  )
  assert set(batches.values) == {"batches", "processor time"}
  assert set(alone.values) == {"median", "99th percentile", "processor time"}
  for result in (batches, alone):
    assert result.sides["predictor-float32"]["versions"]["tensorflow"]
    for by_side in result.values.values():
      assert by_side["predictor-float32"][0] > 0


# Training steps beside those of PyTorch


def test_differences_are_the_largest_relative_to_pytorch():
  more = {
    "losses": {"ours": [2.0, 3.0, 4.5], "pytorch": [2.0, 4.0, 4.0]},
    "norms": {"ours": [9.0], "pytorch": [9.0, 10.0]},
  }
  found = lockstep.differences(SimpleNamespace(more=more))
  assert found == pytest.approx([0.25, 0.0, 0.1])


def test_kept_results_are_of_all_tasks_and_within_the_limit():
  kept = results.read(str(fine_tuning.FOLDER / "lockstep.jsonl"))
  assert [result.work for result in kept] == list(lockstep.TASKS)
  largest = max(lockstep.differences(result)[0] for result in kept)
  assert largest <= lockstep.MAX_DIFFERENCE


@pytest.fixture
def lockstep_settings(tmp_path, monkeypatch):
  """Settings of a step of a tiny tagger; `path` is not written."""
  monkeypatch.setattr(modeling, "dropout", modeling.dropout)  # restored
  config = tiny_model.config(20, hidden_size=8)
  (tmp_path / "bert_config.json").write_text(config.to_json_string())
  tiny_model.write_encoder(tmp_path / "bert_model.ckpt", config)
  return SimpleNamespace(
    task="tags",
    path=tmp_path / "batches.npz",
    model_dir=str(tmp_path),
    batch_size=2,
    max_seq_length=4,
    learning_rate=1e-2,
    steps=3,
  )


@pytest.mark.train
def test_steps_start_from_the_given_head(lockstep_settings):
  settings = lockstep_settings
  ids = np.arange(5, 13, dtype=np.int32).reshape(2, 4)
  batch = {
    "input_ids": ids,
    "input_mask": np.ones_like(ids),
    "segment_ids": np.zeros_like(ids),
    "label_ids": np.array([[-1, 0, 1, -1], [-1, 2, 0, 1]], np.int32),
  }
  batches = {
    name: np.stack([array] * settings.steps) for name, array in batch.items()
  }
  np.savez(settings.path, head=np.zeros([3, 8]), **batches)
  answer = next(lockstep.ours(settings))
  losses = answer["losses"]
  # Of equal logits; weighted_mean adds 1e-5 to the number of words, 5.
  assert losses[0] == pytest.approx(np.log(3.0) * 5 / 5.00001, rel=1e-6)
  assert losses[2] < losses[1] < losses[0]
  assert answer["norms"][0] > 0


# Training steps, and packed rows


def settings(**changed):
  values = {
    "layers": 1,
    "hidden": 16,
    "heads": 2,
    "batch_size": 2,
    "memory_gb": None,
  }
  return SimpleNamespace(**values | changed)


@pytest.mark.slow
@parametrize("precision", "float32", "bfloat16")
def test_a_step_of_a_small_model_is_timed(precision):
  side = training_step.ours(
    settings(precision=precision, xla="on", seq_length=8, steps=1)
  )
  assert next(side)["description"] == f"{precision}, compiled"
  assert next(side)["a step"] > 0


@pytest.mark.train
@parametrize("side", "packed static", "unpadded")
def test_epochs_of_packed_rows_are_timed(side):
  sizes = {"seq_length": 16, "sequences": 9}
  answers = packing.epochs(
    settings(precision="float32", xla="off", **sizes, **packing.SIDES[side])
  )
  assert "tokens fill" in next(answers)["description"]
  assert next(answers)["an epoch"] > 0


# The plan of a pretraining, against graphs and small sums

PRETRAINED = tiny_pretraining.CONFIG
PHASE = SimpleNamespace(
  train_batch_size=48,
  num_train_steps=100,
  sequences_at_once=5,
  sequences_per_second=2.0,
  bandwidth_gb=1e-6,
)


@pytest.mark.graph
def test_weights_are_those_of_the_graph(graph):
  names = *model_inputs.TOKEN_FEATURES, "masked_lm_positions"
  run_pretraining_test.build_model({name: [[0] * 4] for name in names})
  sizes = [math.prod(v.shape.as_list()) for v in tf.trainable_variables()]
  assert pretraining_plan.num_weights(PRETRAINED) == sum(sizes)


def test_a_ring_is_sent_around_twice():
  num_bytes = 4 * pretraining_plan.num_weights(PRETRAINED)
  sent = [pretraining_plan.exchanged_bytes(PRETRAINED, n) for n in (1, 2, 4)]
  assert sent == [0, num_bytes, 1.5 * num_bytes]


def test_a_share_of_a_phase():
  found = pretraining_plan.share(PRETRAINED, PHASE, 2)
  sent = 4 * pretraining_plan.num_weights(PRETRAINED)
  # Of 24, at most 5 each.
  assert (found.num_micro_batches, found.at_once) == (6, 4)
  assert found.computing == 12.0
  assert found.exchange == pytest.approx(sent / 1e3)
  assert found.hours == pytest.approx(100 * (12.0 + sent / 1e3) / 3600)


def test_devices_that_cannot_share_a_batch_are_refused():
  with pytest.raises(InputError, match="=48 cannot be divided among 7 devices"):
    pretraining_plan.share(PRETRAINED, PHASE, 7)
