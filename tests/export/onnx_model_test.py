"""Tests of `OnnxModel` against the predictors of the scripts."""

import contextlib
import copy
import functools
import importlib.util
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import commands
import numpy as np
import pytest
import run_outputs
import signatures_test
from parametrize import parametrize
from refused import assert_refused, refusal
from scipy import special
from signatures_test import CONFIG, MODELS, PREDICTORS, TEXTS, call
from sklearn import preprocessing

import export_model
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs
from bertlib.export import OnnxModel
from bertlib.export.onnx_graph import INT8_MODEL_FILE, MODEL_FILE
from bertlib.io import processes
from bertlib.tasks.squad.record import RECORD

onnx = pytest.importorskip("onnx", reason="pip install -e .[onnx]")
ENGINES = ("onnxruntime", "openvino")
onnxruntime, openvino = (
  pytest.importorskip(engine, reason="pip install -e .[test]")
  for engine in ENGINES
)

pytestmark = pytest.mark.train

PAIRS = [(a, b) for a in TEXTS for b in TEXTS[:4]]


INPUTS = {
  "run_classifier": PAIRS,
  "run_squad": [(a, b) for a in TEXTS for b in TEXTS[4:7]],
  "run_ner": TEXTS,
  "run_reranker": PAIRS,
  "run_embeddings": TEXTS,
}
KINDS = MODELS | {
  "classification": MODELS["classification"] | {"has_pairs": True}
}
INT8 = ("--encoder", "--quantize=int8")
OWN = b"/zero_points"


def inputs_of(kind):
  if kind == "multiple_choice":
    return [PAIRS[first : first + 3] for first in range(0, 30, 3)]
  return INPUTS[KINDS[kind]["script"]]


@pytest.fixture(scope="module")
def main():
  with commands.in_process(export_model) as main:
    yield main


@pytest.fixture(scope="module")
def folder_of(main, tmp_path_factory):
  """Returns the folder of a kind of model; `exported` is in it."""

  @functools.cache
  def folder_of(kind, *flags):
    folder = tmp_path_factory.mktemp("model")
    signatures_test.make_model(folder, **KINDS[kind])
    folders = f"--model_dir={folder}", f"--export_dir={folder}/exported"
    main(*folders, "--format=onnx", *flags)
    return folder

  return folder_of


def load(folder, engine="onnxruntime", **options):
  return OnnxModel(str(folder / "exported"), engine=engine, **options)


def assert_equal(found, expected, path=""):
  """Asserts equality of nested results, of numbers within 1e-5."""
  if isinstance(expected, dict):
    assert found.keys() == expected.keys(), path
    found, expected = list(found.values()), list(expected.values())
  if isinstance(expected, (float, np.ndarray, np.floating)):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
  elif isinstance(expected, (list, tuple)):
    assert len(found) == len(expected), path
    for index, pair in enumerate(zip(found, expected)):
      assert_equal(*pair, f"{path}[{index}]")
  else:
    assert found == expected, path


@parametrize("kind", *sorted(KINDS.keys() - {"pretraining"}))
def test_predictions_are_those_of_the_predictor(kind, folder_of):
  folder = folder_of(kind)
  name = "encode" if "embeddings" in kind else "predict"
  with PREDICTORS[KINDS[kind]["script"]](str(folder)) as predictor:
    expected = getattr(predictor, name)(inputs_of(kind))
  for engine in ENGINES:
    with load(folder, engine) as model:
      assert_equal(getattr(model, name)(inputs_of(kind)), expected)
      assert_equal(model.predict(inputs_of(kind)[:1]), expected[:1])
      assert len(model.predict([])) == 0


def test_masks_are_filled_as_by_the_saved_model(folder_of):
  folder = folder_of("pretraining")
  texts = ["[MASK] cat sat", "the [MASK] ran [MASK].", "home"]
  model = signatures_test.unsaved(signatures_test.source_of(folder))
  expected = call(model, "text", text_a=texts)
  for engine in ENGINES:
    found = load(folder, engine).predict(texts)
    assert [len(masks) for masks in found] == [1, 2, 0]
    for text, masks in enumerate(found):
      for mask, words in enumerate(masks):
        assert [word["token"] for word in words] == [
          token.decode() for token in expected["tokens"][text, mask]
        ]
        found = [word["probability"] for word in words]
        assert_equal(found, expected["probabilities"][text, mask].tolist())


