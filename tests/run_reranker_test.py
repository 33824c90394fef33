"""Tests of rerankers, most of them of the command line."""

import json
import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_reranker
import trained_models
from reference_data import read_jsonl
from tiny_reranker import LISTS, flags, training

import run_reranker
from bertlib.checkpoints import checkpoint_files
from bertlib.compute.fast_compute import FastCompute
from bertlib.reporting import run_report

pytestmark = pytest.mark.process

place = trained_models.data_fixture("reranker")
trained = trained_models.fixture("reranker")  # for 40 steps


def rerank(*arguments, **options):
  commands.succeed("run_reranker.py", *arguments, **options)


def results(folder):
  return run_outputs.read_numbers(folder / "eval_results.txt")


def test_it_learns_and_puts_no_lost_document_back(trained):
  """Two of 16 queries lack their document, which counts as not found."""
  scores = results(trained.folder)
  assert scores["eval_ndcg@10_before"] == pytest.approx(14 / 16 / 2)
  assert scores["eval_mrr@10"] == pytest.approx(14 / 16)
  assert (
    scores["eval_recall@100"] == scores["eval_recall@100_before"] == 14 / 16
  )
  lines = (trained.folder / "eval_run.trec").read_text().splitlines()
  first = [line.split()[2] for line in lines if line.split()[3] == "1"]
  assert first[1:] == [f"d{number}" for number in range(2, 16)]
  page = (trained.folder / "report.html").read_text()
  assert "0 of 16 queries are made worse." in page


def test_the_scores_written_are_those_of_the_predictor(trained):
  rows = read_jsonl(trained.folder / "texts_predictions.jsonl")
  pairs = [(row["query"], row["document"]) for row in rows]
  assert pairs[:2] == [(LISTS[0][0], LISTS[0][1]), (LISTS[0][0], LISTS[0][2])]
  with run_reranker.Predictor(str(trained.folder)) as predictor:
    scores = predictor.score(pairs)
  np.testing.assert_allclose([row["score"] for row in rows], scores, atol=1e-5)
  assert (
    run_outputs.read_json(trained.folder / "model.json")["activation"]
    == "identity"
  )


def test_an_encoder_finds_candidates_of_a_folder(place, trained, tmp_path):
  """Also for queries without judgments, and a model elsewhere."""
  commands.succeed(
    "run_embeddings.py",
    *flags(place, output_dir=tmp_path / "encoder"),
    "--do_train",
    f"--train_file={place / 'lists.tsv'}",
    "--text_columns=query,positive",
    "--train_batch_size=8",
    "--num_train_epochs=1",
    "--xla=off",
  )
  shutil.copytree(place / "beir", tmp_path / "beir")
  (tmp_path / "beir" / "qrels" / "test.tsv").unlink()
  arguments = [
    f"--init_checkpoint={trained.folder}",
    f"--output_dir={tmp_path / 'out'}",
    "--do_predict",
    f"--predict_file={tmp_path / 'beir'}",
    f"--candidates={tmp_path / 'encoder'}",
    "--top_k=3",
  ]
  rerank(*arguments)
  (kept,) = (tmp_path / "out").glob("candidates_*.json")
  written = kept.stat().st_mtime_ns
  rerank(*arguments)
  assert kept.stat().st_mtime_ns == written  # nothing is searched again
  found = read_jsonl(tmp_path / "out" / "beir_predictions.jsonl")
  assert [row["query"] for row in found] == [row[0] for row in LISTS]
  for row in found:
    scores = [document["score"] for document in row["documents"]]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
  run = (tmp_path / "out" / "beir_run.trec").read_text().split("\n")
  assert run[0].split()[:4] == ["q0", "Q0", found[0]["documents"][0]["id"], "1"]


def test_a_cross_encoder_keeps_its_output_layer(place, trained, tmp_path):
  rerank(
    f"--init_checkpoint={trained.folder}",
    f"--output_dir={tmp_path}",
    *training(place, "pairs.tsv"),
    "--learning_rate=0",
    "--num_train_epochs=0.2",
    "--max_seq_length=16",
  )
  name = "output_weights"
  found, expected = (
    run_outputs.read_variables(checkpoint_files.model_checkpoint(str(folder)))[
      name
    ]
    for folder in (tmp_path, trained.folder)
  )
  np.testing.assert_array_equal(found, expected)
  description = run_outputs.read_json(tmp_path / "model.json")
  assert description["activation"] == "sigmoid"


