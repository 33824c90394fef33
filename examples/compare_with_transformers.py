"""Compares hidden states with those of transformers, for the same tokens.

  python extract_features.py --layers=-1,-2 --init_checkpoint=$HF_DIR \
    --input_file=demo/sentences.txt --output_file=output/features.jsonl
  python -m examples.compare_with_transformers --hugging_face_dir=$HF_DIR \
    --features_file=output/features.jsonl

The first command runs `modeling.py`, on a Hugging Face folder or a checkpoint.
The second runs transformers on the tokens that the first one wrote, prints the
largest difference of each layer, and exits with status 1 if one is over 0.0001.

TensorFlow and PyTorch's compiler (triton) each contain LLVM, and a process that
imports both aborts: hence two commands. The second one needs PyTorch and
transformers: `pip install -e '.[compare,torch]'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable

import numpy as np
from absl import flags

from bertlib.cli import app, terminal
from bertlib.cli.errors import InputError
from bertlib.io import files, json_files, text_files

FLAGS = flags.FLAGS

# A line of `extract_features.py` without --pooling.
LAYER = {"index": int, "values": list}
LINE = {"features": [{"token": str, "layers": [LAYER]}]}

# From tokens to hidden states [S, H] of layers, by their index in --layers.
Model = Callable[[Sequence[str]], dict[int, np.ndarray]]


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_string(
    "hugging_face_dir", None, "Folder that transformers loads.", required=True
  )
  flags.DEFINE_string(
    "features_file", None, "Output of extract_features.py.", required=True
  )


def main(_) -> int:
  """Prints the largest difference of each layer; 0 if all agree, else 1."""
  path, fix = FLAGS.features_file, "Run extract_features.py again"
  lines = json_files.parse_lines(text_files.read_lines(path), path, LINE, fix)
  largest = compare(lines, load(FLAGS.hugging_face_dir))
  if not largest:
    raise InputError(f"{path}: has no lines. {fix}")
  for index, difference in largest.items():
    terminal.show(f"layer {index}", f"{difference:.2g}")
  # A comparison with NaN is false.
  return 0 if all(d <= 1e-4 for d in largest.values()) else 1


def compare(lines: Iterable[tuple[int, Any]], run: Model) -> dict[int, float]:
  """The largest difference of each layer, by its index in --layers."""
  largest: dict[int, float] = {}
  for line_number, line in lines:
    tokens = line["features"]
    layers = run([token["token"] for token in tokens])
    for number, layer in enumerate(tokens[0]["layers"]):
      index = layer["index"]
      values = [token["layers"][number]["values"] for token in tokens]
      found = np.array(values, float)  # null becomes NaN
      expected = layers.get(index, np.empty(0))
      if found.shape != expected.shape:
        raise InputError(
          f"--features_file, line {line_number}: layer {index} has shape"
          f" {found.shape}, in transformers {expected.shape}. Name the same"
          " model in both commands"
        )
      difference = np.abs(found - expected).max()
      largest[index] = np.maximum(largest.get(index, 0.0), difference)
  return largest


def load(folder: str) -> Model:
  """Loads a Hugging Face folder."""
  if not files.exists(f"{folder}/config.json"):
    raise InputError(f"{folder}: no config.json. Name a Hugging Face folder")
  try:
    import torch
    import transformers
  except ImportError as error:
    raise InputError(f"{error}. pip install -e '.[compare,torch]'") from error
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  vocab = transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
  model, report = transformers.BertModel.from_pretrained(
    folder, add_pooling_layer=False, output_loading_info=True
  )
  if missing := sorted(report["missing_keys"]):  # they would be random
    raise InputError(f"{folder}: has no {missing[0]}. Name a folder of a BERT")
  model = model.float().eval()

  def run(tokens):
    if unknown := sorted({*tokens} - {*vocab}):
      raise InputError(f"{folder}: no token {unknown[0]!r}. Name its folder")
    ids = torch.tensor([[vocab[token] for token in tokens]])
    # The second text of a pair follows the first [SEP].
    is_end = np.equal(tokens, "[SEP]").astype(int)
    segments = torch.tensor((np.cumsum(is_end) - is_end)[None])
    with torch.no_grad():
      output = model(ids, token_type_ids=segments, output_hidden_states=True)
    _, *layers = (states[0].numpy() for states in output.hidden_states)
    return dict([*enumerate(layers), *enumerate(layers, -len(layers))])

  return run


if __name__ == "__main__":
  define_flags()
  app.run(main)
