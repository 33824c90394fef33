"""Tests of comparing models by outputs and by weights."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import reference_data
import tensorflow as tf_v2
import tensorflow.compat.v1 as tf

import export_model
from bertlib.checkpoints import checkpoint_writer, config_schema
from bertlib.cli.errors import InputError
from bertlib.exchange import compare, convert
from bertlib.tasks import records

pytestmark = pytest.mark.unit

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "Mat"]


def write_vocab(folder, words=WORDS):
  path = folder / "vocab.txt"
  path.write_text("".join(f"{word}\n" for word in words))
  return str(path)


def write_json(folder, name, **values):
  (folder / name).write_text(json.dumps(values))


def read_checkpoint(path):
  reader = tf.train.load_checkpoint(path)
  return {
    name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
  }


def golden(name):
  with np.load(reference_data.golden("modeling", "tiny", name)) as arrays:
    return dict(arrays)


@pytest.fixture
def tiny(tmp_path):
  """Copies the tiny golden model of google-research/bert; adds a vocabulary."""

  def copy(name="tiny"):
    folder = tmp_path / name
    folder.mkdir()
    source = os.path.dirname(
      reference_data.golden("modeling", "tiny", "bert_config.json")
    )
    for file in os.listdir(source):
      if file.startswith("bert_"):
        shutil.copy(os.path.join(source, file), folder)
    write_vocab(folder)
    write_json(folder, "model.json", do_lower_case=True)
    return str(folder)

  return copy


@pytest.fixture
def text_file(tmp_path):
  path = tmp_path / "text.txt"
  path.write_text("The cat sat.\n\nOn the mat ||| the cat\nthe\n")
  return str(path)


# Models


def assert_outputs_of_the_reference(outputs, inputs):
  names = {
    "embeddings": "embedding_output",
    "layer 1": "encoder_layer_0",
    "layer 2": "encoder_layer_1",
    "layer 3": "encoder_layer_2",
    "pooled": "pooled_output",
  }
  expected = golden("outputs.npz")
  assert list(outputs) == list(names)
  is_token = inputs["input_mask"] > 0
  for name, golden_name in names.items():
    values, others = outputs[name], expected[golden_name]
    if values.ndim == 3:
      values, others = values[is_token], others[is_token]
    np.testing.assert_allclose(values, others, rtol=0, atol=1e-5)


@pytest.mark.graph
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_checkpoint_gives_the_outputs_of_the_reference(tiny, scheme):
  inputs = golden("inputs.npz")
  path = f"{scheme}{tiny()}"
  model = compare.load(path)
  assert_outputs_of_the_reference(model.run(inputs), inputs)
  tokenizer = compare.find_tokenizer([path])
  assert tokenizer.vocab.keys() == set(WORDS)


def without_pooler(folder):
  path = f"{folder}/bert_model.ckpt"
  weights = read_checkpoint(path)
  checkpoint_writer.write_variables(
    path, {n: v for n, v in weights.items() if "pooler" not in n}
  )


@pytest.mark.graph
def test_a_checkpoint_without_pooler_has_no_pooled_output(tiny):
  folder = tiny()
  without_pooler(folder)
  outputs = compare.load(folder).run(golden("inputs.npz"))
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
    folder = tiny()
    if not has_pooler:
      without_pooler(folder)
    convert.tensorflow_to_huggingface(
      f"{folder}/bert_model.ckpt",
      f"{folder}/bert_config.json",
      f"{folder}/vocab.txt",
      str(tmp_path / "huggingface"),
      architecture="BertForMaskedLM",
      do_lower_case=True,
      find_task=records.find,
    )
    return str(tmp_path / "huggingface")

  return make


@pytest.mark.graph
def test_transformers_gives_the_outputs_of_the_reference(huggingface):
  pytest.importorskip("transformers")
  inputs = golden("inputs.npz")
  model = compare.load(huggingface())
  assert_outputs_of_the_reference(model.run(inputs), inputs)


@pytest.mark.graph
def test_a_pooler_that_transformers_initializes_is_left_out(huggingface):
  pytest.importorskip("transformers")
  outputs = compare.load(huggingface(False)).run(golden("inputs.npz"))
  assert "layer 3" in outputs and "pooled" not in outputs


# A module `torch` with a module `transformers` that loads any folder.
FAKE_PACKAGES = """
import os, sys, types
Names = types.SimpleNamespace
class Model:
  config = Names(vocab_size=9, max_position_embeddings=5)
  def from_pretrained(*args, **kwargs):
    return Model(), {'missing_keys': []}
  float = eval = lambda self: self
def from_numpy(array):
  os.abort()
quiet = Names(set_verbosity_error=str, disable_progress_bar=str)
sys.modules['transformers'] = Names(
  BertModel=Model, logging=quiet, __version__='0')
