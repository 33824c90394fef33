"""Exported models: SavedModels that take text, and ONNX models."""

from typing import Any


def __getattr__(name: str) -> Any:
  """`OnnxModel`, whose module imports others of this folder."""
  if name == "OnnxModel":
    from bertlib.export.onnx_model import OnnxModel

    return OnnxModel
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
