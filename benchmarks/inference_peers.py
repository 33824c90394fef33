"""Sides of `inference` that are other code.

transformers, sentence-transformers, fastembed, ONNX Runtime and OpenVINO.

Each is a function of the flags and of `model`, `task`, `precision` and
`folder`, see `inference_works.make_model`. This module runs in the Python of
the peers.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from benchmarks import mrpc_epoch, side_by_side
from benchmarks.inference_works import (
  TASKS,
  checksums,
  in_folder,
  in_order_of_length,
  in_sorted_batches,
  read_texts,
  serve,
)
from benchmarks.side_by_side import Answers, Settings, with_compiled


def transformers(settings: Settings) -> Answers:
  """The model in transformers, with PyTorch and sdpa attention."""
  import torch

  if settings.precision == "float32":
    models = {"sdpa": load_peer(settings)}
  elif settings.precision == "bfloat16":
    models = {
      "autocast": load_peer(settings),
      "weights in bfloat16": load_peer(settings).to(torch.bfloat16),
    }
  else:
    models = {
      "dynamic, per tensor": quantized(load_peer(settings)),
      "dynamic, per channel": quantized(
        load_peer(settings),
        {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig},
      ),
    }

  def runner(forward, autocast):
    @torch.inference_mode()
    def run(batch):
      with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        outputs = forward(**batch)
      return [value.float() for value in outputs.values()]

    return run

  candidates = {}
  for name, model in models.items():
    variants = with_compiled(name, settings.torch_compile)
    for variant, compiles in variants.items():
      forward = torch.compile(model, dynamic=True) if compiles else model
      candidates[variant] = runner(forward, name == "autocast")
  return serve_fastest(settings, candidates)


def quantized(model: Any, layers: Any = None) -> Any:
  """The model with dynamic int8 of PyTorch."""
  import torch

  torch.backends.quantized.engine = "onednn"
  return torch.ao.quantization.quantize_dynamic(
    model, layers or {torch.nn.Linear}, torch.qint8
  )


def sentence_transformers(settings: Settings) -> Answers:
  """The model in sentence-transformers: normalized means, or pair scores."""
  import sentence_transformers as library
  import torch
  from sentence_transformers.sentence_transformer import modules

  if settings.task not in ("vectors", "scores"):
    raise NotImplementedError(f"does not do the task {settings.task}")
  name = {"float32": "sdpa", "bfloat16": "weights in bfloat16"}.get(
    settings.precision, "dynamic"
  )
  path = in_folder(settings, "hugging_face")
  length = TASKS[settings.task].description["max_seq_length"]

  def load():
    if settings.task == "scores":
      return library.CrossEncoder(
        path, max_length=length, activation_fn=torch.nn.Identity(), device="cpu"
      )
    encoder = modules.Transformer(path)
    encoder.max_seq_length = length
    pooling = modules.Pooling(encoder.get_embedding_dimension(), "mean")
    return library.SentenceTransformer(
      modules=[encoder, pooling, modules.Normalize()], device="cpu"
    )

  def runner(model):
    if settings.task == "scores":
      return lambda pairs, size: model.predict(pairs, batch_size=size).tolist()
    return lambda texts, size: checksums(
      model.encode([text for (text,) in texts], batch_size=size)
    )

  candidates = {}
  for variant, compiles in with_compiled(name, settings.torch_compile).items():
    model = load()
    if settings.precision == "bfloat16":
      model = model.to(torch.bfloat16)
    elif settings.precision == "int8":
      model = quantized(model)
    if compiles:
      model[0].auto_model.compile(dynamic=True)
    candidates[variant] = runner(model)
  return serve_fastest_size(settings, candidates, [8, 32, 128])


def sentence_transformers_onnx(settings: Settings) -> Answers:
  """Scores of pairs by the ONNX backend of releases before 6."""
  import sentence_transformers as library
  import torch

  if settings.task != "scores":
    raise NotImplementedError(f"does not do the task {settings.task}")
  load = functools.partial(
    library.CrossEncoder,
    max_length=TASKS[settings.task].description["max_seq_length"],
    activation_fn=torch.nn.Identity(),
    device="cpu",
    backend="onnx",
  )
  model = load(in_folder(settings, "hugging_face"))
  if settings.precision == "int8":
    folder = in_folder(settings, "sentence_transformers_onnx")
    model.save_pretrained(folder)
    library.export_dynamic_quantized_onnx_model(model, "avx512_vnni", folder)
    name = "onnx/model_qint8_avx512_vnni.onnx"
    model = load(folder, model_kwargs={"file_name": name})
  candidates = {
    "dynamic": lambda pairs, size: model.predict(
      pairs, batch_size=size
    ).tolist()
  }
  return serve_fastest_size(settings, candidates, [8, 32, 128])


def fastembed(settings: Settings) -> Answers:
  """Scores of pairs by `TextCrossEncoder`, sorted by length before."""
  from fastembed.common.model_description import ModelSource
  from fastembed.rerank.cross_encoder import TextCrossEncoder

  if settings.task != "scores":
    raise NotImplementedError(f"does not do the task {settings.task}")
  folder = in_folder(settings, "fastembed")
  shutil.copytree(
    in_folder(settings, "hugging_face"), folder, dirs_exist_ok=True
  )
  load_tokenizer(settings).save_pretrained(folder, legacy_format=False)

  def runner(model):
    rank = in_order_of_length(
      lambda pairs, size: [*model.rerank_pairs(pairs, size)],
      lambda pair: len(pair[1]),
    )
    return lambda pairs, size: rank(pairs, size).tolist()

  candidates = {}
  for variant, path in write_onnx_models(settings, folder).items():
    TextCrossEncoder.add_custom_model(
      variant, ModelSource(url="https://example.com"), os.path.basename(path)
    )
    model = TextCrossEncoder(
      variant, threads=settings.num_threads, specific_model_path=folder
    )
    candidates[variant] = runner(model)
  return serve_fastest_size(settings, candidates, [4, 8, 16, 32])


def onnx_runtime(settings: Settings) -> Answers:
  """The model in ONNX Runtime, with its fusions and quantization."""
  import onnxruntime
  import torch

  def runner(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = settings.num_threads or 0
    session = onnxruntime.InferenceSession(
      path, options, providers=["CPUExecutionProvider"]
    )

    def run(batch):
      feed = {name: tensor.numpy() for name, tensor in batch.items()}
      return list(map(torch.from_numpy, session.run(None, feed)))

    return run

  with tempfile.TemporaryDirectory() as folder:
    paths = write_onnx_models(settings, folder)
    candidates = {name: runner(path) for name, path in paths.items()}
  return serve_fastest(settings, candidates)


def openvino(settings: Settings) -> Answers:
  """The model in OpenVINO; in int8 with the static quantization of NNCF."""
  import openvino as library
  import torch

  core = library.Core()
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "plain.onnx")
    write_plain_model(settings, path)
    model = core.read_model(path)
    if settings.precision == "int8":
      import nncf

      feeds = list(calibration_feeds(settings))
      model = nncf.quantize(
        model,
        nncf.Dataset(feeds),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(feeds),
      )
    is_bfloat16 = settings.precision == "bfloat16"
    options = {"INFERENCE_PRECISION_HINT": "bf16" if is_bfloat16 else "f32"}
    if settings.num_threads:
      options["INFERENCE_NUM_THREADS"] = settings.num_threads

    def runner(hint):
      compiled = core.compile_model(
        model, "CPU", options | {"PERFORMANCE_HINT": hint}
      )
      request = compiled.create_infer_request()

      def run(batch):
        outputs = request.infer({k: v.numpy() for k, v in batch.items()})
        return list(map(torch.from_numpy, outputs.values()))

      return run

    candidates = {hint: runner(hint) for hint in ("LATENCY", "THROUGHPUT")}
  return serve_fastest(settings, candidates)


def openvino_as_they_come(settings: Settings) -> Answers:
  """`openvino` in batches of 32 texts in the order of the data."""
  settings.unsorted_size = 32
  return openvino(settings)


def write_onnx_models(settings: Settings, folder: str) -> dict[str, str]:
  """Writes the models of which ONNX Runtime runs the fastest."""
  from onnxruntime import quantization
  from onnxruntime.quantization.shape_inference import quant_pre_process
  from onnxruntime.transformers import optimizer

  def path(name):
    return os.path.join(folder, name + ".onnx")

  config = write_plain_model(settings, path("plain"))
  optimizer.optimize_model(
    path("plain"),
    "bert",
    config.num_attention_heads,
    config.hidden_size,
    opt_level=0,
  ).save_model_to_file(path("fused"))
  quant_pre_process(
    path("fused"), path("fused"), skip_optimization=True, auto_merge=True
  )
  if settings.precision == "float32":
    return {name: path(name) for name in ("plain", "fused")}
  names = {"dynamic": "plain", "dynamic, fused": "fused"}
  for name in names.values():
    quantization.quantize_dynamic(
      path(name), path(name + "-int8"), per_channel=True
    )
  return {variant: path(name + "-int8") for variant, name in names.items()}


def write_plain_model(settings: Settings, path: str) -> Any:
  """Writes the model in ONNX; returns its config."""
  import torch

  # The optimizer of ONNX Runtime knows eager attention of this exporter.
  model = load_peer(settings, attn_implementation="eager")
  batch = example_batch(settings)
  torch.onnx.export(
    model,
    (batch,),
    path,
    input_names=list(batch),
    output_names=list(model(**batch)),
    dynamic_axes={name: {0: "batch", 1: "sequence"} for name in batch},
    opset_version=17,
    dynamo=False,
  )
  return model.config


def calibration_feeds(settings: Settings) -> Iterator[dict[str, Any]]:
  """Inputs of each calibration text."""
  tokenizer = load_tokenizer(settings)
  length = TASKS[settings.task].description["max_seq_length"]
  for text in read_texts(settings, "calibration"):
    parts = ([part] for part in text)
    yield dict(
      tokenizer(*parts, truncation=True, max_length=length, return_tensors="np")
    )


def serve_fastest_size(
  settings: Settings, candidates: dict[str, Callable], sizes: Sequence[int]
) -> Answers:
  """Serves by the fastest of functions of texts and a size of batches."""
  runs = {
    f"{name}, batches of {size}": functools.partial(run, size=size)
    for name, run in candidates.items()
    for size in sizes
  }
  trial = read_texts(settings, "calibration")[:128]
  best, description = side_by_side.fastest(runs, 5, trial)
  return serve(settings, description, runs[best])


def serve_fastest(
  settings: Settings, candidates: dict[str, Callable]
) -> Answers:
  """Serves by the fastest of some functions of padded batches."""
  batch = example_batch(settings)
  best, description = side_by_side.fastest(candidates, 5, batch)
  predict = peer_predictor(settings, candidates[best])
  return serve(settings, description, predict)


def example_batch(settings: Settings) -> dict[str, Any]:
  """A PyTorch batch of 64 tokens, int64 [32, 64] by name."""
  import torch

  shape = 32, 64
  return {
    "input_ids": torch.randint(0, 1000, shape),
    "attention_mask": torch.ones(shape, dtype=torch.int64),
    "token_type_ids": torch.zeros(shape, dtype=torch.int64),
  }


def load_peer(settings: Settings, **options: Any) -> Any:
  """The model in transformers, float32."""
  import torch

  from benchmarks.torch_training import load

  architecture = TASKS[settings.task].architecture
  model = load(architecture, in_folder(settings, "hugging_face"), **options)
  if settings.task not in ("vectors", "states"):
    return model.eval()
  pools = settings.task == "vectors"

  class Encoder(torch.nn.Module):
    """From a padded batch to hidden states, or to vectors of length 1."""

    def __init__(self):
      super().__init__()
      self.model, self.config = model, model.config

    def forward(self, input_ids, attention_mask, token_type_ids):
      states = self.model(input_ids, attention_mask, token_type_ids)[0]
      if not pools:
        return {"states": states}
      weights = attention_mask.unsqueeze(-1).to(states.dtype)
      sums = (states * weights).sum(1)  # a mean, but for its length
      return {"vectors": torch.nn.functional.normalize(sums.float())}

  return Encoder().eval()


def load_tokenizer(settings: Settings) -> Any:
  """The tokenizer of transformers."""
  import transformers

  return transformers.AutoTokenizer.from_pretrained(
    in_folder(settings, "hugging_face")
  )


def peer_predictor(settings: Settings, run: Callable) -> Callable:
  """Makes a function of texts from one of padded batches."""
  import torch

  tokenizer = load_tokenizer(settings)
  length = TASKS[settings.task].description["max_seq_length"]

  def batches(encoded, function):
    lengths = list(map(len, encoded["input_ids"]))
    return in_sorted_batches(
      settings,
      lengths,
      lambda rows: function(rows, run(mrpc_epoch.padded(encoded, rows))),
    )

  if settings.task != "answers":

    def predict(texts):
      parts = map(list, zip(*texts))
      encoded = tokenizer(*parts, truncation=True, max_length=length)

      def outputs_of(rows, out):
        if settings.task == "labels":
          return torch.softmax(out[0], -1)[:, 1].tolist()
        if settings.task == "scores":
          return out[0][:, 0].tolist()
        if settings.task == "vectors":
          return checksums(out[0])
        sizes = [len(encoded["input_ids"][row]) for row in rows]
        return [states[:size].numpy() for size, states in zip(sizes, out[0])]

      return batches(encoded, outputs_of)

    return predict

  def answers(texts):
    encoded = tokenizer(
      *map(list, zip(*texts)),
      truncation="only_second",
      max_length=length,
      stride=TASKS["answers"].description["doc_stride"],
      return_overflowing_tokens=True,
      return_offsets_mapping=True,
    )
    offsets = encoded.pop("offset_mapping")
    question_of = encoded.pop("overflow_to_sample_mapping")
    spans = batches(encoded, lambda rows, out: best_spans(encoded, rows, *out))
    best: dict = {}
    for question, span, window in zip(question_of, spans, offsets):
      score, first, last = span
      if question not in best or score > best[question][0]:
        text = texts[question][1][window[first][0] : window[last][1]]
        best[question] = score, text
    return [best[question][1] for question in range(len(texts))]

  return answers


def best_spans(
  encoded: Any, rows: list[int], starts: Any, ends: Any
) -> list[tuple[float, int, int]]:
  """The best span of each window: at most 30 tokens of the passage."""
  import torch

  segments = torch.nn.utils.rnn.pad_sequence(
    [torch.tensor(encoded["token_type_ids"][row]) for row in rows],
    batch_first=True,
  )
  is_text = segments == 1
  last = torch.tensor([len(encoded["input_ids"][row]) - 1 for row in rows])
  is_text[torch.arange(len(rows)), last] = False  # [SEP]
  low = torch.finfo(torch.float32).min
  count = min(20, is_text.shape[1])
  start_scores, first = torch.where(is_text, starts, low).topk(count)
  end_scores, last = torch.where(is_text, ends, low).topk(count)
  length = last[:, None] - first[:, :, None]  # [B, starts, ends]
  scores = start_scores[:, :, None] + end_scores[:, None]
  scores = torch.where((length >= 0) & (length < 30), scores, low).flatten(1)
  score, index = scores.max(1)
  row = torch.arange(len(rows))
  chosen = first[row, index // count], last[row, index % count]
  return list(zip(score.tolist(), *(x.tolist() for x in chosen)))