def test_hidden_states_are_those_of_the_saved_model(folder_of):
  folder = folder_of("classification", "--encoder")
  source = signatures_test.source_of(folder)
  model = signatures_test.unsaved(source, encoder=True)
  text_a, text_b = zip(*PAIRS)
  expected = call(model, "pair", text_a=text_a, text_b=text_b)
  for engine in ENGINES:
    found = load(folder, engine).predict(PAIRS)
    assert len({len(outputs.hidden_states) for outputs in found}) > 3
    for row, outputs in enumerate(found):
      states = expected["sequence_output"][row, : len(outputs.hidden_states)]
      assert_equal(outputs.hidden_states, states)
      assert_equal(outputs.pooled, expected["pooled_output"][row])


def hidden_states(folder, engine="onnxruntime"):
  found = load(folder, engine).predict(PAIRS)
  return np.concatenate([outputs.hidden_states for outputs in found])


def cosines(one, other):
  lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
  return (one * other).sum(axis=1) / lengths


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
  path = tmp_path_factory.mktemp("texts") / "texts.txt"
  lines = (f"{a} ||| {b}\n" for a, b in PAIRS if a.strip() and b.strip())
  path.write_text("".join(lines), encoding="utf-8")
  return f"--calibration_file={path}"


@parametrize("engine", *ENGINES)
def test_hidden_states_in_8_bits_are_close(engine, folder_of, calibration):
  if engine == "openvino" and processes.kind() == "AVX2":
    pytest.skip("sums of 8-bit products overflow there, as a warning says")
  flags = ("--encoder", "--quantize=int8", calibration)
  plain = hidden_states(folder_of("classification", "--encoder"))
  quantized = hidden_states(folder_of("classification", *flags), engine)
  found = cosines(plain, quantized)
  assert found.min() > 0.97
  assert 0.999 < found.mean() < 0.99999


def test_skipped_layers_are_not_in_8_bits(folder_of, calibration):
  flags = ("--encoder", "--quantize=int8", calibration)
  skip = "--int8_skip_layers=0"
  plain = hidden_states(folder_of("classification", "--encoder"))
  some = hidden_states(folder_of("classification", *flags, f"{skip}/output"))
  none = hidden_states(folder_of("classification", *flags, skip))
  # The word embeddings stay in 8 bits.
  assert cosines(plain, some).mean() < cosines(plain, none).mean()


def test_weights_in_16_bits_take_half_the_space(folder_of):
  flags = ("--encoder", "--precision=float16")
  plain = folder_of("classification", "--encoder")
  half = folder_of("classification", *flags)
  paths = [folder / "exported" / MODEL_FILE for folder in (half, plain)]
  sizes = [path.stat().st_size for path in paths]
  assert sizes[0] < 0.7 * sizes[1]
  assert cosines(hidden_states(plain), hidden_states(half)).min() > 0.9999


def test_every_batch_of_a_fixed_length_has_that_length(folder_of):
  expected = load(folder_of("classification")).predict(PAIRS)
  fixed = load(folder_of("classification", "--seq_length=24"))
  assert_equal(fixed.predict(PAIRS), expected)


@parametrize(
  "copy_of", lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy
)
def test_a_copy_opens_the_folder_again(copy_of, folder_of):
  model = load(folder_of("ner"), num_threads=1)
  expected = model.predict(TEXTS)
  model.close()
  assert copy_of(model).predict(TEXTS) == expected


@parametrize("pooling", "mean", "cls", "max")
def test_a_row_without_tokens_is_zeros(pooling, folder_of):
  folder = folder_of(f"embeddings, {pooling}")
  source = signatures_test.source_of(folder)
  with PREDICTORS["run_embeddings"](str(folder)) as predictor:
    _, rows = predictor.encode_windows(TEXTS[:2])
    rows[1]["input_mask"] = [0] * len(rows[1]["input_mask"])
    found = [np.array(predictor.run(rows))]
  for engine in ENGINES:
    found.append(np.array(load(folder, engine).run(rows)))
  ids = {
    name: np.array([model_inputs.pad(row[name], 9) for row in rows], np.int32)
    for name in model_inputs.TOKEN_FEATURES
  }
  model = signatures_test.unsaved(source)
  found.append(call(model, "ids", **ids)["vectors"])
  for vectors in found:
    assert_equal(vectors[0], found[0][0])
    assert not vectors[1].any() and vectors[0].any()


