"""Small tokenizers of both kinds, as files of the package `tokenizers`."""

import functools
import json

import numpy as np
import tokenizers
from reference_data import golden
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

TEXT = (
  "the cat sat on the mat, and the dog ran to the cat. naïve cafés are open;"
  " she said: don't play with <fire> [here] / there! 1 2 3 日本語"
)
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
MODEL_TYPES = {"BPE": "roberta", "Unigram": "xlm-roberta"}
KINDS = [*MODEL_TYPES]


@functools.cache
def content(kind):
  """Text of the `tokenizer.json` of a kind, as RoBERTa and XLM-R have it."""
  if kind == "BPE":
    tokenizer = tokenizers.Tokenizer(models.BPE())
    step = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.pre_tokenizer, tokenizer.decoder = step, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
      vocab_size=300,
      initial_alphabet=alphabet,
      special_tokens=SPECIAL,
      show_progress=False,
    )
    ends = ("</s>", 2), ("<s>", 0)
    processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
  else:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
      vocab_size=90,
      special_tokens=SPECIAL,
      unk_token="<unk>",
      show_progress=False,
    )
    processor = processors.TemplateProcessing(
      single="<s> $A </s>",
      pair="<s> $A </s> </s> $B </s>",
      special_tokens=[("<s>", 0), ("</s>", 2)],
    )
  tokenizer.train_from_iterator([TEXT] * 9, trainer)
  mask = tokenizers.AddedToken("<mask>", lstrip=True, special=True)
  tokenizer.add_special_tokens([mask])
  tokenizer.post_processor = processor
  return tokenizer.to_str()


def vocab_size(kind):
  """Number of entries of a kind."""
  return tokenizers.Tokenizer.from_str(content(kind)).get_vocab_size()


def write_folder(folder, kind, positions=16):
  """Writes the folder of an encoder with a tokenizer of a kind."""
  with open(golden("transformers.json")) as file:
    model = json.load(file)["CamembertModel"]
  size = vocab_size(kind)
  shapes = model["shapes"] | {
    "embeddings.word_embeddings.weight": [size, 8],
    "embeddings.position_embeddings.weight": [positions, 8],
  }
  draw = np.random.RandomState(0)
  tensors = {
    name: draw.normal(0.0, 0.2, shape).astype(np.float32)
    for name, shape in shapes.items()
  }
  folder.mkdir()
  save_file(tensors, folder / "model.safetensors", {"format": "pt"})
  config = model["config"] | {
    "model_type": MODEL_TYPES[kind],
    "vocab_size": size,
    "max_position_embeddings": positions,
    "architectures": [],
  }
  (folder / "config.json").write_text(json.dumps(config))
  (folder / "tokenizer.json").write_text(content(kind))
  return tensors
