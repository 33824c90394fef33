"""`model.json`: what the folder of a model says, and which flags that sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertlib.cli import option
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, some_of
from bertlib.io import files, json_files, model_files
from bertlib.settings.common import (
  ComputeSettings,
  LongTextSettings,
  ModelSettings,
)

# Of the entries; a newer version of this project may write a higher one.
FORMAT = 1

# Schema of the entries that several tasks have. A `TaskRecord` has those of its
# task; others are allowed.
_SCHEMA = {
  "script?": str,
  "task?": str,
  "kind?": str,
  "labels?": [str],
  "columns?": {"text_a?": str, "text_b?": str},  # until 0.19
  "max_seq_length?": option.declaration(ModelSettings, "max_seq_length"),
  "do_lower_case?": bool,
  "max_input_chars_per_word?": option.declaration(
    ModelSettings, "max_input_chars_per_word"
  ),
  "seq_length?": option.declaration(ModelSettings, "max_seq_length"),
  **{f"{n}?": flag for n, flag in option.declarations(LongTextSettings)},
  "tuned_on?": str,
  # Of an export: the --output_dir of the training, and the step.
  "trained?": {"folder": str, "step": (int, json_files.NULL)},
  "precision?": option.declaration(ComputeSettings, "precision"),
  "xla?": option.declaration(ComputeSettings, "xla"),
  "vocab_sha256?": str,
  "meaning_sha256?": str,
  "format?": int,
}

FIX = "Restore it; the model cannot be used without what training wrote there"

# How a model reads text, which training goes on with.
TEXT = ("do_lower_case", "max_input_chars_per_word")

# Types of values by `Flag.placeholder`; others are checked by their flag.
_TYPES = {None: bool, "TEXT": str, "PATH": str, "LIST": [str]}


def schema(
  settings: type[option.CommandSettings], names: Iterable[str]
) -> dict[str, Any]:
  """Schema of entries that are flags of a command, by their names."""
  flags = dict(option.declarations(settings))
  return {
    f"{name}?": _TYPES.get(flags[name].placeholder, flags[name])
    for name in names
  }


def load(folder: str, task: Any = None) -> dict[str, Any]:
  """Contents of `model.json`, of a `TaskRecord`; empty if there is none."""
  path = os.path.join(folder, model_files.DESCRIPTION)
  if not files.exists(path):
    return {}
  description = json_files.read(path, {"format?": int}, FIX)
  if description.get("format", FORMAT) > FORMAT:
    raise InputError(
      f"{path}: its format, {description['format']}, is of a newer version of"
      f" this project. This version reads {FORMAT}: update it"
    )
  # The entries of a task are checked only where they are used.
  expected = _SCHEMA | dict(task.entries if task else {})
  problem = json_files.mismatch(description, expected)
  labels = description.get("labels", [])
  if not problem and len(set(labels)) < len(labels):
    problem = "repeats a label"
  if not problem and task and task.script == description.get("script"):
    problem = task.problem(description)
  if problem:
    raise InputError(f"{path}: {problem}. {FIX}")
  return description


def complete(settings: option.Settings) -> option.Settings:
  """The settings with those of the model's folder, for flags not given."""
  folder = _find_folder(settings)
  if not folder:
    return settings
  model, brought = settings.model, _entries(settings, folder)
  # The path of a checkpoint brings no files, as in google-research/bert.
  if folder in (model.init_checkpoint, settings.model_dir):
    for flag in model_files.BY_FLAG:
      path = model_files.path_of(folder, flag)
      if not getattr(model, flag) and files.exists(path):
        brought[flag] = path
  brought = {n: v for n, v in brought.items() if n not in model.given}
  return option.fill(settings, {**brought, "folder": folder})


def labels_in_order(folder: str | None, labels: Sequence[str]) -> list[str]:
  """Labels in the order of a model's, if they are the same."""
  known = load(folder).get("labels", []) if folder else []
  if known == [*labels] or sorted(known) != sorted(labels):
    return [*labels]
  logging.info("%s: its labels keep their order: %s", folder, some_of(known))
  return known


def _find_folder(settings: option.CommandSettings) -> str | None:
  """Folder of the model that a command reads or goes on with; None if new."""
  named, own = settings.model.init_checkpoint, settings.model_dir
  if own and not has_checkpoint(own):
    own = None
  if not named:
    return own
  if not has_checkpoint(named):
    if not files.exists(f"{named}.index"):  # to be downloaded or converted
      return None
    return own or os.path.dirname(named)
  is_trained = own and _is_of_script(settings, load(named))
  return named if is_trained and not settings.trains else own or named


def _is_of_script(
  settings: option.CommandSettings, description: Mapping[str, Any]
) -> bool:
  """True for a model of the script whose settings these are."""
  script = description.get("script")
  return bool(script) and script == settings.SCRIPT


def has_checkpoint(folder: str) -> bool:
  """True if a folder has a checkpoint, complete or not."""
  return any(files.matching(folder, f"{part}*.index") for part in ("", "best/"))


def _entries(settings: option.CommandSettings, folder: str) -> dict[str, Any]:
  """Values of flags in the folder of a model, by name."""
  description = load(folder)
  config_file = os.path.join(folder, model_files.CONFIG)
  if not description and files.exists(config_file):
    # Earlier versions wrote the casing of a converted model there.
    description = json_files.read(config_file, dict)
  script = description.get("script")
  if _is_of_script(settings, description):
    entries = settings.entries_as_flags(description)
  else:
    is_other = script and settings.SCRIPT and settings.NEEDS_OWN_MODEL
    if is_other and not settings.trains:
      raise InputError(
        f"{folder}: has a model of {script}.py. Name the folder of a model of"
        f" {settings.SCRIPT}.py"
      )
    flags = dict(option.declarations(type(settings)))
    names = (*TEXT, "max_seq_length") if script else TEXT
    entries = {
      name: description[name]
      for name in names
      if name in description and name in flags
    }
  problem = json_files.mismatch(entries, schema(type(settings), entries))
  if problem:
    path = os.path.join(folder, model_files.DESCRIPTION)
    raise InputError(f"{path}: {problem}. {FIX}")
  if settings.trains:
    names = settings.KEPT_IN_TRAINING
    return {name: entries[name] for name in names if name in entries}
  return entries
