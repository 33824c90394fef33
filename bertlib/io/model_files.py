"""Names of the files of a model in its folder, and errors without some."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable

from bertlib.cli.errors import InputError, english_list
from bertlib.io import files

CONFIG = "bert_config.json"
VOCAB = "vocab.txt"  # WordPieces
TOKENIZER = "tokenizer.json"  # another tokenizer
DESCRIPTION = "model.json"

# Subfolder with the best checkpoint.
BEST = "best"

# Files that are copied together with a checkpoint.
COMPANIONS = (CONFIG, VOCAB, TOKENIZER, DESCRIPTION)

# Checkpoint of a published or converted model.
CHECKPOINT = "bert_model.ckpt"

# Weights of a folder that is converted, of which the first is read: of Hugging
# Face, and of a preset of KerasHub.
HUGGINGFACE = (
  "model.safetensors",
  "model.safetensors.index.json",
  "pytorch_model.bin",
  "pytorch_model.bin.index.json",
  "tf_model.h5",
  "model.weights.h5",
)

# Of weights that are added to those of a model, by PEFT.
ADAPTER = "adapter_config.json"

# Files by the flag that names them.
BY_FLAG = {"vocab_file": VOCAB, "bert_config_file": CONFIG}


def path_of(folder: str, flag: str) -> str:
  """Path in a model's folder of the file of a flag; it may be missing."""
  path = os.path.join(folder, BY_FLAG[flag])
  other = os.path.join(folder, TOKENIZER)
  is_other = flag == "vocab_file" and not files.exists(path)
  return other if is_other and files.exists(other) else path


def untrained(folder: str) -> InputError:
  """Error about a folder without a model to evaluate."""
  fix = "Add --do_train, or name a trained model with --init_checkpoint"
  if not files.exists(folder):
    fix = files.did_you_mean(folder, fix)
  return InputError(f"{folder}: holds no trained model. {fix}")


# Files of a checkpoint

# File name of a checkpoint's index or data file.
CHECKPOINT_FILE = re.compile(
  r"(?P<checkpoint>\w[\w.-]*)"
  r"(?P<part>\.index|\.data-\d{5}-of-(?P<num_parts>\d{5}))",
  re.ASCII,
)


def missing_files(checkpoint: str, names: Collection[str]) -> list[str]:
  """Names of missing files of a checkpoint, given all names in its folder."""
  found = (CHECKPOINT_FILE.fullmatch(name) for name in names)
  num_parts = max(
    (
      int(match["num_parts"])
      for match in found
      if match and match["num_parts"] and match["checkpoint"] == checkpoint
    ),
    # Without any data file, one is expected.
    default=1,
  )
  data = [f".data-{i:05}-of-{num_parts:05}" for i in range(num_parts)]
  needed = [checkpoint + ending for ending in (".index", *data)]
  return [name for name in needed if name not in names]


def describe_missing(missing: Iterable[str]) -> str:
  """Formats `missing_files` for an error message."""
  return f"is incomplete, it lacks {english_list(missing)}"