"""


@pytest.fixture
def fake_torch(tmp_path, monkeypatch):
  """Writes a module `torch` that child processes import."""

  def write(lines):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "torch.py").write_text(lines)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))

  return write


@pytest.mark.process
@pytest.mark.parametrize(
  "lines",
  [
    "raise ImportError('not here')",
    "import os; os.abort()",
    "exit(3)",
    "1 / 0",
  ],
  ids=["missing", "aborts", "exits", "raises"],
)
def test_a_missing_or_crashing_torch_is_a_one_line_error(
  lines, tmp_path, fake_torch
):
  fake_torch(lines)
  write_json(tmp_path, "config.json")
  with pytest.raises(InputError) as refused:
    compare.load(str(tmp_path))
  message = str(refused.value)
  assert message.startswith(f"{tmp_path}: ") and "\n" not in message
  assert "pip install torch transformers" in message


@pytest.mark.process
def test_a_crash_during_a_batch_is_a_one_line_error(
  tmp_path, fake_torch, huggingface
):
  folder = huggingface()
  fake_torch(FAKE_PACKAGES)
  model = compare.load(folder)
  assert (model.vocab_size, model.max_seq_length) == (9, 5)
  for _ in range(2):  # while reading its reply, then while writing to it
    with pytest.raises(InputError, match=re.escape(folder)):
      model.run(golden("inputs.npz"))


@pytest.mark.process
def test_a_sentence_model_without_its_package_has_no_vectors(
  fake_torch, huggingface
):
  folder = huggingface()
  fake_torch(FAKE_PACKAGES + "sys.modules['sentence_transformers'] = None\n")
  assert compare.load(folder).name == f"{folder}, by transformers 0"
  with open(f"{folder}/modules.json", "w") as file:
    file.write("[]")
  assert compare.load(folder).name == (
    f"{folder}, by transformers 0, no vectors: sentence-transformers is not"
    " installed"
  )


@pytest.mark.process
def test_a_folder_that_sentence_transformers_cannot_load_is_refused(
  fake_torch, huggingface
):
  folder = huggingface()
  fake_torch(
    FAKE_PACKAGES
    + "def refuse(*args, **kwargs):\n  raise ValueError('no pooling\\nhere')\n"
    "sys.modules['sentence_transformers'] = Names(SentenceTransformer=refuse)\n"
  )
  with open(f"{folder}/modules.json", "w") as file:
    file.write("[]")
  with pytest.raises(InputError, match=r"cannot load it \(no pooling\)$"):
    compare.load(folder)


@pytest.mark.process
def test_the_child_process_does_not_import_tensorflow(fake_torch, huggingface):
  folder = huggingface()
  fake_torch(
    "import sys; assert 'tensorflow' not in sys.modules\n"
    "raise ImportError('ok')"
  )
  with pytest.raises(InputError, match=r"\(ok\)"):
    compare.load(folder)


def test_a_folder_that_transformers_cannot_load_is_a_one_line_error(tmp_path):
  pytest.importorskip("transformers")
  write_json(tmp_path, "config.json", model_type="bert")
  with pytest.raises(InputError, match=r"^.*: transformers cannot load it.*$"):
    compare.load(str(tmp_path))


@pytest.mark.train
def test_an_exported_encoder_gives_the_outputs_of_the_reference(tiny, tmp_path):
  folder = tiny()
  source = export_model.find_source(
    folder, f"{folder}/bert_model.ckpt", None, None, True, 20
  )
  export_model.export(
    source._replace(vocab_file=None),  # without the text signatures
    str(tmp_path / "exported"),
    encoder=True,
    seq_length=20,
  )
  inputs = golden("inputs.npz")
  model = compare.load(str(tmp_path / "exported"))
  assert_outputs_of_the_reference(model.run(inputs), inputs)


class Exported(tf_v2.Module):
  """Has the signature of an exported encoder; its outputs echo its inputs."""

  def __init__(self):
    self.scale = tf_v2.Variable([2.0, 3.0], name="bert/scale")

  def layers(self, input_word_ids, input_mask, input_type_ids):
    inputs = [input_word_ids, input_mask, input_type_ids]
    states = tf_v2.cast(tf_v2.stack(inputs, axis=1), tf_v2.float32)
    states = states[..., tf_v2.newaxis] * self.scale
    return {"all_layers": states, "pooled_output": states[:, 0, 0]}


@pytest.fixture
def export(tmp_path):
  """Writes `Exported` as a SavedModel."""

  def export(seq_length=None, signature="layers"):
    module = Exported()
    specs = [
      tf_v2.TensorSpec([None, seq_length], tf_v2.int32, name)
      for name in ("input_word_ids", "input_mask", "input_type_ids")
    ]
    function = tf_v2.function(module.layers).get_concrete_function(*specs)
    folder = tmp_path / "exported"
    tf_v2.saved_model.save(module, str(folder), {signature: function})
    config = dict.fromkeys(config_schema.SIZES, 1)
    config |= {"vocab_size": 99, "max_position_embeddings": 40}
    write_json(folder / "assets", "bert_config.json", **config)
    write_json(folder / "assets", "model.json", do_lower_case=False)
    write_vocab(folder / "assets")
    return str(folder)

  return export


@pytest.mark.parametrize(("seq_length", "longest"), [(None, 40), (5, 5)])
def test_batches_are_padded_to_the_length_of_the_export(
  seq_length, longest, export
):
  model = compare.load(export(seq_length))
  outputs = model.run(
    {
      "input_ids": np.array([[7, 8, 9]], np.int32),
      "input_mask": np.array([[1, 1, 1]], np.int32),
      "segment_ids": np.array([[0, 0, 1]], np.int32),
    }
  )
  assert model.max_seq_length == longest
  assert {name: value.tolist() for name, value in outputs.items()} == {
    "embeddings": [[[14, 21], [16, 24], [18, 27]]],
    "layer 1": [[[2, 3]] * 3],
    "layer 2": [[[0, 0], [0, 0], [2, 3]]],
    "pooled": [[14, 21]],
  }


def test_a_saved_model_without_the_signature_is_refused(export):
  folder = export(signature="serving_default")
  with pytest.raises(InputError, match="has no signature layers; export it"):
    compare.load(folder)


@pytest.mark.parametrize("signature", ["layers", "serving_default"])
def test_weights_are_read_from_any_saved_model(signature, export):
  weights = compare.saved_model_weights(export(signature=signature))
  assert {n: v.tolist() for n, v in weights.items()} == {"bert/scale": [2, 3]}


# Text


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


def test_truncated_lines_are_counted(tmp_path, capsys):
  encode(tmp_path, "the cat sat on\nthe\nthe cat sat\n", max_seq_length=4)
  assert capsys.readouterr().out == "2 lines truncated to 4 tokens\n"


def test_a_file_without_text_is_refused(tmp_path):
  with pytest.raises(InputError, match=r"text\.txt: has no text"):
    encode(tmp_path, "\n \n")


@pytest.fixture
def two_folders(tmp_path):
  folders = tmp_path / "one", tmp_path / "two"
  for folder in folders:
    folder.mkdir()
  return folders


def test_vocabulary_and_casing_come_from_either_model(two_folders):
  one, two = two_folders
  write_vocab(one)
  write_json(two, "tokenizer_config.json", do_lower_case=False)
  paths = [f"{one}/bert_model.ckpt", str(two)]
  tokenizer = compare.find_tokenizer(paths)
  assert tokenizer.tokenize("the Mat") == ["the", "Mat"]


def test_vocabulary_and_casing_come_from_an_export(export):
  tokenizer = compare.find_tokenizer([export()])
  assert tokenizer.tokenize("the Mat") == ["the", "Mat"]


def test_models_with_different_vocabularies_are_refused(two_folders):
  one, two = two_folders
  write_vocab(one)
  write_vocab(two, WORDS[::-1])
  with pytest.raises(InputError, match=r"vocab\.txt: differ, .* --vocab_file"):
    compare.find_tokenizer([str(one), str(two)], do_lower_case=True)


def test_models_with_different_casing_are_refused(two_folders):
  one, two = two_folders
  write_vocab(one)
  write_json(one, "bert_config.json", do_lower_case=True)
  write_json(two, "tokenizer_config.json", do_lower_case=False)
  with pytest.raises(
    InputError, match=r"config\.json: differ, .* --do_lower_ca"
  ):
    compare.find_tokenizer([str(one), str(two)])


@pytest.mark.parametrize("flag", ["vocab_file", "do_lower_case"])
def test_a_vocabulary_or_casing_of_neither_model_is_required(flag, tmp_path):
  if flag == "do_lower_case":
    write_vocab(tmp_path)
  with pytest.raises(InputError, match=f"--{flag}: comes with neither model"):
    compare.find_tokenizer([str(tmp_path), str(tmp_path)])


# Comparison


def test_statistics_in_parts_equal_those_of_numpy():
  rng = np.random.default_rng(0)
  values = rng.normal(3.0, 2.0, size=(7, 5)).astype(np.float32)
  others = (values + rng.normal(1e-3, 1e-4, size=(7, 5))).astype(np.float32)
  found = compare.Difference()
  found.add(values[:2], others[:2])
  found.add(values[2:], others[2:])
  difference = values.astype(np.float64) - others
  assert found.largest == np.abs(difference).max()
  np.testing.assert_allclose(found.mean, difference.mean(), rtol=1e-9)
  np.testing.assert_allclose(
    found.deviations,
    [difference.std(), values.std(dtype=np.float64)],
    rtol=1e-9,
  )


BATCH = {"input_mask": np.array([[1, 1, 0], [1, 0, 0]], np.int32)}


def constant_model(**outputs):
  """A model with the same outputs for every batch."""
  named = {name.replace("_", " "): value for name, value in outputs.items()}
  return compare.Model("a model", None, None, lambda batch: named)


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
  models = [
    constant_model(layer_1=states()),
    constant_model(layer_1=states(index, change)),
  ]
  assert compare.compare_outputs(models, [BATCH] * 2, 0.1) is agree


@pytest.mark.parametrize("name", ["pooled", "vector"])
def test_an_optional_output_of_one_model_only_is_reported(name, capsys):
  models = [
    constant_model(layer_1=states(), **{name: states()[:, 0]}),
    constant_model(layer_1=states()),
  ]
  assert compare.compare_outputs(models, [BATCH], 0.1)
  out = capsys.readouterr().out
  assert re.search(f"^{name} +in one of the models only", out, re.M)


def test_vectors_that_differ_do_not_agree():
  models = [
    constant_model(layer_1=states(), vector=states()[:, 0] + change)
    for change in (0.0, 0.5)
  ]
  assert not compare.compare_outputs(models, [BATCH], 0.1)


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
  rows = re.findall(r"^(\w+(?: \d)?) +(\d\S*) +\S+ +\S+ +\S+$", output, re.M)
  return {name: float(largest) for name, largest in rows}


@pytest.mark.graph
def test_a_changed_layer_differs_and_so_do_later_layers(
  tiny, text_file, capsys
):
  paths = [tiny("one"), tiny("two")]
  checkpoint = f"{paths[1]}/bert_model.ckpt"
  weights = read_checkpoint(checkpoint)
  weights["bert/encoder/layer_1/output/LayerNorm/beta"][0] += 0.25
  checkpoint_writer.write_variables(checkpoint, weights)
  assert not compare.compare_on_text(paths, text_file)
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
  assert compare.compare_on_text(paths, text_file, tolerance=1e-5)
  assert largest_differences(capsys.readouterr().out).keys() == {
    "embeddings", "layer 1", "layer 2", "layer 3", "pooled"
  }  # fmt: skip


@pytest.mark.graph
def test_texts_longer_than_a_model_are_truncated(tiny, tmp_path, capsys):
  (tmp_path / "long.txt").write_text("cat " * 50)
  compare.compare_on_text([tiny()] * 2, str(tmp_path / "long.txt"))
  out = capsys.readouterr().out
  assert "1 lines truncated to 40 tokens\n" in out
  assert "1 texts, 40 tokens\n" in out


@pytest.mark.graph
def test_a_vocabulary_larger_than_a_model_is_refused(tiny, text_file, tmp_path):
  vocab_file = write_vocab(tmp_path, [*WORDS, *map(str, range(91))])
  with pytest.raises(InputError, match="has 100 entries, the model's vocab"):
    compare.compare_on_text([tiny()] * 2, text_file, vocab_file=vocab_file)


# Weights

WEIGHTS = {
  "kernel": np.array([1.0, np.nan], np.float32),
  "bias": np.array([0.5], np.float32),
}


def compare_weights(others, capsys):
  agree = compare.compare_weights(WEIGHTS, others, 0.1)
  return agree, capsys.readouterr().out.splitlines()


def test_bitwise_equal_weights_agree(capsys):
  assert compare_weights(WEIGHTS, capsys) == (
    True,
    ["2 variables are bitwise equal, 0 are not", "they agree within 0.1"],
  )


@pytest.mark.parametrize(
  ("bias", "agree", "line"),
  [
    (np.array([0.5625], np.float32), True, "bias: 0.0625"),
    (np.array([0.75], np.float32), False, "bias: 0.25"),
    (np.array([np.nan], np.float32), False, "bias: nan"),
    (np.array([0.5], np.float16), True, "bias: 0"),
    (np.array([0.5, 0.5], np.float32), False, "bias: (1,) and (2,)"),
  ],
)
def test_weights_that_differ_are_printed(bias, agree, line, capsys):
  found, lines = compare_weights({**WEIGHTS, "bias": bias}, capsys)
  assert (found, lines[0]) == (agree, line)
  assert lines[1] == "1 variables are bitwise equal, 1 are not"


@pytest.mark.parametrize("ordinal", ["first", "second"])
def test_weights_of_one_model_only_are_named(ordinal, capsys):
  fewer = {"kernel": WEIGHTS["kernel"]}
  pair = [WEIGHTS, fewer] if ordinal == "first" else [fewer, WEIGHTS]
  assert not compare.compare_weights(*pair, 0.1)
  assert f"bias: only in the {ordinal}\n" in capsys.readouterr().out
