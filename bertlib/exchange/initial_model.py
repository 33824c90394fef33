"""Checks --init_checkpoint and the files it brings, without TensorFlow."""

from __future__ import annotations

import os

from bertlib.checkpoints import model_files
from bertlib.cli.errors import InputError, english_list
from bertlib.exchange import published_models
from bertlib.io import files

# What is needed of a folder that is to replace a flag.
_BROUGHT = {**model_files.BY_FLAG, "init_checkpoint": ""}

# Endings of files of models that are no checkpoints of TensorFlow, and the fix.
_OTHER_FILES = {
  (".bin", ".pt", ".pth", ".safetensors"): (
    "Convert its folder with convert_checkpoint.py"
  ),
  (".zip", ".gz", ".tar", ".tgz"): "Unpack it, and name the folder",
}


def check(settings) -> None:
  """Refuses settings without a file that the initial model does not bring."""
  model, unless = settings.model, settings.REQUIRED_UNLESS
  if model.bert_hub_module_handle or (unless and getattr(settings, unless)):
    return
  value = model.init_checkpoint or ""
  if value and published_models.is_name(value):
    return
  missing = [
    name
    for name in settings.REQUIRED
    if name in settings.BROUGHT_BY_MODEL
    and not getattr(model, name)
    and not (value and files.exists(os.path.join(value, _BROUGHT[name])))
  ]
  if not missing:
    return
  if problem := value and why_no_model(value):
    raise InputError(problem)
  raise InputError(
    f"{english_list(f'--{name}' for name in missing)} must be given"
    f"{_other_ways(settings)}. For example: {settings.EXAMPLE}. --helpfull"
    " lists all flags"
  )


def _other_ways(settings) -> str:
  """Words for an error: alternatives that bring config and vocabulary."""
  folders = [os.path.dirname(settings.model.init_checkpoint or "")]
  if getattr(settings, "run", None):
    folders.append(settings.run.output_dir or "")
  for folder in filter(None, folders):
    paths = [os.path.join(folder, name) for name in _BROUGHT.values()]
    if all(map(files.exists, paths)):
      return f", or --init_checkpoint={folder}, the folder that has them"
  return (
    ", unless --init_checkpoint names a published model or the folder of a"
    " model"
  )


def why_no_model(path: str) -> str | None:
  """Error about an --init_checkpoint that names no model; None if it may."""
  flag = f"--init_checkpoint={path}"
  for endings, fix in _OTHER_FILES.items():
    if path.endswith(endings) and files.exists(path):
      return f"{flag}: not a TensorFlow checkpoint. {fix}"
  others = "config.json", "pytorch_model.bin", "model.safetensors"
  if any(files.exists(os.path.join(path, name)) for name in others):
    if files.matching(path, "*.index"):
      return None
    return (
      f"{flag}: is a Hugging Face folder. Convert it with"
      f" convert_checkpoint.py --input={path} --output=FOLDER, and name that"
      " folder"
    )
  if files.exists(path) or files.exists(f"{path}.index"):
    return None
  if similar := published_models.similar_names(path):
    fix = f"Did you mean {' or '.join(similar)}?"
  elif os.path.dirname(path):
    fix = "Name a checkpoint without .index or .data-00000-of-00001"
  else:
    fix = "download_model.py --list shows the models"
  return f"{flag}: neither a file, a folder nor a published model. {fix}"
