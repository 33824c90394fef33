"""The initial model: published names (`models.json`), checks of a command.

Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertlib.cli import option
from bertlib.cli.errors import InputError, english_list
from bertlib.io import files, model_files
from bertlib.settings.command import ModelCommand

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models.json")


@dataclasses.dataclass(frozen=True)
class Model:
  """A published checkpoint, an entry of `models.json`."""

  name: str  # also the name of its folder
  aliases: Sequence[str]
  do_lower_case: bool
  maker: str
  license: str | None  # SPDX identifier; None if not known
  paper: str
  # OWNER/NAME of a repository of the Hugging Face Hub with safetensors.
  repository: str | None = None
  revision: str | None = None  # commit of it; None for the newest
  # Pooling, normalization and prompts of sentence vectors, as its maker
  # describes them. The repository's own files take precedence.
  embedding: Mapping[str, Any] | None = None
  address: str | None = None  # otherwise URL of an archive, .zip or .tar.gz
  # If several models share an archive: the folder of this model in it, or the
  # name of a .tar.gz in it that contains the model.
  folder: str | None = None
  # By file name, in the cache or in the repository; None if not published.
  sha256: Mapping[str, str] | None = None


def load_table() -> dict[str, Model]:
  """The models of `models.json` by name, in its order."""
  with files.open_any(TABLE) as file:
    return {name: Model(name, **rest) for name, rest in json.load(file).items()}


def is_name(text: str) -> bool:
  """True if a model has this name or alias, and no local folder has it."""
  return text in _models_by_name_and_alias() and not files.exists(text)


def find(name: str) -> Model:
  """Finds a model by name or alias."""
  models = _models_by_name_and_alias()
  if name in models:
    return models[name]
  similar = similar_names(name)
  hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
  raise InputError(
    f"{name}: no such model. {hint}docs/how_to/models.md lists all"
  )


def similar_names(name: str) -> list[str]:
  """Names and aliases of models that are spelled similarly to a name."""
  lower = {other.lower(): other for other in _models_by_name_and_alias()}
  return [lower[n] for n in difflib.get_close_matches(name.lower(), lower)]


def _models_by_name_and_alias() -> dict[str, Model]:
  models = load_table()
  return models | {a: m for m in models.values() for a in m.aliases}


# --init_checkpoint of a command

# Endings of files of models that are no checkpoints of TensorFlow, and the fix.
_OTHER_FILES = {
  (".bin", ".pt", ".pth", ".safetensors", ".h5"): "Name its folder",
  (".zip", ".gz", ".tar", ".tgz"): "Unpack it, and name the folder",
}


def check(
  settings: ModelCommand,
  is_found: bool = False,  # the model has been downloaded or converted
) -> None:
  """Refuses settings without a flag that the model does not bring."""
  model, unless = settings.model, settings.REQUIRED_UNLESS
  if unless and getattr(settings, unless):
    return
  value, handle = model.init_checkpoint or "", model.bert_hub_module_handle
  if not is_found and (handle or is_name(value) or is_huggingface(value)):
    return
  values = option.values_of(settings)
  missing = [
    name
    for name in settings.REQUIRED
    if name in settings.BROUGHT_BY_MODEL
    and not values[name]
    and not (handle and name == "vocab_file")  # not all encoders have one
  ]
  if not missing:
    return
  if value and not is_found:
    check_exists(value)
  folder = model.folder
  if not (folder or value or settings.trains) and settings.model_dir:
    raise model_files.untrained(settings.model_dir)
  flags = english_list(f"--{name}" for name in missing)
  others = (
    f"which {folder} does not bring"
    if folder
    else "unless --init_checkpoint names a published model or the folder of a"
    f" model. For example: {settings.EXAMPLE}"
  )
  raise InputError(
    f"{flags} must be given, {others}. --helpfull lists all flags"
  )


def is_huggingface(path: str) -> bool:
  """True for a Hugging Face folder; InputError if it has two models."""
  return model_format(path) == "huggingface"


def model_format(path: str) -> str:
  """Format of a model: "saved_model", "huggingface" or "tensorflow"."""
  names = "saved_model.pb", "modules.json", *model_files.HUGGINGFACE
  names = *names, model_files.ADAPTER, "discriminator/config.json"
  found = [
    name
    for name in (*names, "config.json")
    if path and os.path.exists(os.path.join(path, name))
  ]
  if "saved_model.pb" in found:
    return "saved_model"
  checkpoints = found and files.matching(path, "*.index")
  if checkpoints and found != ["config.json"]:
    raise InputError(
      f"{path}: has two models, {os.path.basename(checkpoints[0])} and"
      f" {found[0]}. Name the checkpoint, {checkpoints[0][: -len('.index')]},"
      " or move one of them"
    )
  return "huggingface" if found and not checkpoints else "tensorflow"


def check_exists(path: str, flag: str = "init_checkpoint") -> None:
  """Refuses a flag that names no model."""
  flag = f"--{flag}={path}"
  for endings, fix in _OTHER_FILES.items():
    if path.endswith(endings) and files.exists(path):
      raise InputError(f"{flag}: not a TensorFlow checkpoint. {fix}")
  if files.exists(path) or files.exists(f"{path}.index"):
    return
  if similar := similar_names(path):
    fix = f"Did you mean {' or '.join(similar)}?"
  else:
    fix = "docs/how_to/models.md lists the models"
    if os.path.dirname(path):
      fix = "Name a checkpoint without .index or .data-00000-of-00001"
    fix = files.did_you_mean(path, fix)
  raise InputError(
    f"{flag}: neither a file, a folder nor a published model. {fix}"
  )
