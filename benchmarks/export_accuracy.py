"""Metrics of ONNX exports in float32 and int8, in ONNX Runtime and OpenVINO.

Exports a trained folder, predicts a labeled file, and prints a table: of a
classifier the accuracy or Pearson's correlation, of NER the F1 of entities, of
SQuAD 1.1 exact match and F1, of vectors the Spearman correlation of their
cosines.

    python -m benchmarks.export_accuracy --model_dir=output/mrpc-1 \
        --file=glue/MRPC/dev.tsv --calibration_file=output/pairs.txt

The file has the columns of the task's own data set: MRPC, STS-B, words and
tags, or the JSON of SQuAD.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import flags
from scipy import stats

from bertlib.cli import app
from bertlib.data import tables
from bertlib.export import OnnxModel
from bertlib.tasks.ner import ner_files, ner_tags
from bertlib.tasks.squad import squad_files, squad_scores
from website import markdown

FLAGS = flags.FLAGS

# Numbers of the columns of the texts and of the label.
COLUMNS = {"MRPC": ((3, 4), 0), "STS-B": ((7, 8), 9)}

Metrics = dict[str, float]


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_string("model_dir", None, "A trained folder.", required=True)
  flags.DEFINE_string("file", None, "What to predict.", required=True)
  flags.DEFINE_string("calibration_file", None, "See export_model.py.")


def main(_: list[str]) -> None:
  """Prints a row per engine and precision."""
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    for precision in ("float32", "int8"):
      export(os.path.join(folder, precision), precision)
    for engine in ("onnxruntime", "openvino"):
      for precision in ("float32", "int8"):
        model = OnnxModel(os.path.join(folder, precision), engine=engine)
        metrics = EVALUATIONS[model.description["script"]](model)
        shown = [f"{100 * value:.2f}" for value in metrics.values()]
        rows.append([engine, precision, *shown])
  print(markdown.table(["engine", "precision", *metrics], rows))


def export(folder: str, precision: str) -> None:
  """Exports the model to ONNX."""
  command = ["export_model.py", f"--model_dir={FLAGS.model_dir}"]
  command += ["--format=onnx", f"--export_dir={folder}"]
  if precision == "int8":
    command.append("--quantize=int8")
    if FLAGS.calibration_file:
      command.append(f"--calibration_file={FLAGS.calibration_file}")
  subprocess.run([sys.executable, *command], check=True)


def read_pairs(columns: tuple[tuple[int, int], int]) -> tuple[list, list[str]]:
  """Pairs of texts and their labels, of a table with a header."""
  texts, label = columns
  rows = [row.texts for row in tables.read_tsv(FLAGS.file)][1:]
  pairs = [tuple(row[column] for column in texts) for row in rows]
  return pairs, [row[label] for row in rows]


def evaluate_classifier(model: OnnxModel) -> Metrics:
  """Accuracy, or the correlation of a regression."""
  is_regression = model.description["kind"] == "regression"
  pairs, labels = read_pairs(COLUMNS["STS-B" if is_regression else "MRPC"])
  predicted = [prediction.label for prediction in model.predict(pairs)]
  if is_regression:
    return {"Pearson": stats.pearsonr(predicted, np.float64(labels))[0]}
  return {"accuracy": np.mean([a == b for a, b in zip(labels, predicted)])}


def evaluate_vectors(model: OnnxModel) -> Metrics:
  """Correlation of cosines of two vectors with the scores of STS-B."""
  pairs, labels = read_pairs(COLUMNS["STS-B"])
  first, second = (model.predict(list(texts)) for texts in zip(*pairs))
  cosines = np.sum(np.multiply(first, second), axis=1)
  return {"Spearman": stats.spearmanr(cosines, np.float64(labels))[0]}


def evaluate_tagger(model: OnnxModel) -> Metrics:
  """F1 of entities, whose boundaries are those of characters."""
  sentences = ner_files.read_sentences(FLAGS.file, ner_files.Columns())
  predicted = model.predict([sentence.text for sentence in sentences])
  found = [{entity[:1] + entity[2:4] for entity in row} for row in predicted]
  return {"F1": f1([gold_entities(sentence) for sentence in sentences], found)}


def gold_entities(sentence: Any) -> set[tuple[str, int, int]]:
  """Label, first and last character of each entity of a sentence."""
  return {
    (
      entity.label,
      sentence.offsets[entity.start][0],
      sentence.offsets[entity.end - 1][1],
    )
    for entity in ner_tags.tags_to_entities(sentence.tags)
  }


def f1(gold: Sequence[set], predicted: Sequence[set]) -> float:
  """F1 of sets of entities over all sentences."""
  right = sum(len(a & b) for a, b in zip(gold, predicted))
  return 2 * right / sum(len(found) for found in [*gold, *predicted])


def evaluate_answers(model: OnnxModel) -> Metrics:
  """Scores of SQuAD 1.1."""
  questions = squad_files.read_questions(FLAGS.file)
  answers = model.predict([(q.text, q.context) for q in questions])
  best = {
    question.id: found[0].text if found else ""
    for question, found in zip(questions, answers)
  }
  return {
    name: value / 100
    for name, value in squad_scores.evaluate_v1(questions, best).items()
  }


EVALUATIONS: dict[str, Callable[[OnnxModel], Metrics]] = {
  "run_classifier": evaluate_classifier,
  "run_embeddings": evaluate_vectors,
  "run_ner": evaluate_tagger,
  "run_squad": evaluate_answers,
}


if __name__ == "__main__":
  define_flags()
  app.run(main)
