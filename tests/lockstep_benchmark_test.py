"""Tests of the benchmark that compares training steps with those of PyTorch."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import lockstep, results
from website import fine_tuning


@pytest.mark.unit
def test_differences_are_the_largest_relative_to_pytorch():
  more = {
    "losses": {"ours": [2.0, 3.0, 4.5], "pytorch": [2.0, 4.0, 4.0]},
    "norms": {"ours": [9.0], "pytorch": [9.0, 10.0]},
  }
  found = lockstep.differences(SimpleNamespace(more=more))
  assert found == pytest.approx([0.25, 0.0, 0.1])


@pytest.mark.unit
def test_kept_results_are_of_all_tasks_and_within_the_limit():
  kept = results.read(str(fine_tuning.FOLDER / "lockstep.jsonl"))
  assert [result.work for result in kept] == list(lockstep.TASKS)
  largest = max(lockstep.differences(result)[0] for result in kept)
  assert largest <= lockstep.MAX_DIFFERENCE


@pytest.fixture
def settings(tmp_path, monkeypatch):
  """Settings of a step of a tiny tagger; `path` is not written."""
  import tensorflow.compat.v1 as tf
  import tiny_model

  import modeling

  monkeypatch.setattr(modeling, "dropout", modeling.dropout)  # restored
  config = tiny_model.config(20, hidden_size=8)
  (tmp_path / "bert_config.json").write_text(config.to_json_string())
  with tf.Graph().as_default(), tf.Session() as session:
    modeling.BertModel(config, False, tf.zeros([1, 4], tf.int32))
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, str(tmp_path / "bert_model.ckpt"))
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
def test_steps_start_from_the_given_head(settings):
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