ALONE = """
import os, sys

class Blocker:
  def find_spec(self, name, path=None, target=None):
    package = name.partition(".")[0]
    if package in {packages!r}:
      raise ModuleNotFoundError("no module named " + name, name=package)

sys.meta_path.insert(0, Blocker())
"""


def run_alone(code, needed, folder, others=()):
  """Output of code in a process that has the `needed` packages only."""
  packages = {*metadata.packages_distributions()} - {*needed}
  blocker = ALONE.format(packages=[*packages, *others])
  done = commands.run_code(blocker + code, cwd=folder)
  assert not done.returncode, done.stderr
  return done.stdout


@pytest.mark.process
@parametrize("engine", *ENGINES)
def test_every_task_predicts_with_numpy_and_an_engine_alone(
  engine, folder_of, tmp_path
):
  texts = {kind: inputs_of(kind)[:8] for kind in KINDS if kind != "pretraining"}
  texts |= {"pretraining": ["the [MASK] sat", "[MASK]"], "encoder": PAIRS[:3]}
  folders = {
    kind: folder_of("ner", "--encoder")
    if kind == "encoder"
    else folder_of(kind)
    for kind in texts
  }
  paths = {kind: str(folder / "exported") for kind, folder in folders.items()}
  code = f"""
from bertlib.export import OnnxModel
texts = {texts}
for kind, path in {paths}.items():
  model = OnnxModel(path, engine={engine!r}, num_threads=1)
  print(model.predict(texts[kind]))
"""
  expected = [
    load(folders[kind], engine, num_threads=1).predict(texts[kind])
    for kind in texts
  ]
  found = run_alone(code, ["numpy", engine], tmp_path)
  assert found == "".join(f"{predicted}\n" for predicted in expected)


@pytest.mark.process
@parametrize(
  "kind", "classification", "multiple_choice", "embeddings, max", "pretraining"
)
def test_the_readme_runs_with_onnxruntime_and_tokenizers(kind, folder_of):
  pytest.importorskip("tokenizers", reason="pip install -e .[vocab]")
  folder = folder_of(kind) / "exported"
  readme = (folder / "README.md").read_text()
  alone, with_project = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
  needed = "numpy", "onnxruntime", "tokenizers"
  project = "bertlib", "modeling", "tokenization"
  assert re.search(r"^\[\[+ *-?\d", run_alone(alone, needed, folder, project))
  assert run_alone(with_project, [*needed, "openvino"], folder)


def test_the_tokenizer_file_gives_equal_ids(folder_of):
  tokenizers = pytest.importorskip("tokenizers", reason=".[vocab]")
  folder = folder_of("classification") / "exported"
  tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  tokenizer.no_padding()
  model = OnnxModel(str(folder))
  texts = signatures_test.random_texts(200, 20, signatures_test.ODD, seed=2)
  for pair in [*PAIRS, *zip(texts, texts[1:])]:
    row = model_inputs.encode_pair(model.tokenizer, *pair, 24)
    # A second text without tokens counts as none. If both are truncated, the
    # tokenizers differ in which keeps a token more.
    if row.num_truncated_tokens or not max(row.segment_ids):
      row = model_inputs.encode_pair(model.tokenizer, pair[0], None, 24)
      pair = pair[:1]
    encoded = tokenizer.encode(*pair)
    assert encoded.ids == row.input_ids[: row.num_tokens], pair
    assert encoded.type_ids == row.segment_ids[: row.num_tokens], pair


@parametrize("engine", *ENGINES)
def test_threads_may_share_a_model(engine, folder_of):
  model = load(folder_of("classification"), engine, num_threads=1)
  expected = [model.predict([pair]) for pair in PAIRS]
  with ThreadPoolExecutor(4) as threads:
    found = list(threads.map(lambda pair: model.predict([pair]), PAIRS))
  assert_equal(found, expected)


