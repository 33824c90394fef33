"""Tests of `OnnxModel` against the predictors of the scripts."""

import functools
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import commands
import embedder_test
import numpy as np
import pytest
import signatures_test
from signatures_test import MODELS, PREDICTORS, TEXTS, call

import export_model
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs
from bertlib.export import OnnxModel
from bertlib.tasks.squad.record import RECORD

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
ENGINES = ("onnxruntime", "openvino")
for engine in ENGINES:
  pytest.importorskip(engine, reason="pip install -e .[test]")

pytestmark = pytest.mark.train

PAIRS = [(a, b) for a in TEXTS for b in TEXTS[:4]]
INPUTS = {
  "run_classifier": PAIRS,
  "run_squad": [(a, b) for a in TEXTS for b in TEXTS[4:7]],
  "run_ner": TEXTS,
  "run_embeddings": TEXTS,
}
KINDS = {
  **{name: dict(model) for name, model in MODELS.items()},
  **{
    f"embeddings, {name}": {"script": "run_embeddings", "embedding": spec}
    for name, spec in embedder_test.SPECS.items()
  },
}
KINDS["classification"]["has_pairs"] = True


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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"pretraining"}))
def test_predictions_are_those_of_the_predictor(kind, engine, folder_of):
  folder = folder_of(kind)
  name = "encode" if "embeddings" in kind else "predict"
  with PREDICTORS[KINDS[kind]["script"]](str(folder)) as predictor:
    expected = getattr(predictor, name)(inputs_of(kind))
  with load(folder, engine) as model:
    found = getattr(model, name)(inputs_of(kind))
    assert_equal(found, expected)
    assert_equal(model.predict(inputs_of(kind)[:1]), expected[:1])
    assert len(model.predict([])) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_are_filled_as_by_the_saved_model(engine, folder_of):
  folder = folder_of("pretraining")
  texts = ["[MASK] cat sat", "the [MASK] ran [MASK].", "home"]
  model = signatures_test.unsaved(signatures_test.source_of(folder))
  expected = call(model, "text", text_a=texts)
  found = load(folder, engine).predict(texts)
  assert [len(masks) for masks in found] == [1, 2, 0]
  for text, masks in enumerate(found):
    for mask, words in enumerate(masks):
      assert [word["token"] for word in words] == [
        token.decode() for token in expected["tokens"][text, mask]
      ]
      found = [word["probability"] for word in words]
      assert_equal(found, expected["probabilities"][text, mask].tolist())


@pytest.mark.parametrize("engine", ENGINES)
def test_hidden_states_are_those_of_the_saved_model(engine, folder_of):
  folder = folder_of("classification", "--encoder")
  source = signatures_test.source_of(folder)
  model = signatures_test.unsaved(source, encoder=True)
  text_a, text_b = zip(*PAIRS)
  expected = call(model, "pair", text_a=text_a, text_b=text_b)
  found = load(folder, engine).predict(PAIRS)
  assert len({len(outputs.hidden_states) for outputs in found}) > 3
  for row, outputs in enumerate(found):
    states = expected["sequence_output"][row, : len(outputs.hidden_states)]
    assert_equal(outputs.hidden_states, states)
    assert_equal(outputs.pooled, expected["pooled_output"][row])


def hidden_states(folder, engine="onnxruntime"):
  with load(folder, engine) as model:
    found = model.predict(PAIRS)
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


@pytest.mark.parametrize("engine", ENGINES)
def test_hidden_states_in_8_bits_are_close(engine, folder_of, calibration):
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
  paths = [folder / "exported" / "model.onnx" for folder in (half, plain)]
  sizes = [path.stat().st_size for path in paths]
  assert sizes[0] < 0.7 * sizes[1]
  found = cosines(hidden_states(plain), hidden_states(half))
  assert found.min() > 0.9999


def test_every_batch_of_a_fixed_length_has_that_length(folder_of):
  expected = load(folder_of("classification")).predict(PAIRS)
  fixed = load(folder_of("classification", "--seq_length=24"))
  assert_equal(fixed.predict(PAIRS), expected)


ALONE = """
import os, sys

class Blocker:
  def find_spec(self, name, path=None, target=None):
    package = name.partition(".")[0]
    if package in {packages!r}:
      raise ModuleNotFoundError("no module named " + name, name=package)

sys.meta_path.insert(0, Blocker())
"""
# All that this project needs, but NumPy and an engine.
OTHERS = ["absl", "tensorflow", "tf_keras", "keras", "tqdm", "onnx", "google"]


def run_alone(code, packages, folder):
  """Runs code in a process without some packages; returns its output."""
  done = subprocess.run(
    [sys.executable, "-c", ALONE.format(packages=packages) + code],
    cwd=folder,
    env=os.environ | {"PYTHONPATH": commands.ROOT},
    capture_output=True,
    text=True,
    check=False,
  )
  assert not done.returncode, done.stderr
  return done.stdout