@pytest.fixture
def no_dropout(tmp_path):
  config = tiny_reranker.CONFIG.to_dict() | {"classifier_dropout": 0.0}
  config |= {name: 0.0 for name in config if "dropout" in name}
  path = tmp_path / "config.json"
  path.write_text(json.dumps(config))
  return f"--bert_config_file={path}"


# Rows have different numbers of negatives, so that parts of a batch have too.
@pytest.mark.train
@pytest.mark.parametrize(
  ("loss", "file", "more"),
  [
    ("margin_mse", "mined.jsonl", ["--teacher_scores_column=scores"]),
    pytest.param("bce", "mined.jsonl", [], marks=pytest.mark.slow),
    pytest.param("listwise", "beir", [], marks=pytest.mark.slow),
  ],
)
def test_replicas_and_micro_batches_train_as_one(
  place, tmp_path, no_dropout, loss, file, more
):
  losses = []
  for parts in (1, 2):
    folder = tmp_path / str(parts)
    rerank(
      *flags(place, *training(place, file), output_dir=folder),
      f"--loss={loss}",
      "--num_train_epochs=2",
      no_dropout,
      f"--num_replicas={parts}",
      f"--gradient_accumulation_steps={parts}",
      *more,
    )
    losses.append(run_report.read_scalars(str(folder))["loss"])
  steps = [step for step, _ in losses[0]]
  assert steps == [1, 4]
  np.testing.assert_allclose(losses[1], losses[0], rtol=2e-5)


@pytest.mark.train
def test_a_killed_run_resumes_and_scores_nothing_again(
  place, trained, tmp_path, monkeypatch
):
  def run():
    rerank(
      *flags(place, *training(place), output_dir=tmp_path),
      f"--teacher={trained.folder}",
      "--num_train_epochs=2",
      "--save_checkpoints_steps=2",
    )
    return run_outputs.read_variables(str(tmp_path / "model.ckpt-4"))

  expected = run()
  (scores,) = tmp_path.glob("teacher_*.npy")
  pairs = [(row[0], text) for row in LISTS for text in row[1:]]
  with run_reranker.Predictor(str(trained.folder)) as predictor:
    np.testing.assert_array_equal(np.load(scores), predictor.logits(pairs))
  written = scores.stat().st_mtime_ns
  for path in tmp_path.glob("model.ckpt-4.*"):
    path.unlink()
  (tmp_path / "checkpoint").write_text(
    'model_checkpoint_path: "model.ckpt-2"\n'
  )
  run_outputs.assert_same_bits(run(), expected)
  assert scores.stat().st_mtime_ns == written


@pytest.mark.graph
def test_missing_documents_have_no_rows(graph):
  """Logits are those of each pair alone; the encoder gets no others."""
  ids = np.random.RandomState(0).randint(5, 22, [3, 4, 6])
  numbers, lengths = [[4], [1], [2]], 3 + np.arange(12).reshape(3, 4) % 4
  mask = np.arange(6) < lengths[..., np.newaxis]
  mask &= (np.arange(4) < numbers)[..., np.newaxis]
  inputs = [tf.constant(x * mask, tf.int32) for x in (ids, mask, 0 * ids)]
  seen = []

  class Watching(FastCompute):
    def for_batch(self, input_mask):
      seen.append(input_mask)
      return super().for_batch(input_mask)

  model = tiny_reranker.CONFIG, False
  of_lists = run_reranker.create_model(
    *model, *inputs, False, compute=Watching(unpad=True)
  )
  alone = [tf.reshape(tensor, [12, 6]) for tensor in inputs]
  with tf.variable_scope("", reuse=True):
    of_pairs = run_reranker.create_model(*model, *alone, False)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    lists, pairs, rows = session.run([of_lists, of_pairs, seen[0]])
  is_document = mask[..., 0]
  expected = pairs.reshape(3, 4)[is_document]
  np.testing.assert_allclose(lists[is_document], expected, atol=1e-6)
  assert not lists[~is_document].any()
  assert rows.sum(axis=1).tolist() == lengths[is_document].tolist()
