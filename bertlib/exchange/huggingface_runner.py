"""Running a Hugging Face BERT with `transformers`, in a child process.

    python -m bertlib.exchange.huggingface_runner FOLDER

reads batches from standard input and writes outputs to standard output.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from typing import IO, Any, Callable

import numpy as np
from absl import logging

from bertlib.cli.errors import InputError

_INSTALL = (
  "Install PyTorch and transformers: pip install torch transformers"
  " (docs/how_to/converting_checkpoints.md has PyTorch without CUDA)"
)
# Each message is an .npz archive, preceded by its length.
_LENGTH = struct.Struct(">Q")  # bytes of the archive that follows


class HuggingFaceModel:
  """A model in a child process, which ends when this object is deleted."""

  def __init__(self, folder: str):
    """Starts the process; InputError if packages or files are missing."""
    self._folder = folder
    self._log = tempfile.TemporaryFile()  # noqa: SIM115 (as long as this lives)
    # TensorFlow and PyTorch's compiler (triton) each contain LLVM, and a
    # process that imports both aborts. The child imports PyTorch only.
    self._process = subprocess.Popen(
      [sys.executable, "-m", __name__, folder],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._log,
      # Older releases of transformers import TensorFlow if it is installed.
      env=os.environ
      | {"USE_TF": "0", "HF_HUB_OFFLINE": "1", "PYTHONPATH": _python_path()},
    )
    weakref.finalize(self, _stop, self._process)
    about = self._receive()
    # The packages that run the model, with their versions.
    self.packages = str(about["packages"])
    self.vocab_size = int(about["vocab_size"])
    self.max_seq_length = int(about["max_seq_length"])

  def run(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of a batch, int32 [B, S] each, named as those of `compare`."""
    try:
      _write_arrays(self._process.stdin, batch)
    except BrokenPipeError:
      raise self._crash() from None
    return self._receive()

  def _receive(self) -> dict[str, np.ndarray]:
    arrays = _read_arrays(self._process.stdout)
    if arrays is None:
      raise self._crash()
    if "error" in arrays:
      raise InputError(str(arrays["error"]))
    return arrays

  def _crash(self) -> InputError:
    """Error for a child process that ended unexpectedly."""
    status = self._process.wait()
    self._log.seek(0)
    lines = self._log.read().decode(errors="replace").split("\n")
    logging.debug("Output of the transformers process:\n%s", "\n".join(lines))
    cause = signal.strsignal(-status) if status < 0 else f"status {status}"
    last = next((line for line in reversed(lines) if line.strip()), "")
    return InputError(
      f"{self._folder}: the transformers process crashed"
      f" ({cause}: {last.strip()}). {_INSTALL}"
    )


def _stop(process: subprocess.Popen) -> None:
  with contextlib.suppress(BrokenPipeError):  # already crashed
    process.stdin.close()  # makes the child exit
  process.wait()
  process.stdout.close()


# Child process


def load(folder: str) -> tuple[Callable[..., dict[str, np.ndarray]], Any, str]:
  """Loads a folder: its `run`, its config, and the packages that run it."""
  try:
    import torch
    import transformers
  except ImportError as error:
    raise InputError(
      f"{folder}: cannot be run with transformers ({error}). {_INSTALL}"
    ) from error
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  try:
    model, report = transformers.BertModel.from_pretrained(
      folder, output_loading_info=True, local_files_only=True
    )
  except (ImportError, OSError, ValueError, RuntimeError) as error:
    reason, *_ = str(error).strip().split("\n")
    raise InputError(
      f"{folder}: transformers cannot load it ({reason})"
    ) from error
  missing = {name for name in report["missing_keys"] if "pooler" not in name}
  if missing:
    raise InputError(f"{folder}: has no {', '.join(sorted(missing))}")
  has_pooler = not report["missing_keys"]
  model = model.float().eval()
  packages = f"transformers {transformers.__version__}"
  # Vectors of sentence-transformers are those of its own package.
  sentence_model = None
  if os.path.exists(os.path.join(folder, "modules.json")):
    sentence_model, package = _load_sentence_model(folder)
    packages += f", {package}"

  def run(batch):
    ids, mask, segments = (
      torch.from_numpy(batch[name]).long()
      for name in ("input_ids", "input_mask", "segment_ids")
    )
    with torch.no_grad():
      result = model(ids, mask, segments, output_hidden_states=True)
    embeddings, *layers = (state.numpy() for state in result.hidden_states)
    outputs = {"embeddings": embeddings}
    outputs |= {f"layer {n}": layer for n, layer in enumerate(layers, start=1)}
    if has_pooler:
      outputs["pooled"] = result.pooler_output.numpy()
    if sentence_model:
      features = {"input_ids": ids, "attention_mask": mask}
      with torch.no_grad():
        result = sentence_model(features | {"token_type_ids": segments})
      outputs["vector"] = result["sentence_embedding"].numpy()
    return outputs

  return run, model.config, packages


def _load_sentence_model(folder: str) -> tuple[Any, str]:
  """Loads a folder of sentence-transformers, or None; names the package."""
  try:
    import sentence_transformers
  except ImportError:
    return None, "no vectors: sentence-transformers is not installed"
  try:
    model = sentence_transformers.SentenceTransformer(
      folder, device="cpu", local_files_only=True
    )
  except (ImportError, OSError, ValueError, RuntimeError) as error:
    reason, *_ = str(error).strip().split("\n")
    raise InputError(
      f"{folder}: sentence-transformers cannot load it ({reason})"
    ) from error
  package = f"sentence-transformers {sentence_transformers.__version__}"
  return model.float().eval(), package


def main(folder: str) -> None:
  """Computes outputs of batches until standard input is closed."""
  replies = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)  # keeps the packages' own output out of the replies
  try:
    run, config, packages = load(folder)
  except InputError as error:
    _write_arrays(replies, {"error": str(error)})
    return
  about = {
    "packages": packages,
    "vocab_size": config.vocab_size,
    "max_seq_length": config.max_position_embeddings,
  }
  _write_arrays(replies, about)
  while (batch := _read_arrays(sys.stdin.buffer)) is not None:
    _write_arrays(replies, run(batch))


def _python_path() -> str:
  """PYTHONPATH with which the child process can import this module."""
  path = pathlib.Path(__file__).absolute()
  root = path.parents[__name__.count(".")]  # where its top-level package is
  before = os.environ.get("PYTHONPATH")
  return os.pathsep.join(filter(None, [str(root), before]))


# Messages


def _write_arrays(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
  archive = io.BytesIO()
  np.savez(archive, **arrays)
  file.write(_LENGTH.pack(archive.tell()))
  file.write(archive.getbuffer())
  file.flush()


def _read_arrays(file: IO[bytes]) -> dict[str, np.ndarray] | None:
  """Reads the next message; None if the other process has ended."""
  length = file.read(_LENGTH.size)
  if len(length) < _LENGTH.size:
    return None
  (size,) = _LENGTH.unpack(length)
  archive = file.read(size)
  if len(archive) < size:
    return None
  with np.load(io.BytesIO(archive)) as arrays:
    return dict(arrays)


if __name__ == "__main__":
  main(sys.argv[1])
