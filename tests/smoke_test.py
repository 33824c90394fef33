"""Every command that computes, on a tiny model.

What a step computes is tested elsewhere. Here each command runs from its first
line to its last and leaves the files that it promises.
"""

import importlib
from pathlib import Path

import commands
import pytest
import tensorflow.compat.v1 as tf
import trained_models
import wrong_input_world
from parametrize import parametrize

pytestmark = [pytest.mark.train, pytest.mark.smoke]


@parametrize(
  "name, written",
  ("classifier", "eval_results.txt test_results.tsv test_results.jsonl"),
  ("squad", "eval_results.txt predictions.json nbest_predictions.json"),
  ("ner", "eval_results.txt test_predictions.conll test_predictions.jsonl"),
  ("embeddings", "eval_results.txt corpus_vectors.npy queries_results.jsonl"),
  ("reranker", "eval_results.txt texts_predictions.jsonl"),
  ("pretraining", "eval_results.txt predictions.jsonl"),
)
def test_a_model_is_trained_and_used(name, written, once, tmp_path):
  folder = trained_models.copy(once, name, tmp_path).folder
  names = f"{written} model.json report.html".split()
  assert [name for name in names if not (folder / name).is_file()] == []
  assert tf.train.latest_checkpoint(folder)


# Quick tests of the other commands run them.
@parametrize(
  "script, written",
  ("export_model", "/saved_model.pb"),
  ("convert_checkpoint", "/model.safetensors"),
)
def test_output_is_written(script, written, world, tmp_path):
  paths = {"world": world, "out": tmp_path / "out"}
  given = wrong_input_world.COMMANDS[script]
  with commands.in_process(importlib.import_module(script)) as main:
    main(*(text.format(**paths) for text in given))
  assert Path(f"{paths['out']}{written}").stat().st_size > 0
