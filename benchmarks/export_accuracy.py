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
import tempfile
from collections.abc import Callable

import numpy as np

from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.data import tables
from bertlib.export import OnnxModel
from bertlib.tasks.classification.classification_report import METRICS
from bertlib.tasks.embeddings import embedding_evaluation
from bertlib.tasks.ner import ner_files, ner_report
from bertlib.tasks.squad import squad_files, squad_scores
from website import markdown

# Numbers of the columns of both texts and of the label.
MRPC, STSB = (3, 4, 0), (7, 8, 9)

Metrics = dict[str, float]


def main(_: list[str]) -> None:
  """Prints a row per engine and precision."""
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    int8 = {"quantize": "int8", "calibration_file": FLAGS.calibration_file}
    for precision, more in (("float32", {}), ("int8", int8)):
      side_by_side.run_python(
        *("export_model.py", "--format=onnx"),
        model_dir=FLAGS.model_dir,
        export_dir=os.path.join(folder, precision),
        **more,
      )
    for engine in ("onnxruntime", "openvino"):
      for precision in ("float32", "int8"):
        model = OnnxModel(os.path.join(folder, precision), engine=engine)
        metrics = EVALUATIONS[model.description["script"]](model)
        shown = [f"{100 * value:.2f}" for value in metrics.values()]
        rows.append([engine, precision, *shown])
  print(markdown.table(["engine", "precision", *metrics], rows))


def read_pairs(
  first: int, second: int, label: int
) -> tuple[list[tuple[str, str]], list[str]]:
  """Pairs of texts and their labels, of columns of a table with a header."""
  rows = [row.texts for row in tables.read_tsv(FLAGS.file)][1:]
  return [(row[first], row[second]) for row in rows], [r[label] for r in rows]


def evaluate_classifier(model: OnnxModel) -> Metrics:
  """Accuracy, or the correlation of a regression."""
  is_regression = model.description["kind"] == "regression"
  pairs, labels = read_pairs(*(STSB if is_regression else MRPC))
  predicted = [prediction.label for prediction in model.predict(pairs)]
  if is_regression:
    return {"Pearson": METRICS["pearson"](np.float64(labels), predicted)}
  return {"accuracy": METRICS["accuracy"](labels, predicted)}


def evaluate_vectors(model: OnnxModel) -> Metrics:
  """Correlation of cosines of two vectors with the scores of STS-B."""
  pairs, labels = read_pairs(*STSB)
  first, second = (model.predict(list(texts)) for texts in zip(*pairs))
  cosines = embedding_evaluation.cosine_similarities(first, second)
  found = embedding_evaluation.scored_pairs(cosines, np.float64(labels))
  return {"Spearman": found["spearman"]}


def evaluate_tagger(model: OnnxModel) -> Metrics:
  """F1 of entities."""
  sentences = ner_files.read_sentences(FLAGS.file, ner_files.Columns())
  (tagged,) = model.answer_blocks([sentences])
  return {"F1": ner_report.evaluate_tags(sentences, [*tagged])["eval_f1"]}


def evaluate_answers(model: OnnxModel) -> Metrics:
  """Scores of SQuAD 1.1."""
  questions = squad_files.read_questions(FLAGS.file)
  answers = model.predict([(q.text, q.context) for q in questions])
  best = {
    question.id: found[0].text if found else ""
    for question, found in zip(questions, answers)
  }
  scores = squad_scores.evaluate_v1(questions, best)
  return {name: value / 100 for name, value in scores.items()}


EVALUATIONS: dict[str, Callable[[OnnxModel], Metrics]] = {
  "run_classifier": evaluate_classifier,
  "run_embeddings": evaluate_vectors,
  "run_ner": evaluate_tagger,
  "run_squad": evaluate_answers,
}


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    model_dir="A trained folder.",
    file="What to predict.",
    calibration_file=(str, "See export_model.py."),
  )
