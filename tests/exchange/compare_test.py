"""Tests of comparing models by outputs and by weights."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import reference_data
import run_outputs
import tensorflow as tf_v2
import tiny_huggingface
from scipy.special import log_softmax

from bertlib.checkpoints import checkpoint_files
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs
from bertlib.exchange import compare, huggingface_runner
from bertlib.settings.conversion import ConversionSettings

pytestmark = pytest.mark.unit

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "Mat"]


def write_vocab(folder, words=WORDS):
  path = folder / "vocab.txt"
  path.write_text("".join(f"{word}\n" for word in words))
  return str(path)


def write_json(folder, name, **values):
  (folder / name).write_text(json.dumps(values))


def golden(name):
  with np.load(reference_data.golden("modeling", "tiny", name)) as arrays:
    return dict(arrays)


@pytest.fixture
def tiny(tmp_path):
  """Copies the tiny golden model of google-research/bert; adds a vocabulary."""

  def copy(name="tiny"):
    folder = tmp_path / name
    folder.mkdir()
    for path in Path(reference_data.golden("modeling", "tiny")).glob("bert_*"):
      shutil.copy(path, folder)
    write_vocab(folder)
    write_json(folder, "model.json", do_lower_case=True)
    return str(folder)

  return copy


@pytest.fixture
def text_file(tmp_path):
  path = tmp_path / "text.txt"
  path.write_text("The cat sat.\n\nOn the mat ||| the cat\nthe\n")
  return str(path)


def compare_on_text(first, second, text_file, **flags):
  """Compares two models as --compare and --text_file do."""
  flags |= {"input": first, "compare": second, "text_file": str(text_file)}
  return compare.compare_on_text(option.make(ConversionSettings, **flags))


def outputs_of(path, inputs):
  batch = {name: inputs[name] for name in model_inputs.TOKEN_FEATURES}
  (outputs,) = compare.load(path).run([batch])
  return outputs


@pytest.mark.graph
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_checkpoint_gives_the_outputs_of_the_reference(tiny, scheme):
  inputs = golden("inputs.npz")
  path = f"{scheme}{tiny()}"
  outputs, expected = outputs_of(path, inputs), golden("outputs.npz")
  log_probs = log_softmax(outputs["next sentence"], axis=-1)
  pairs = [
    (outputs["pooled"], expected["pooled_output"]),
    (log_probs, expected["next_sentence_log_probs"]),
  ]
  is_token = inputs["input_mask"] > 0
  names = {f"layer {n + 1}": f"encoder_layer_{n}" for n in range(3)}
  for name, known in {"embeddings": "embedding_output", **names}.items():
    pairs.append((outputs[name][is_token], expected[known][is_token]))
  for found, values in pairs:
    np.testing.assert_allclose(found, values, rtol=0, atol=1e-5)
  tokenizer = compare.find_tokenizer([path])
  assert tokenizer.vocab.keys() == set(WORDS)


def without_pooler(folder):
  path = f"{folder}/bert_model.ckpt"
  weights = run_outputs.read_variables(path)
  kept = {n: v for n, v in weights.items() if "pooler" not in n}
  checkpoint_files.write_variables(path, kept)


@pytest.mark.graph
def test_a_checkpoint_without_pooler_has_no_pooled_output(tiny):
  folder = tiny()
  without_pooler(folder)
  outputs = outputs_of(folder, golden("inputs.npz"))
  assert "layer 3" in outputs and "pooled" not in outputs


def test_a_truncated_checkpoint_is_a_one_line_error(tiny):
  folder = tiny()
  data = f"{folder}/bert_model.ckpt.data-00000-of-00001"
  os.truncate(data, 99)
  with pytest.raises(InputError, match=f"^{data}: [^\n]*$"):
    compare.load(folder)


@pytest.fixture
def huggingface(tiny, tmp_path):
  """Converts the model to a Hugging Face folder, with or without pooler."""

  def make(has_pooler=True):
    folder, target = tiny(), str(tmp_path / "huggingface")
    if not has_pooler:
      without_pooler(folder)
    checkpoint = f"{folder}/bert_model.ckpt"
    tiny_huggingface.convert_back(checkpoint, target, do_lower_case=True)
    return target

  return make


@pytest.mark.graph
def test_a_pooler_that_transformers_initializes_is_left_out(huggingface):
  pytest.importorskip("transformers")
  outputs = outputs_of(huggingface(False), golden("inputs.npz"))
  assert "layer 3" in outputs and "pooled" not in outputs


@pytest.mark.process
def test_a_missing_torch_is_a_one_line_error(tmp_path, monkeypatch):
  (tmp_path / "torch.py").write_text(
    "import sys; assert 'tensorflow' not in sys.modules\n"
    "raise ImportError('not here')"
  )
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  message = rf"^{tmp_path}: .*not here\).*pip install -e '.\[compare\]'.*$"
  with pytest.raises(InputError, match=message):
    next(huggingface_runner.run(str(tmp_path), [BATCH]))


@pytest.mark.parametrize("signature", ["layers", "serving_default"])
def test_weights_are_read_from_any_saved_model(signature, tmp_path):
  module = tf_v2.Module()
  module.scale = tf_v2.Variable([2.0, 3.0], name="bert/scale")
  function = tf_v2.function(lambda: {"scale": module.scale + 0.0})
  function = function.get_concrete_function()
  tf_v2.saved_model.save(module, str(tmp_path), {signature: function})
  weights = compare.read_weights(str(tmp_path))
  assert {n: v.tolist() for n, v in weights.items()} == {"bert/scale": [2, 3]}


def encode(tmp_path, text, max_seq_length=9, **options):
  vocab_file = write_vocab(tmp_path)
  (tmp_path / "text.txt").write_text(text)
  return list(
    compare.encode_lines(
      str(tmp_path / "text.txt"),
      compare.find_tokenizer([], None, vocab_file, True),
      max_seq_length,
      **options,
    )
  )


def test_lines_are_batched_and_padded_to_the_longest(tmp_path):
  text = "the cat sat\n \nthe ||| cat\non\n"
  first, second = encode(tmp_path, text, batch_size=2)
  assert {name: array.tolist() for name, array in first.items()} == {
    "input_ids": [[2, 4, 5, 6, 3], [2, 4, 3, 5, 3]],
    "input_mask": [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]],
    "segment_ids": [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]],
  }
  assert second["input_ids"].tolist() == [[2, 7, 3]]


def test_a_file_without_text_is_refused(tmp_path):
  with pytest.raises(InputError, match=r"text\.txt: has no text"):
    encode(tmp_path, "\n \n")


@pytest.mark.parametrize(
  ("given", "files", "is_lower"),
  [
    (None, {}, False),  # by the capital letters of the vocabulary
    (True, {}, True),
    (None, {"model.json": True}, True),
    (None, {"config.json": None, "tokenizer_config.json": True}, True),
    (False, {"model.json": True}, False),
  ],
)
def test_casing_is_that_of_the_flag_files_or_vocabulary(
  given, files, is_lower, tmp_path
):
  write_vocab(tmp_path)
  for name, do_lower_case in files.items():
    write_json(tmp_path, name, do_lower_case=do_lower_case)
  folders = str(tmp_path), "other"
  tokenizer = compare.find_tokenizer(folders, do_lower_case=given)
  assert tokenizer.tokenize("Mat") == (["[UNK]"] if is_lower else ["Mat"])


def test_models_with_different_vocabularies_are_refused(tmp_path):
  folders = {tmp_path / "one": WORDS, tmp_path / "two": WORDS[::-1]}
  for folder, words in folders.items():
    folder.mkdir()
    write_vocab(folder, words)
  with pytest.raises(InputError, match=r"vocab\.txt: differ .* --vocab_file"):
    compare.find_tokenizer([*map(str, folders)])


def test_a_vocabulary_of_neither_model_is_required(tmp_path):
  with pytest.raises(InputError, match="--vocab_file: comes with neither"):
    compare.find_tokenizer([str(tmp_path)] * 2)


BATCH = {"input_mask": np.array([[1, 1, 0], [1, 0, 0]], np.int32)}


def constant_model(**outputs):
  """A model with the same outputs for every batch."""
  named = {name.replace("_", " "): value for name, value in outputs.items()}
  return compare.Model(
    "a model", None, None, lambda batches: iter([named] * len(batches))
  )


def states(index=None, change=0.0):
  values = np.linspace(-1.0, 1.0, 2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
  if index:
    values[index] += change
  return values


@pytest.mark.parametrize(
  ("index", "change", "agree"),
  [
    ((0, 1, 2), 0.5, False),
    ((0, 1, 2), 0.01, True),
    ((0, 1, 2), np.nan, False),
    ((0, 2, 2), 0.5, True),  # padding
  ],
)
def test_tokens_agree_within_the_tolerance(index, change, agree):
  both = states(), states(index, change)
  models = [constant_model(layer_1=values) for values in both]
  assert compare.compare_outputs(models, [BATCH] * 2, 0.1) is agree


@pytest.mark.parametrize(
  ("other", "message"),
  [
    ({"layer_1": states()[:, :, :3]}, "layer 1 is 4 wide in one and 3 in"),
    ({"layer_1": states(), "layer_2": states()}, "only one has layer 2"),
  ],
)
def test_models_of_different_sizes_are_refused(other, message):
  models = [constant_model(layer_1=states()), constant_model(**other)]
  with pytest.raises(InputError, match=message):
    compare.compare_outputs(models, [BATCH], 0.1)


def largest_differences(output):
  """The maximum difference of each output, as printed."""
  rows = re.findall(r"^(\w+(?: \w+)?) +(\d\S*)$", output, re.M)
  return {name: float(largest) for name, largest in rows}


@pytest.mark.graph
def test_a_changed_layer_and_later_ones_differ(tiny, text_file, capsys):
  paths = [tiny("one"), tiny("two")]
  checkpoint = f"{paths[1]}/bert_model.ckpt"
  weights = run_outputs.read_variables(checkpoint)
  weights["bert/encoder/layer_1/output/LayerNorm/beta"][0] += 0.25
  checkpoint_files.write_variables(checkpoint, weights)
  assert not compare_on_text(*paths, text_file)
  found = largest_differences(capsys.readouterr().out)
  assert found["embeddings"] == found["layer 1"] == 0
  assert found["layer 2"] == 0.25
  assert found["layer 3"] > 0.01 and found["pooled"] > 0.001


@pytest.mark.graph
def test_a_checkpoint_and_its_huggingface_folder_agree(
  huggingface, text_file, tmp_path, capsys
):
  pytest.importorskip("transformers")
  paths = [huggingface(), str(tmp_path / "tiny")]
  assert compare_on_text(*paths, text_file, tolerance=1e-5)
  assert largest_differences(capsys.readouterr().out).keys() == {
    *("embeddings", "layer 1", "layer 2", "layer 3", "pooled"),
    *("masked LM", "next sentence"),
  }


@pytest.mark.graph
def test_texts_longer_than_a_model_are_truncated(tiny, tmp_path, capsys):
  (tmp_path / "long.txt").write_text("cat " * 50)
  folder = tiny()
  compare_on_text(folder, folder, tmp_path / "long.txt")
  out = capsys.readouterr().out
  assert "1 lines truncated to 40 tokens\n" in out
  assert "1 texts, 40 tokens\n" in out


@pytest.mark.graph
def test_a_vocabulary_larger_than_a_model_is_refused(tiny, text_file, tmp_path):
  vocab_file = write_vocab(tmp_path, [*WORDS, *map(str, range(91))])
  folder = tiny()
  with pytest.raises(InputError, match="has 100 entries, the model's vocab"):
    compare_on_text(folder, folder, text_file, vocab_file=vocab_file)


WEIGHTS = {
  "kernel": np.array([1.0, np.nan], np.float32),
  "bias": np.array([0.5], np.float32),
}


@pytest.mark.parametrize(
  ("bias", "agree", "line"),
  [
    (np.array([0.5], np.float32), True, None),
    (np.array([0.5625], np.float32), True, "bias: 0.0625"),
    (np.array([0.75], np.float32), False, "bias: 0.25"),
    (np.array([np.nan], np.float32), False, "bias: nan"),
    (np.array([0.5], np.float16), True, "bias: 0"),
    (np.array([0.5, 0.5], np.float32), False, "bias: (1,) and (2,)"),
    (None, False, "bias: only in the first"),
  ],
)
def test_weights_that_differ_are_printed(bias, agree, line, capsys):
  others = {n: v for n, v in {**WEIGHTS, "bias": bias}.items() if v is not None}
  assert compare.compare_weights(WEIGHTS, others, 0.1) is agree
  *lines, summary, _ = capsys.readouterr().out.splitlines()
  assert lines == ([line] if line else [])
  equal = 2 - len(lines)
  assert summary == (
    f"{equal} variables are bitwise equal, {len(lines)} are not"
  )
