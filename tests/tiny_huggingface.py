"""Tiny models in the files of Hugging Face, and as checkpoints of ours."""

import json
import os

import numpy as np
import tiny_model
from safetensors.numpy import save_file

from bertlib.checkpoints import checkpoint_files
from bertlib.exchange import from_huggingface, tensor_names, to_huggingface
from bertlib.task import task_record

WORDS = [*tiny_model.SPECIAL, "the", "cat", "sat", "##s"]
# All sizes differ, so that swapped axes are noticed.
SIZES = {
  "hidden_size": 4,
  "intermediate_size": 6,
  "max_position_embeddings": 400,
  "num_hidden_layers": 2,
  "type_vocab_size": 5,
}
CONFIG = tiny_model.config(13, **SIZES).to_dict() | {"model_type": "bert"}


def layer(name, *shape):
  """Shapes of a layer's weight and bias."""
  return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


# Shapes by name, as transformers 5 saves them.
ENCODER = {
  "bert.embeddings.word_embeddings.weight": (13, 4),
  "bert.embeddings.position_embeddings.weight": (400, 4),
  "bert.embeddings.token_type_embeddings.weight": (5, 4),
  **layer("bert.embeddings.LayerNorm", 4),
}
for n in range(2):
  _LAYER = f"bert.encoder.layer.{n}"
  for part in ("self.query", "self.key", "self.value", "output.dense"):
    ENCODER |= layer(f"{_LAYER}.attention.{part}", 4, 4)
  ENCODER |= {
    **layer(f"{_LAYER}.attention.output.LayerNorm", 4),
    **layer(f"{_LAYER}.intermediate.dense", 6, 4),
    **layer(f"{_LAYER}.output.dense", 4, 6),
    **layer(f"{_LAYER}.output.LayerNorm", 4),
  }
POOLER = layer("bert.pooler.dense", 4, 4)
MASKED_LM = {
  "cls.predictions.bias": (13,),
  **layer("cls.predictions.transform.dense", 4, 4),
  **layer("cls.predictions.transform.LayerNorm", 4),
}
NEXT_SENTENCE = layer("cls.seq_relationship", 2, 4)
LABELS, CHOICE = layer("classifier", 3, 4), layer("classifier", 1, 4)
SPAN = layer("qa_outputs", 2, 4)
ARCHITECTURES = {
  "BertModel": {
    name.removeprefix("bert."): shape
    for name, shape in (ENCODER | POOLER).items()
  },
  "BertForPreTraining": ENCODER | POOLER | MASKED_LM | NEXT_SENTENCE,
  "BertForMaskedLM": ENCODER | MASKED_LM,
  "BertForNextSentencePrediction": ENCODER | POOLER | NEXT_SENTENCE,
  "BertForSequenceClassification": ENCODER | POOLER | LABELS,
  "BertForTokenClassification": ENCODER | LABELS,
  "BertForMultipleChoice": ENCODER | POOLER | CHOICE,
  "BertForQuestionAnswering": ENCODER | SPAN,
}


def tensors(architecture="BertModel", num_labels=None, seed=0):
  """Random tensors of a class, by name; those of BERT alone by default."""
  rng = np.random.default_rng(seed)
  shapes = dict(ARCHITECTURES[architecture])
  if num_labels is not None and "classifier.bias" in shapes:
    shapes |= layer("classifier", num_labels, 4)
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def random_bits(architecture):
  """Tensors of random float32 bit patterns, including NaN and Inf."""
  rng = np.random.default_rng(0)
  return {
    name: rng.integers(2**32, size=shape, dtype=np.uint32).view(np.float32)
    for name, shape in ARCHITECTURES[architecture].items()
  }


def write_folder(folder, weights=None, words=WORDS, files=(), **config):
  """Writes a folder, with further JSON files by name; [] removes a key."""
  folder.mkdir()
  weights = tensors() if weights is None else weights
  save_file(weights, folder / "model.safetensors", {"format": "pt"})
  (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
  config = {k: value for k, value in (CONFIG | config).items() if value != []}
  for name, content in (*dict(files).items(), ("config.json", config)):
    (folder / name).write_text(json.dumps(content))
  return str(folder)


def name(*labels):
  """The entry of a config that names labels."""
  return {"id2label": {str(i): label for i, label in enumerate(labels)}}


def variable_shapes(*parts):
  """Shapes of our variables for those of tensors."""
  table = tensor_names.name_table(CONFIG)
  rows = {row.huggingface: row for part in table.values() for row in part}
  return {
    rows[name].tensorflow: shape[::-1] if rows[name].transposed else shape
    for part in parts
    for name, shape in part.items()
  }


def write_checkpoint(folder, shapes, description=None, **config):
  """Writes a folder of ours with random weights; returns the checkpoint."""
  folder.mkdir()
  rng = np.random.default_rng(0)
  variables = {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }
  path = str(folder / "model.ckpt-7")
  checkpoint_files.write_variables(path, variables)
  (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
  for name, content in (
    ("bert_config.json", CONFIG | config),
    ("model.json", description),
  ):
    if content is not None:
      (folder / name).write_text(json.dumps(content))
  return path


def read(folder, **options):
  """A folder as `from_huggingface.ConvertedModel`."""
  return from_huggingface.read(
    str(folder), task_record.all_records(), **options
  )


def convert(folder, target, **options):
  """Converts a folder to a checkpoint; returns that and what was done."""
  lines = from_huggingface.convert(
    str(folder), str(target), task_record.all_records(), **options
  )
  return f"{target}/bert_model.ckpt", lines


def convert_back(checkpoint, target, **options):
  """Converts a checkpoint to a folder; returns what was done."""
  folder = os.path.dirname(checkpoint)
  return to_huggingface.convert(
    checkpoint,
    f"{folder}/bert_config.json",
    f"{folder}/vocab.txt",
    str(target),
    **options,
  )
