"""Lets sentence-transformers write two tiny models and compute their vectors.

`python tests/golden/run_sentence_transformers.py` writes the folders
`sentence_transformers/RELEASE`, one per file format: run it with
sentence-transformers 5.1.2 and with 6.2.0, which save differently.
`vectors.json` has the vectors of `TEXTS` by the name of the prompt, "" for none
given.
"""

import json
import os
import sys
import tempfile

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer, models

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = [
  "",
  " ",
  "a",
  "?!",
  "The cat sat on the mat.",
  "the CAT sat on the mat",
  "A feline rested upon the rug.",
  "Café, naïve, über, Ångström",
  "price: $3.50 (was $4)",
  "one two three four five six seven eight nine ten eleven twelve " * 5,
  "supercalifragilisticexpialidocious" * 8,
  "line one\nline two\tand a tab",
  "我爱你",
  "Ελληνικά and Русский",
  "\u200b zero width \u00ad soft hyphen",
  "don't can't won't",
  "e-mail me at someone@example.org",
  "query: what is a query",
  "passage: what is a passage",
  "THE END",
]


def small_vocabulary(folder):
  """Writes a vocabulary of short pieces; returns its path and size."""
  path = os.path.join(HERE, "data", "bert", "vocab", "programs.txt")
  with open(path, encoding="utf-8") as file:
    pieces = [line.rstrip("\n") for line in file]
  kept = [p for p in pieces if len(p) <= 3 or p.startswith("[")]
  with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as file:
    file.writelines(piece + "\n" for piece in kept)
  return len(kept)


def encoder(folder):
  """Saves a random encoder and its tokenizer to `folder`."""
  config = transformers.BertConfig(
    vocab_size=small_vocabulary(folder),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=40,
    initializer_range=0.3,
  )
  transformers.BertModel(config).save_pretrained(folder)
  vocab = os.path.join(folder, "vocab.txt")
  transformers.BertTokenizer(vocab, do_lower_case=True).save_pretrained(folder)


def old_model(transformer):
  """[CLS], tanh, length 1, prompts."""
  parts = [
    models.Pooling(16, pooling_mode="cls"),
    models.Dense(16, 6, activation_function=torch.nn.Tanh()),
    models.Normalize(),
  ]
  return SentenceTransformer(
    modules=[transformer, *parts],
    prompts={"query": "query: ", "passage": "passage: "},
    default_prompt_name="passage",
  )


def new_model(transformer):
  """Mean, linear projection without bias, any length."""
  linear = torch.nn.Identity()
  parts = [
    models.Pooling(16, pooling_mode="mean"),
    models.Dense(16, 6, bias=False, activation_function=linear),
  ]
  return SentenceTransformer(modules=[transformer, *parts])


def main():
  release = sentence_transformers.__version__
  is_new = int(release.split(".")[0]) >= 6
  torch.manual_seed(len(release))
  with tempfile.TemporaryDirectory() as folder:
    encoder(folder)
    transformer = models.Transformer(folder, max_seq_length=24)
    model = (new_model if is_new else old_model)(transformer)
  target = os.path.join(HERE, "sentence_transformers", release)
  model.save(target, create_model_card=False)
  model = SentenceTransformer(target, local_files_only=True)
  names = ["", *(name for name, prompt in model.prompts.items() if prompt)]
  vectors = {
    name: model.encode(TEXTS, prompt_name=name or None).tolist()
    for name in names
  }
  with open(os.path.join(target, "vectors.json"), "w") as file:
    json.dump({"texts": TEXTS, "vectors": vectors}, file)
  print(release, names, file=sys.stderr)


main()
