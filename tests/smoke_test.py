"""One step of every command, in this process, with a model of two tiny layers.

What a step computes is tested elsewhere. Here each command runs from its first
line to its last and leaves the files that it promises.
"""

import importlib
from pathlib import Path

import commands
import pytest
import tensorflow.compat.v1 as tf
import wrong_input_world

pytestmark = [pytest.mark.train, pytest.mark.smoke]


@pytest.fixture
def run(world, tmp_path):
  """Runs a command on `world`; returns its output folder."""

  def run(script, *more):
    given = (*wrong_input_world.COMMANDS[script], *more)
    out = tmp_path / "out"
    with commands.in_process(importlib.import_module(script)) as main:
      main(*(text.format(world=world, out=out) for text in given))
    return out

  return run


@pytest.mark.parametrize(
  "script, actions, written",
  [
    (
      "run_classifier",
      "--do_eval --do_predict --train_batch_size=8",
      "eval_results.txt test_results.tsv test_results.jsonl",
    ),
    ("run_squad", "--do_predict", "predictions.json nbest_predictions.json"),
    (
      "run_ner",
      "--do_eval --do_predict --train_batch_size=8",
      "eval_results.txt ner_predictions.conll ner_predictions.jsonl",
    ),
    (
      "run_embeddings",
      """--do_eval --dev_file={world}/beir
      --do_predict --predict_file={world}/lines.txt
      --corpus_file={world}/lines.txt --query_file={world}/lines.txt""",
      "eval_results.txt lines_vectors.npy lines_results.jsonl",
    ),
    (
      "run_reranker",
      "--do_predict --predict_file={world}/pairs.tsv",
      "pairs_predictions.jsonl pairs_predictions.tsv",
    ),
    ("run_pretraining", "--do_eval --num_train_steps=1", "eval_results.txt"),
  ],
)
def test_one_step_is_trained_and_the_model_is_used(
  run, script, actions, written
):
  folder = run(script, *actions.split())
  names = f"{written} model.ckpt-1.index model.json report.html".split()
  assert [name for name in names if not (folder / name).is_file()] == []
  assert tf.train.latest_checkpoint(folder).endswith("model.ckpt-1")


# Quick tests of the other commands run them.
@pytest.mark.parametrize(
  "script, written",
  [
    ("export_model", "/saved_model.pb"),
    ("convert_checkpoint", "/model.safetensors"),
  ],
)
def test_output_is_written(run, script, written):
  folder = run(script)
  assert Path(f"{folder}{written}").stat().st_size > 0
