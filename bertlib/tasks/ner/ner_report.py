"""The report of a tagger: errors, calibration and intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertlib.reporting import html_report, statistics
from bertlib.reporting.html_report import Section
from bertlib.reporting.recorded_runs import RecordedRun, shared_predictions
from bertlib.reporting.statistics import Comparison, Estimates
from bertlib.tasks.ner import ner_decoding, ner_scores
from bertlib.tasks.ner.ner import Sentence


def sections(
  sentences: Sequence[Sentence],
  # Tags and their probabilities, by sentence.
  predicted: Sequence[tuple[Sequence[str], Sequence[float]]],
  results: Mapping[str, float],  # of `ner_scores.evaluate_tags`
  num_errors: int = 30,
) -> list[Section]:
  """Sections on the predictions of a tagger, for `run_report.Findings`."""
  names = ("precision", "recall", "f1", "entities")
  types = [n.removeprefix("eval_f1_") for n in results if "eval_f1_" in n]
  rows = [
    {"type": kind, **{n: results[f"eval_{n}_{kind}"] for n in names}}
    for kind in types
  ]
  confidences, correct, errors = [], [], []
  for sentence, (tags, probabilities) in zip(sentences, predicted):
    matches = [a == b for a, b in zip(sentence.tags, tags)]
    confidences += probabilities
    correct += matches
    wrong = [p for p, is_match in zip(probabilities, matches) if not is_match]
    if wrong:
      errors.append((max(wrong), sentence, tags, probabilities))
  errors.sort(key=lambda error: -error[0])

  def entities(sentence, tags, probabilities):
    found = ner_decoding.extract_entities(sentence, tags, probabilities)
    return "; ".join(f"{e.text} ({e.label})" for e in found) or "none"

  return [
    html_report.table("Entities", rows),
    html_report.calibration(confidences, correct),
    html_report.errors(
      [
        {
          "sentence": sentence.location.rpartition(", ")[2],
          "gold": entities(sentence, sentence.tags, [1.0] * len(tags)),
          "predicted": entities(sentence, tags, probabilities),
          "probability": probability,
          "text": sentence.text,
        }
        for probability, sentence, tags, probabilities in errors[:num_errors]
      ]
    ),
  ]


def estimates(
  sentences: Sequence[Sentence],
  # Tags and their probabilities, by sentence.
  predicted: Sequence[tuple[Sequence[str], Sequence[float]]],
) -> Estimates:
  """Estimates for a tagger, over sentences."""
  gold = [sentence.tags for sentence in sentences]
  counts = ner_scores.count_entities(gold, [tags for tags, _ in predicted])
  num_outside = sum(tag == "O" for tags in gold for tag in tags)
  return Estimates(
    f"{len(sentences):,} sentences with {counts[:, 2].sum():,} entities",
    {
      name: statistics.bootstrap(ner_scores.metric(name), counts)
      for name in ner_scores.METRICS
    },
    {"accuracy": ("always O", num_outside / max(counts[:, 4].sum(), 1))},
  )


def compare(first: RecordedRun, other: RecordedRun) -> Comparison:
  """Compares the tags of two runs; empty if they are not known."""
  names, gold, *predicted = shared_predictions(first, other)
  counts = [ner_scores.count_entities(gold, tags) for tags in predicted]
  return Comparison(
    intervals={
      name: statistics.difference_interval(ner_scores.metric(name), *counts)
      for name in names
      if name in ner_scores.METRICS
    }
  )