@pytest.mark.process
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["classification", "ner", "squad_2"])
def test_an_engine_and_numpy_are_enough(kind, engine, folder_of):
  folder = str(folder_of(kind) / "exported")
  other = ENGINES[1 - ENGINES.index(engine)]
  code = f"""
from bertlib.export import OnnxModel
model = OnnxModel({folder!r}, engine={engine!r})
print(model.predict({inputs_of(kind)!r}))
"""
  found = run_alone(code, [*OTHERS, "tokenizers", other], folder)
  expected = OnnxModel(folder, engine=engine).predict(inputs_of(kind))
  assert found.strip() == str(expected)


@pytest.mark.process
@pytest.mark.parametrize(
  "kind",
  ["classification", "multiple_choice", "embeddings, max", "pretraining"],
)
def test_the_readme_runs_with_onnxruntime_and_tokenizers(kind, folder_of):
  pytest.importorskip("tokenizers", reason="pip install -e .[vocab]")
  folder = folder_of(kind) / "exported"
  alone, with_project = re.findall(
    r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL
  )
  without = [*OTHERS, "bertlib", "modeling", "tokenization"]
  found = run_alone(alone, without, folder)
  assert re.search(r"array\(\[\[+ *-?\d", found)
  assert run_alone(with_project, OTHERS, folder)


def test_the_tokenizer_file_gives_equal_ids(folder_of):
  tokenizers = pytest.importorskip("tokenizers", reason=".[vocab]")
  folder = folder_of("classification") / "exported"
  tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  tokenizer.no_padding()
  model = OnnxModel(str(folder))
  words = signatures_test.ODD
  texts = signatures_test.random_texts(200, 20, words, seed=2)
  pairs = [*PAIRS, *zip(texts, texts[1:])]
  for pair in pairs:
    row = model_inputs.encode_pair(model.tokenizer, *pair, 24)
    # A second text without tokens counts as none. If both are truncated, the
    # tokenizers differ in which keeps a token more.
    if row.num_truncated_tokens or not max(row.segment_ids):
      row = model_inputs.encode_pair(model.tokenizer, pair[0], None, 24)
      pair = pair[:1]
    encoded = tokenizer.encode(*pair)
    assert encoded.ids == row.input_ids[: row.num_tokens], pair
    assert encoded.type_ids == row.segment_ids[: row.num_tokens], pair


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_may_share_a_model(engine, folder_of):
  model = load(folder_of("classification"), engine, num_threads=1)
  expected = [model.predict([pair]) for pair in PAIRS]
  with ThreadPoolExecutor(4) as threads:
    found = list(threads.map(lambda pair: model.predict([pair]), PAIRS))
  assert_equal(found, expected)


def test_openvino_keeps_its_compiled_model(folder_of, tmp_path):
  folder = folder_of("classification")
  for _ in range(2):
    load(folder, "openvino", cache_dir=str(tmp_path)).predict(["a"])
    assert len(list(tmp_path.iterdir())) == 1


def test_an_earlier_export_is_replaced(main, folder_of):
  folder = folder_of("squad_1")
  load(folder, "openvino")  # adds its cache
  flags = [f"--model_dir={folder}", f"--export_dir={folder}/exported"]
  main(*flags, "--format=onnx", "--overwrite")
  assert (folder / "exported" / "model.onnx").exists()


def test_models_of_other_tasks_need_their_record(folder_of, tmp_path):
  shutil.copytree(folder_of("squad_1") / "exported", tmp_path / "exported")
  path = tmp_path / "exported" / "model.json"
  path.write_text(path.read_text().replace("run_squad", "of_mine"))
  with pytest.raises(InputError, match=r"is a model of of_mine.*Give task"):
    load(tmp_path)
  assert load(tmp_path, task=RECORD).predict([("Who sat?", "the cat sat")])


@pytest.mark.parametrize(
  ("arguments", "problem"),
  [
    ({"engine": "torch"}, "engine='torch': is not one of onnxruntime, openv"),
    ({"precision": "bfloat16"}, "is not one of float32 with onnxruntime"),
    ({"batch_size": 0}, "batch_size=0: is not from 1"),
    ({"num_threads": 0}, "num_threads=0: is not from 1"),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, problem, folder_of):
  with pytest.raises(InputError, match=problem):
    load(folder_of("classification"), **arguments)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_model_is_refused(engine, folder_of, tmp_path):
  exported = folder_of("classification") / "exported"
  shutil.copytree(exported, tmp_path / "exported")
  path = tmp_path / "exported" / "model.onnx"
  path.write_bytes(b"no model")
  with pytest.raises(InputError, match=r"model\.onnx: cannot be loaded"):
    load(tmp_path, engine)
  path.unlink()
  with pytest.raises(InputError, match=r"model\.onnx: no such file"):
    load(tmp_path, engine)
