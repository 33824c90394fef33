"""Command lines and Python lines that predict with the model of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from bertlib import PREFIX
from bertlib.checkpoints import model_files, model_json
from bertlib.cli import help_text, option
from bertlib.io import files
from bertlib.training.task import Run

# Flags of the run that prediction needs again, if they were given.
_COMMON = ("do_lower_case", "encoding", "encoding_errors", "max_seq_length")
_FLAGS = {
  "run_classifier": (
    "task_name",
    "data_dir",
    "language",
    "train_file",
    "text_a_column",
    "text_b_column",
    "label_column",
    "labels",
    "problem_type",
    "label_delimiter",
  ),
  "run_squad": (
    "doc_stride",
    "mask_padding",
    "max_answer_length",
    "max_query_length",
    "n_best_size",
    "null_score_diff_threshold",
    "version_2_with_negative",
  ),
  "run_ner": ("delimiter", "item_delimiter", "tag_column", "word_column"),
  "run_embeddings": (),
  "run_pretraining": (),
}

_INPUTS = {
  "run_classifier": ("texts.txt", "Labels of the lines of a file:"),
  "run_squad": ("questions.json", "Answers to the questions of a file:"),
  "run_ner": (
    "sentences.txt",
    "Entities in the sentences of a file, in columns like the training set:",
  ),
  "run_embeddings": ("texts.txt", "Vectors of the lines of a file:"),
  "run_pretraining": (
    "lines.txt",
    "Words for each [MASK] in the lines of a file:",
  ),
}


def blocks(run: Run) -> list[tuple[str, str]]:
  """Command lines and Python code, each after a sentence about it.

  Args:
    run: the trained run.

  Returns:
    For `html_report.commands`; empty for a script that is not known here.
  """
  if run.task.name not in _FLAGS:
    return []
  _, about = _INPUTS[run.task.name]
  found = [(about, command_line(run))]
  code = python_code(
    run.task.name,
    run.output_dir,
    model_json.load_description(run.output_dir),
  )
  return [*found, ("From Python:", code)] if code else found


def command_line(run: Run) -> str:
  """The command that predicts with the model of a run, over several lines."""
  script, folder = run.task.name, run.output_dir
  flags = ["--do_predict", f"--predict_file={_INPUTS[script][0]}"]
  wanted = (*_FLAGS[script], *_COMMON)
  if script == "run_embeddings":
    wanted = ()  # all is in model.json
  else:
    flags += [
      f"--{flag}={run.path(name)}"
      for flag, name in model_files.BY_FLAG.items()
      if files.exists(run.path(name))
    ]
  given = run.settings.receipt.times_given
  values = option.values_of(run.settings)
  flags += [_flag(name, values[name]) for name in wanted if name in given]
  flags.append(f"--output_dir={folder}")
  command = help_text.as_installed(f"python {script}.py")
  lines = [command, *(f"  {_quote(flag)}" for flag in flags)]
  return " \\\n".join(lines)


def _flag(name: str, value: Any) -> str:
  """A flag with its value, as on a command line."""
  if isinstance(value, bool):
    return f"--{name}" if value else f"--no{name}"
  if isinstance(value, (list, tuple)):
    value = ",".join(map(str, value))
  return f"--{name}={value}"


def _quote(flag: str) -> str:
  """A flag, quoted for a shell where needed."""
  name, equals, value = flag.partition("=")
  return name + equals + (shlex.quote(value) if equals else "")


def python_code(
  script: str, folder: str, description: Mapping[str, Any]
) -> str:
  """Python lines that predict with a model; empty without a `Predictor`.

  Args:
    script: name of the script, without ".py".
    folder: its --output_dir.
    description: content of the folder's `model.json`.
  """
  text = '"A text."'
  if description.get("kind") == "multiple_choice":
    text = '[("A text", "an ending."), ("A text", "another one.")]'
  elif description.get("has_pairs"):
    text = '("A text.", "Another text.")'
  calls = {
    "run_classifier": f"predictor.predict([{text}])",
    "run_squad": 'predictor.predict([("Who left?", "Ann stayed. Bob left.")])',
    "run_ner": 'predictor.predict(["Ann left Rome."])',
    "run_embeddings": 'predictor.encode(["A text.", "Another text."])',
  }
  if script not in calls:
    return ""
  return (
    f"{'from bert ' if PREFIX else ''}import {script}\n\n"
    f"with {script}.Predictor({folder!r}) as predictor:\n"
    f"  print({calls[script]})"
  )
