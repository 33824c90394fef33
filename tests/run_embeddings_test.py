"""Tests of sentence embeddings, most of them of the command line."""

import json
import re
import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tiny_embeddings
import trained_models
from reference_data import read_jsonl
from tiny_embeddings import PAIRS, flags, training

import run_embeddings
from bertlib.checkpoints import checkpoint_files
from bertlib.exchange import rewrite
from bertlib.reporting import run_report

pytestmark = pytest.mark.process


place = trained_models.data_fixture("embeddings")
trained = trained_models.fixture("embeddings")  # for 40 steps


@pytest.fixture(scope="module")
def predictor(trained):
  with run_embeddings.Predictor(str(trained.folder)) as predictor:
    yield predictor


def embed(*arguments, **options):
  commands.succeed("run_embeddings.py", *arguments, **options)


def results(folder):
  return run_outputs.read_numbers(folder / "eval_results.txt")


def test_it_learns_and_reports_the_score_of_the_best_weights(trained):
  scores = results(trained.folder)
  assert scores["eval_ndcg@10"] > 0.95
  assert scores["eval_ndcg@10_8"] > 0.8
  rows = read_jsonl(trained.folder / "dev_scores.jsonl")
  assert [row["step"] for row in rows] == [20, 40]
  best = max(row["ndcg@10"] for row in rows)
  assert scores["eval_ndcg@10"] == pytest.approx(best)
  assert "<h2>Worst errors</h2>" in (trained.folder / "report.html").read_text()


def test_the_vectors_written_are_those_of_the_predictor(trained, predictor):
  vectors = np.load(trained.folder / "corpus_vectors.npy")
  assert vectors.dtype == np.float32
  expected = predictor.encode(text for _, text in PAIRS)
  np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_vectors_of_any_width_have_length_one(predictor):
  texts = [text for text, _ in PAIRS]
  full, short = predictor.encode(texts), predictor.encode(texts, dim=8)
  assert predictor.encode([]).shape == (0, 16)
  assert (full.shape, short.shape) == ((16, 16), (16, 8))
  for vectors in (full, short):
    norms = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-5)
  cut = full[:, :8] / np.linalg.norm(full[:, :8], axis=1, keepdims=True)
  np.testing.assert_allclose(short, cut, rtol=1e-5)


def test_a_released_checkpoint_without_a_pooler_is_a_model(
  trained, predictor, tmp_path
):
  weights = rewrite.read_weights(str(trained.folder / "best"))
  weights = {n: v for n, v in weights.items() if "/pooler/" not in n}
  checkpoint_files.write_variables(str(tmp_path / "bert_model.ckpt"), weights)
  for name in ("model.json", "bert_config.json", "vocab.txt"):
    shutil.copy(trained.folder / name, tmp_path)
  texts = ["ann went to rome"]
  expected = predictor.encode(texts)
  with run_embeddings.Predictor(str(tmp_path)) as converted:
    np.testing.assert_array_equal(converted.encode(texts), expected)
  (tmp_path / "texts.txt").write_text(texts[0] + "\n")
  model = f"--init_checkpoint={tmp_path}"
  files = "--input_file=texts.txt", "--output_file=vectors.npz"
  arguments = model, *files, "--output_format=npz"
  commands.succeed("extract_features.py", *arguments, cwd=tmp_path)
  vectors = np.load(tmp_path / "vectors.npz")["vectors"]
  np.testing.assert_allclose(vectors, expected, atol=1e-6)
  predict = "--do_predict", "--predict_file=texts.txt", "--output_dir=out"
  embed(model, *predict, cwd=tmp_path)
  vectors = np.load(tmp_path / "out" / "texts_vectors.npy")
  np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_search_results_are_the_most_similar_lines(trained, predictor):
  found = read_jsonl(trained.folder / "queries_results.jsonl")
  queries, texts = zip(*PAIRS)
  assert tuple(row["query"] for row in found) == queries
  cosines = predictor.encode(queries) @ predictor.encode(texts).T
  for row, scores in zip(found, cosines):
    lines = np.argsort(-scores)[:3]
    assert [r["line"] for r in row["results"]] == [*(lines + 1)]
    assert [r["text"] for r in row["results"]] == [texts[i] for i in lines]
    np.testing.assert_allclose(
      [r["score"] for r in row["results"]], scores[lines], atol=1e-5
    )