@parametrize("engine", *ENGINES)
def test_batches_at_one_time_share_the_threads(engine, folder_of, monkeypatch):
  folder, pairs = folder_of("classification"), PAIRS[:4]
  expected = load(folder, engine, num_threads=1, batch_size=1).predict(pairs)
  monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
  options = {"num_threads": 2, "num_batches": 9, "batch_size": 1}
  model = load(folder, engine, **options)
  if engine == "onnxruntime":
    assert Session.options.intra_op_num_threads == 1
  two, compute = threading.Barrier(2, timeout=60), model._compute

  def compute_beside_another(*arrays):
    two.wait()
    return compute(*arrays)

  monkeypatch.setattr(model, "_compute", compute_beside_another)
  assert_equal(model.predict(pairs), expected)


def negate_weights(path):
  """Replaces a model file by one of the same size and time."""
  times, model = path.stat(), onnx.load(path)
  for tensor in model.graph.initializer:
    if list(tensor.dims) == [CONFIG.hidden_size, 3]:  # of the output layer
      array = -onnx.numpy_helper.to_array(tensor)
      tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
  path.write_bytes(model.SerializeToString())
  os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
  assert path.stat().st_size == times.st_size


@pytest.fixture
def copied(folder_of, tmp_path):
  """A copy of the folder of a classifier."""
  folder = folder_of("classification") / "exported"
  ignored = shutil.ignore_patterns("openvino_cache")
  shutil.copytree(folder, tmp_path / "exported", ignore=ignored)
  return tmp_path


def test_openvino_keeps_its_compiled_model_for_that_model_alone(copied):
  cache = copied / "exported" / "onnx" / "openvino_cache"
  cache.mkdir()
  (cache / "1505672878200113103.blob").write_bytes(b"of OpenVINO itself")
  before = load(copied, "openvino").predict(PAIRS)
  kept = set(cache.iterdir())
  assert len(kept) == 2
  assert load(copied, "openvino").predict(PAIRS) == before
  assert set(cache.iterdir()) == kept
  negate_weights(copied / "exported" / MODEL_FILE)
  after = load(copied, "openvino").predict(PAIRS)
  assert after == load(copied, "openvino", cache_dir="").predict(PAIRS)
  assert after != before
  assert len(kept & set(cache.iterdir())) == 1
  assert len(set(cache.iterdir())) == 2


