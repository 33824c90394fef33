"""Names of the files of a model in its folder; the error without a model."""

from __future__ import annotations

from bertlib.cli.errors import InputError

CONFIG = "bert_config.json"
VOCAB = "vocab.txt"
DESCRIPTION = "model.json"

# Files that are copied together with a checkpoint.
COMPANIONS = (CONFIG, VOCAB, DESCRIPTION)

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

# Files by the flag that names them.
BY_FLAG = {"vocab_file": VOCAB, "bert_config_file": CONFIG}


def untrained(folder: str) -> InputError:
  """Error about a folder without a model to evaluate."""
  return InputError(
    f"{folder}: holds no trained model; add --do_train, or name a trained model"
    " with --init_checkpoint"
  )