def test_mined_negatives_are_near_and_can_be_trained_on(
  place, trained, predictor, tmp_path
):
  """The same pairs in the layout of BEIR have the same negatives."""
  mines = "--do_predict", "--mine_negatives=2"
  model = f"--init_checkpoint={trained.folder}"
  output = f"--output_dir={tmp_path / 'mined'}"
  pairs = (
    f"--train_file={place / 'pairs.tsv'}",
    "--text_columns=question,answer",
  )
  embed(*mines, *pairs, model, output)
  embed(*mines, f"--train_file={place / 'beir/qrels/test.tsv'}", model, output)
  mined = tmp_path / "mined" / "pairs_negatives.jsonl"
  rows = read_jsonl(mined)
  assert read_jsonl(mined.with_name("test_negatives.jsonl")) == rows
  assert [(row["query"], row["positive"]) for row in rows] == PAIRS
  queries, answers = zip(*PAIRS)
  cosines = predictor.encode(queries) @ predictor.encode(answers).T
  for row, own, scores in zip(rows, range(len(PAIRS)), cosines):
    nearest = [answers[i] for i in np.argsort(-scores) if i != own]
    assert row["negatives"] == nearest[:2]
  embed(
    "--do_train",
    f"--train_file={mined}",
    "--text_columns=query,positive,negatives",
    "--train_batch_size=8",
    "--num_train_epochs=1",
    model,
    f"--output_dir={tmp_path / 'next'}",
  )


def test_a_trained_model_needs_no_other_files(trained, place, tmp_path):
  folder = shutil.copytree(trained.folder, tmp_path / "trained")
  data = f"--dev_file={place / 'beir'}"  # the pairs in the layout of BEIR
  embed(f"--output_dir={folder}", "--do_eval", data)
  expected = results(trained.folder)
  found = {name: results(folder)[name] for name in expected}
  assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.train
@pytest.mark.parametrize(
  "kind, loss, metric, low",
  [
    ("triplets", "triplet", "ndcg@10", 0.6),
    ("scored", "cosine", "spearman", 0.9),
    ("matches", "cosent", "average_precision", 0.9),
    ("labeled", "supervised_contrastive", "map", 0.9),
  ],
)
def test_each_loss_learns(place, tmp_path, kind, loss, metric, low):
  embed(
    *flags(place, *training(place, kind), output_dir=tmp_path),
    f"--loss={loss}",
    "--do_eval",
    f"--dev_file={place / kind}.tsv",
  )
  assert results(tmp_path)[f"eval_{metric}"] > low


@pytest.mark.train
def test_a_student_learns_the_vectors_of_its_teacher(
  trained, predictor, place, tmp_path
):
  texts = [text for pair in PAIRS for text in pair]
  (tmp_path / "texts.tsv").write_text("\n".join(["text", *texts, ""]))
  embed(
    *flags(place, *training(place), output_dir=tmp_path / "out"),
    f"--train_file={tmp_path / 'texts.tsv'}",
    "--text_columns=text",
    "--loss=distillation",
    f"--teacher={trained.folder}",
    "--num_train_epochs=60",
  )
  with run_embeddings.Predictor(str(tmp_path / "out")) as student:
    learned = student.encode(texts)
  cosines = np.sum(learned * predictor.encode(texts), axis=1)
  assert cosines.mean() > 0.9


@pytest.mark.train
def test_model_and_dev_set_may_differ_from_the_defaults(place, tmp_path):
  scored = f"--dev_file={place / 'scored.tsv'}", "--dev_score_column=score"
  embed(
    *flags(place, *training(place), output_dir=tmp_path),
    *("--num_train_epochs=1", "--do_eval", *scored, "--max_score=2"),
    *("--dev_text_columns=first,second", "--query_prefix=query : "),
    *("--pooling=cls", "--nonormalize", "--projection_dim=12"),
  )
  assert {"eval_spearman", "eval_pearson"} == results(tmp_path).keys()
  with run_embeddings.Predictor(str(tmp_path)) as predictor:
    query = predictor.encode(["ann went"], prompt="query")
    text = predictor.encode(["query : ann went"])
  np.testing.assert_allclose(query, text, rtol=1e-6)
  assert query.shape == (1, 12)
  assert abs(np.linalg.norm(query) - 1) > 1e-3


@pytest.mark.train
def test_replicas_share_their_negatives(place, tmp_path):
  config = tiny_embeddings.CONFIG.to_dict()
  config |= {name: 0.0 for name in config if "dropout" in name}
  (tmp_path / "config.json").write_text(json.dumps(config))
  losses = []
  for count in (1, 2):
    folder = tmp_path / f"replicas_{count}"
    embed(
      *flags(place, *training(place, "triplets"), output_dir=folder),
      f"--bert_config_file={tmp_path / 'config.json'}",
      f"--num_replicas={count}",
      "--num_train_epochs=2",
      "--xla=on",
    )
    steps, values = zip(*run_report.read_scalars(str(folder))["loss"])
    assert steps == (1, 4)
    losses.append(values)
  np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.train
def test_a_loss_that_does_not_fit_into_memory_is_refused(place, tmp_path):
  line = commands.fail(
    "run_embeddings.py",
    *flags(place, *training(place), output_dir=tmp_path / "out"),
    *("--train_batch_size=20000", "--num_train_epochs=1250", "--memory_gb=9"),
  )
  assert not (tmp_path / "out").exists()
  assert re.search(r"--memory_gb=9: .* the loss .* --train_batch_size", line)