def test_a_damaged_compiled_model_is_made_again(copied):
  cache = copied / "cache"
  expected = load(copied, "openvino", cache_dir=str(cache)).predict(PAIRS)
  (path,) = cache.iterdir()
  content = path.read_bytes()
  path.write_bytes(content[: len(content) // 2])
  again = load(copied, "openvino", cache_dir=str(cache))
  assert again.predict(PAIRS) == expected
  assert path.stat().st_size > len(content) // 2


@pytest.mark.process
def test_processes_may_compile_a_model_at_once(copied):
  code = f"""
from bertlib.export import OnnxModel
model = OnnxModel({str(copied / "exported")!r}, engine="openvino")
print(model.predict(["the cat sat"])[0].label)
"""
  processes = [
    subprocess.Popen(
      [sys.executable, "-c", code],
      cwd=commands.ROOT,
      stdout=subprocess.PIPE,
      text=True,
    )
    for _ in range(4)
  ]
  outputs = {process.communicate()[0] for process in processes}
  assert {process.returncode for process in processes} == {0}
  assert len(outputs) == 1
  cache = copied / "exported" / "onnx" / "openvino_cache"
  assert len(list(cache.iterdir())) == 1


@parametrize(
  "features, in_float32, in_int8",
  ({"avx2"}, "onnxruntime", "onnxruntime"),
  ({"avx2", "avx512_vnni"}, "openvino", "openvino"),
  ({"avx2", "avx_vnni"}, "openvino", "openvino"),
  ({"avx2", "avx512_vnni", "amx_int8"}, "onnxruntime", "openvino"),
  ({"asimd"}, "onnxruntime", "onnxruntime"),
  (set(), "onnxruntime", "onnxruntime"),
)
def test_the_faster_engine_of_a_processor_computes(
  features, in_float32, in_int8, folder_of, calibration, monkeypatch, log
):
  flags = [(), (*INT8, calibration)]
  folders = [folder_of("classification", *given) for given in flags]
  monkeypatch.setattr(processes, "features", lambda: features)
  for folder in folders:
    load(folder, "auto")
  chosen = [line for line in log if ".onnx: in " in line]
  assert f"in float32, by {in_float32} on" in chosen[0]
  assert f"in int8, by {in_int8} on" in chosen[1]


@parametrize("engine", *ENGINES)
def test_the_installed_engine_computes(engine, folder_of, monkeypatch, log):
  folder = folder_of("classification")
  found = {engine: importlib.util.find_spec(engine)}
  monkeypatch.setattr(importlib.util, "find_spec", found.get)
  load(folder, "auto")
  assert f"by {engine} on" in log[-1]


def test_bfloat16_is_computed_by_an_engine_that_has_it(folder_of, log):
  load(folder_of("classification"), "auto", precision="bfloat16")
  assert any("by openvino on" in line for line in log)


class Session(onnxruntime.InferenceSession):
  """Keeps the options of the last one."""

  def __init__(self, path, options, **more):
    Session.options = options
    super().__init__(path, options, **more)


@parametrize(
  "features, engine, names, is_logged, is_set",
  ({"avx2"}, "openvino", OWN, True, None),
  ({"avx2"}, "onnxruntime", OWN, False, True),
  ({"avx2"}, "onnxruntime", b"/zero_pointz", True, False),  # as earlier
  ({"avx2", "avx_vnni"}, "openvino", OWN, False, None),
  # It would only be slower.
  ({"avx2", "avx512_vnni"}, "onnxruntime", OWN, False, False),
  ({"asimd"}, "onnxruntime", OWN, False, False),
)
def test_exact_sums_are_asked_for_and_overflow_is_reported(
  features,
  engine,
  names,
  is_logged,
  is_set,
  folder_of,
  calibration,
  tmp_path,
  monkeypatch,
  caplog,
):
  folder = folder_of("classification", *INT8, calibration) / "exported"
  monkeypatch.setattr(processes, "features", lambda: features)
  monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
  shutil.copytree(folder, tmp_path / "exported")
  path = tmp_path / "exported" / INT8_MODEL_FILE
  path.write_bytes(path.read_bytes().replace(OWN, names))
  load(tmp_path, engine, cache_dir="")
  assert ("8-bit products overflow" in caplog.text) == is_logged
  if engine == "onnxruntime":
    with contextlib.nullcontext() if is_set else pytest.raises(RuntimeError):
      name = "session.x64quantprecision"
      assert Session.options.get_session_config_entry(name) == "1"


@parametrize("is_exact", "0", "1")
def test_int8_loads_with_exact_sums(is_exact, folder_of, calibration):
  folder = folder_of("classification", *INT8, calibration) / "exported"
  options = onnxruntime.SessionOptions()
  options.add_session_config_entry("session.x64quantprecision", is_exact)
  session = onnxruntime.InferenceSession(folder / INT8_MODEL_FILE, options)
  assert session.get_outputs()


@parametrize("capabilities", ["FP32", "INT8"], ["FP32", "BF16"])
def test_bfloat16_without_instructions_is_reported(
  capabilities, copied, monkeypatch, caplog
):
  get_property = openvino.Core.get_property
  monkeypatch.setattr(
    openvino.Core,
    "get_property",
    lambda core, device, name: (
      capabilities
      if name == "OPTIMIZATION_CAPABILITIES"
      else get_property(core, device, name)
    ),
  )
  load(copied, "openvino", precision="bfloat16")
  assert ("computes in float32" in caplog.text) != ("BF16" in capabilities)


@parametrize("is_of_earlier_version", False, True)
def test_an_export_is_read_and_replaced(
  main, folder_of, tmp_path, is_of_earlier_version
):
  kept = load(folder_of("squad_1"), "openvino")  # adds its cache
  folder = tmp_path / "exported"
  shutil.copytree(folder_of("squad_1") / "exported", folder)
  if is_of_earlier_version:
    for path in (folder / "onnx").iterdir():
      path.rename(folder / path.name)
    (folder / "onnx").rmdir()
    for name in ("config.json", "tokenizer_config.json"):
      (folder / name).unlink()
  for engine in ENGINES:
    found = load(tmp_path, engine).predict(inputs_of("squad_1"))
    assert_equal(found, kept.predict(inputs_of("squad_1")))
  flags = [f"--model_dir={folder_of('squad_1')}", f"--export_dir={folder}"]
  main(*flags, "--format=onnx", "--overwrite")
  assert os.listdir(folder / "onnx") == ["model.onnx"]
  (folder / "onnx" / "mine.onnx").touch()
  with pytest.raises(InputError, match="has other files than an export"):
    main(*flags, "--format=onnx", "--overwrite")


# What programs compute of the other outputs, and our first one.
OF_OTHERS = {
  "classification": lambda mask, logits: special.softmax(logits, axis=-1),
  "multi_label": lambda mask, logits: special.expit(logits),
  "regression": lambda mask, logits: logits,
  "ner": lambda mask, logits: special.softmax(logits, axis=-1),
  "squad_1": lambda mask, start_logits, end_logits: np.stack(
    [start_logits, end_logits], axis=1
  ),
  "embeddings, mean": lambda mask, last_hidden_state: preprocessing.normalize(
    (last_hidden_state * mask).sum(axis=1)
  ),
  "embeddings, max": lambda mask, last_hidden_state: np.where(
    mask, last_hidden_state, -np.inf
  ).max(axis=1),
}


@parametrize("kind", *OF_OTHERS)
def test_other_programs_find_what_our_output_is_made_of(kind, folder_of):
  path = folder_of(kind) / "exported" / MODEL_FILE
  session = onnxruntime.InferenceSession(path)
  first, *names = (value.name for value in session.get_outputs())
  mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
  ids = np.array([[2, 13, 14, 3], [2, 3, 0, 0]])
  inputs = {"attention_mask": mask, "input_ids": ids, "token_type_ids": 0 * ids}
  others = dict(zip(names, session.run(names, inputs)))
  np.testing.assert_allclose(
    OF_OTHERS[kind](mask[:, :, None], **others),
    session.run([first], inputs)[0],
    atol=1e-6,
  )


def test_files_beside_a_model_are_checked(copied):
  path = copied / "exported" / "model.json"
  run_outputs.edit_json(path, do_lower_case=False)
  assert refusal(load, copied).startswith(f"{path}: ")


def test_models_of_other_tasks_need_their_record(folder_of, tmp_path):
  shutil.copytree(folder_of("squad_1") / "exported", tmp_path / "exported")
  path = tmp_path / "exported" / "model.json"
  run_outputs.edit_json(path, script="of_mine", meaning_sha256=...)
  assert_refused(r"is a model of of_mine.*Give task", load, tmp_path)
  assert load(tmp_path, task=RECORD).predict([("Who sat?", "the cat sat")])


@parametrize(
  "arguments, problem",
  ({"engine": "torch"}, "engine='torch': is not one of auto, onnxruntime, o"),
  ({"precision": "bfloat16"}, "is not one of float32 with onnxruntime"),
  ({"batch_size": 0}, "batch_size=0: not allowed"),
  ({"num_batches": 0}, "num_batches=0: not allowed"),
  ({"num_threads": -1}, "num_threads=-1: not allowed"),
  ({"num_threads": 10**6}, "num_threads=1000000: not allowed"),
)
def test_arguments_out_of_range_are_refused(arguments, problem, folder_of):
  assert_refused(problem, load, folder_of("classification"), **arguments)


@parametrize("engine", *ENGINES)
def test_a_damaged_model_is_refused(engine, folder_of, tmp_path):
  exported = folder_of("classification") / "exported"
  shutil.copytree(exported, tmp_path / "exported")
  path = tmp_path / "exported" / MODEL_FILE
  content = path.read_bytes()
  path.write_bytes(content[:-20])
  assert_refused(r"model\.onnx: is not the model that", load, tmp_path, engine)
  path.write_bytes(b"\xff" * 1000 + content[1000:])
  message = refusal(load, tmp_path, engine)
  assert f"model.onnx: cannot be loaded by {engine} (" in message
  assert "Exception from" not in message
  path.unlink()
  assert_refused(r"model\.onnx: no such file", load, tmp_path, engine)
