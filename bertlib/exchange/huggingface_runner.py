"""Running a Hugging Face BERT with `transformers`, in a child process.

TensorFlow and PyTorch's compiler (triton) each contain LLVM, and a process that
imports both aborts. The child imports PyTorch only.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.cli.errors import InputError

# Batch: int32 [B, S] for each of `model_inputs.TOKEN_FEATURES`. Outputs: float
# [B, S, H] for "embeddings", "layer 1", "layer 2", ...; and what the model has
# of "pooled" [B, H], "masked LM" at the middle token [B, V], "next sentence"
# [B, 2] and "answer spans" [B, S, 2].
Batch = Mapping[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]


def numbered(layers: Iterable[Any]) -> dict[str, Any]:
  """Hidden states of layers, by the names of outputs."""
  return {f"layer {n}": layer for n, layer in enumerate(layers, start=1)}


def run(folder: str, batches: Sequence[Batch]) -> Iterator[Outputs]:
  """Yields the outputs of each batch."""
  with tempfile.TemporaryDirectory() as work:
    paths = [os.path.join(work, f"{n}.npz") for n in range(len(batches))]
    for path, batch in zip(paths, batches):
      np.savez(path, **batch)
    done = subprocess.run(
      [sys.executable, "-m", __name__, os.path.abspath(folder), work],
      cwd=pathlib.Path(__file__).absolute().parents[__name__.count(".")],
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      # Older releases of transformers import TensorFlow if it is installed.
      env=os.environ | {"USE_TF": "0", "HF_HUB_OFFLINE": "1"},
      check=False,
    )
    if done.returncode:
      lines = done.stderr.decode(errors="replace").strip().splitlines()
      reason = lines[-1] if lines else f"status {done.returncode}"
      raise InputError(
        f"{folder}: transformers cannot run it ({reason}). This needs PyTorch"
        " and pip install -e '.[compare]', see"
        " docs/how_to/converting_checkpoints.md"
      )
    for path in paths:
      with np.load(path) as outputs:
        yield dict(outputs)


# Child process

# Names of the outputs of heads in transformers, by class.
_HEADS = {
  "BertForPreTraining": ("prediction_logits", "seq_relationship_logits"),
  "BertForMaskedLM": ("logits", None),
  "BertForNextSentencePrediction": (None, "logits"),
  "BertForQuestionAnswering": (None, None),
}


def main(folder: str, work: str) -> None:
  """Replaces each batch, a file in the folder `work`, by its outputs."""
  import torch
  import transformers

  config = transformers.BertConfig.from_pretrained(folder)
  (architecture,) = {*(config.architectures or ())} & {*_HEADS} or {"BertModel"}
  model, report = getattr(transformers, architecture).from_pretrained(
    folder, output_loading_info=True, local_files_only=True
  )
  missing = report["missing_keys"]
  if not all("pooler" in name for name in missing):
    raise ValueError(f"has no {', '.join(sorted(missing))}")
  model = model.float().eval()
  masked_lm, next_sentence = _HEADS.get(architecture, (None, None))
  for path in list(pathlib.Path(work).iterdir()):
    with np.load(path) as arrays:
      ids, mask, segments = (
        torch.from_numpy(a).long() for a in arrays.values()
      )
    with torch.no_grad():
      encoded = model.base_model(ids, mask, segments, output_hidden_states=True)
      found = model(ids, mask, segments)
    embeddings, *layers = encoded.hidden_states
    outputs = {"embeddings": embeddings, **numbered(layers)}
    if encoded.pooler_output is not None and not missing:
      outputs["pooled"] = encoded.pooler_output
    if masked_lm:
      middle = mask.sum(-1) // 2
      outputs["masked LM"] = found[masked_lm][range(len(middle)), middle]
    if next_sentence:
      outputs["next sentence"] = found[next_sentence]
    if "start_logits" in found:
      logits = found.start_logits, found.end_logits
      outputs["answer spans"] = torch.stack(logits, -1)
    np.savez(path, **outputs)


if __name__ == "__main__":
  main(*sys.argv[1:])
