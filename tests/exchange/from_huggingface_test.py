"""Tests of Hugging Face folders as models of this project."""

import io
import json
import os
import pickle
import re
import sys
import types

import numpy as np
import pytest
import reference_data
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_huggingface
from parametrize import parametrize
from refused import assert_refused, refusal
from safetensors.numpy import save_file
from tiny_huggingface import CONFIG, WORDS, name, read, tensors, write_folder

import modeling
from bertlib.data import vocabulary
from bertlib.exchange import initial_model

pytestmark = pytest.mark.unit

CLASSIFIER = "BertForSequenceClassification"
_SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
_MULTI_LABEL = {"problem_type": "multi_label_classification"}
_NUMBER = {"problem_type": "regression"}
_ANSWERS = {"script": "run_squad", "max_seq_length": 384, "doc_stride": 128}
_DEFAULT = ["LABEL_0", "LABEL_1", "LABEL_2"]
_MASKS = {"script": "run_pretraining"}
_PREFIX = "prefix taken off all names: "
_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"
_OLD_TORCH = types.SimpleNamespace(__version__="2.5.1+cpu")


@parametrize(
  "config, kind, labels, num_outputs",
  (name("a", "c", "b"), "classification", ["a", "c", "b"], 3),
  ({}, "classification", ["LABEL_0", "LABEL_1"], 2),
  (_MULTI_LABEL | name("b", "a"), "multi_label", ["b", "a"], 2),
  (name(3, 1.5, True), "classification", ["3", "1.5", "True"], 3),
  (_NUMBER | name("LABEL_0"), "regression", [], 1),
  ({"sentence_transformers": _SIGMOID}, "multi_label", _DEFAULT, 3),
)
def test_kind_and_labels_of_a_classifier_are_described(
  config, kind, labels, num_outputs, tmp_path
):
  config = config | {"architectures": [CLASSIFIER]}
  weights = tensors(CLASSIFIER, num_outputs)
  found = read(write_folder(tmp_path / "a", weights, **config)).description
  assert (found["kind"], found["labels"]) == (kind, labels)


@parametrize(
  "config",
  name("a", "a"),
  {"id2label": {"0": "a", "2": "b"}},
  {"id2label": {"a": 0, "b": 1}},
  {"id2label": ["a", "b"]},
  _NUMBER,
)
def test_labels_that_a_classifier_cannot_have_are_refused(config, tmp_path):
  config = config | {"architectures": [CLASSIFIER]}
  folder = write_folder(tmp_path / "a", tensors(CLASSIFIER, 2), **config)
  assert refusal(read, folder).startswith(f"config.json: {max(config)} is ")


def test_names_of_other_labels_are_left_out_with_a_line(tmp_path, caplog):
  config = name("a", "b", "c") | {"architectures": [CLASSIFIER]}
  found = read(write_folder(tmp_path / "a", tensors(CLASSIFIER, 2), **config))
  assert found.description["labels"] == _DEFAULT[:2]
  assert "names 3 labels, but the model has 2 outputs" in caplog.text


@parametrize(
  "architecture, expected",
  ("BertForMultipleChoice", {"kind": "multiple_choice", "labels": [*"0123"]}),
  ("BertForTokenClassification", {"script": "run_ner", "labels": _DEFAULT}),
  ("BertForQuestionAnswering", _ANSWERS),
  ("BertForMaskedLM", _MASKS | {"objective": "mlm"}),
  ("BertForNextSentencePrediction", _MASKS | {"objective": "nsp"}),
  ("BertForPreTraining", _MASKS),
  ("BertModel", {"max_seq_length": 400}),
)
def test_the_task_of_a_class_is_described(architecture, expected, tmp_path):
  weights, classes = tensors(architecture), [architecture]
  folder = write_folder(tmp_path / "a", weights, architectures=classes)
  description = read(folder).description
  assert expected.items() <= description.items()
  assert ("script" in description) == (architecture != "BertModel")


def test_the_name_table_matches_the_graph_of_modeling():
  parts = tiny_huggingface
  with tf.Graph().as_default():
    config = modeling.BertConfig.from_dict(CONFIG)
    model = modeling.BertModel(config, False, tf.zeros([1, 3], tf.int32))
    states = model.get_sequence_output()
    table, positions = model.get_embedding_table(), tf.zeros([1, 1], tf.int32)
    modeling.masked_lm_logits(config, states, table, positions)
    modeling.next_sentence_logits(config, model.get_pooled_output())
    modeling.span_logits(states)
    modeling.classification_logits(model.get_pooled_output(), 3)
    graph = {v.op.name: tuple(v.shape.as_list()) for v in tf.global_variables()}
  assert graph == parts.variable_shapes(
    *(parts.ENCODER, parts.POOLER, parts.MASKED_LM, parts.NEXT_SENTENCE),
    *(parts.SPAN, parts.LABELS),
  )


def test_kernels_alone_are_transposed(tmp_path):
  weights = tensors("BertForPreTraining")
  variables = read(write_folder(tmp_path / "a", weights)).variables
  for variable, tensor in (
    ("layer_1/attention/self/key/kernel", "1.attention.self.key.weight"),
    ("cls/predictions/transform/dense/kernel", "transform.dense.weight"),
    ("embeddings/word_embeddings", "word_embeddings.weight"),
    ("cls/seq_relationship/output_weights", "seq_relationship.weight"),
  ):
    (found,) = (v for n, v in variables.items() if n.endswith(variable))
    (value,) = (t for n, t in weights.items() if n.endswith(tensor))
    expected = value.T if variable.endswith("/kernel") else value
    np.testing.assert_array_equal(found, expected)


def with_old_norms(weights):
  return {
    n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): t
    for n, t in weights.items()
  }


def with_copies(weights):
  table = weights["bert.embeddings.word_embeddings.weight"]
  return weights | {
    "bert.embeddings.position_ids": np.arange(9)[np.newaxis],
    "cls.predictions.decoder.bias": weights["cls.predictions.bias"],
    "cls.predictions.decoder.weight": table,
  }


def with_a_copy_alone(weights):
  bias = weights["cls.predictions.bias"]
  others = {n: t for n, t in weights.items() if n != "cls.predictions.bias"}
  return others | {"cls.predictions.decoder.bias": bias}


def with_prefix(prefix):
  return lambda weights: {prefix + n: t for n, t in weights.items()}


@parametrize(
  "change, note",
  (with_old_norms, None),
  (
    with_copies,
    "left out: bert.embeddings.position_ids, cls.predictions.decoder.bias,"
    " cls.predictions.decoder.weight",
  ),
  (with_a_copy_alone, "left out: cls.predictions.decoder.bias"),
  (with_prefix("_orig_mod.module."), _PREFIX + "_orig_mod.module."),
  (with_prefix("my.model."), _PREFIX + "my.model."),
)
def test_other_names_are_read(change, note, tmp_path):
  weights = tensors("BertForMaskedLM")
  expected = read(write_folder(tmp_path / "a", weights))
  found = read(write_folder(tmp_path / "b", change(weights)))
  run_outputs.assert_same_bits(found.variables, expected.variables)
  more = {*found.notes[1:]} - {*expected.notes[1:]}
  assert more == ({note} if note else set())


def test_a_folder_of_2019_is_read(tmp_path):
  folder = write_folder(tmp_path / "a")
  (tmp_path / "a" / "config.json").rename(tmp_path / "a" / "bert_config.json")
  assert initial_model.is_huggingface(folder)
  assert read(folder).config["hidden_size"] == 4


_BIAS = "bert.encoder.layer.1.output.dense.bias"
_WEIGHT = "cls.predictions.transform.dense.weight"


_ROBERTA = {"model_type": [], "architectures": ["RobertaModel"]}


def zeros(*shape, dtype=np.float32):
  return np.zeros(shape, dtype)


@parametrize(
  "changed, config, message",
  ({"bert.embeddings.LayerNorm.gamma": zeros(4)}, {}, "Norm.weight twice"),
  ({"cls.predictions.decoder.weight": zeros(13, 4)}, {}, "weight differs"),
  (dict.fromkeys("abcde", zeros(2)), {}, "does not have: a, b, c and 2"),
  ({_BIAS: None, _WEIGHT: None}, {}, f"has no {_BIAS}, {_WEIGHT}"),
  (
    {n: zeros(4, dtype=np.int8) for n in (*"abcd", _BIAS)},
    {},
    "float32: a (int8), b (int8), bert.encoder",
  ),
  ({}, {"num_hidden_layers": 1}, "not have: bert.encoder.layer.1"),
  ({}, {"intermediate_size": 8}, "intermediate.dense.weight is (6, 4)"),
  ({}, {"words": "a" * 14}, "has 14 pieces, the model only 13"),
  ({}, {"model_type": "albert"}, 'model_type is "albert"; only "bert", "ro'),
  ({}, {"model_type": "mpnet", "hidden_size": []}, 'is "mpnet"'),
  ({}, _ROBERTA, "architectures has RobertaModel, and there is no model_ty"),
  ({}, {"position_embedding_type": "relative_key"}, '"relative_key"'),
  ({}, {"is_decoder": True}, "is_decoder is true"),
  ({}, {"auto_map": {"AutoModel": "modeling.Mine"}}, "modeling.Mine computes"),
  ({}, {"hidden_act": "silu"}, 'hidden_act "silu"'),
)
def test_tensors_and_models_that_do_not_fit_are_refused(
  changed, config, message, tmp_path
):
  weights = tensors("BertForMaskedLM") | changed
  weights = {n: t for n, t in weights.items() if t is not None}
  folder = write_folder(tmp_path / "source", weights, **config)
  assert message in refusal(read, folder)


def test_a_prefix_of_another_model_is_no_wrapper(tmp_path):
  weights = {f"roberta.{n}": t for n, t in tensors().items()}
  folder = write_folder(tmp_path / "a", weights, model_type=[])
  assert "does not have: roberta.embeddings" in refusal(read, folder)


def test_float64_is_rounded_with_a_line(tmp_path):
  weights = tensors()
  doubles = {n: t.astype(np.float64) for n, t in weights.items()}
  model = read(write_folder(tmp_path / "a", doubles))
  assert f"rounded: {len(weights)} tensors of float64 to float32" in model.notes
  expected = read(write_folder(tmp_path / "b", weights)).variables
  run_outputs.assert_same_bits(model.variables, expected)


@parametrize("has_weights", True, False)
def test_an_adapter_is_refused_by_name(has_weights, tmp_path):
  folder = tmp_path / "a"
  write_folder(folder, files={"adapter_config.json": {"peft_type": "LORA"}})
  for file in ("config.json", "model.safetensors"):
    if not has_weights:
      (folder / file).unlink()
  assert initial_model.is_huggingface(str(folder))
  assert "adapter_config.json: is of an adapter" in refusal(read, folder)


@parametrize(
  "file", "model.safetensors", "vocab.txt", "config.json", "tokenizer.json"
)
def test_a_pointer_of_git_lfs_is_named(file, tmp_path):
  folder = write_folder(tmp_path / "a", files=fast())
  (tmp_path / "a" / file).write_text(_POINTER)
  assert f"{file}: is a pointer of Git LFS" in refusal(read, folder)


def test_a_classifier_without_pooler_is_refused(tmp_path):
  weights, classes = tensors("BertForTokenClassification"), [CLASSIFIER]
  folder = write_folder(tmp_path / "a", weights, architectures=classes)
  assert "has no pooler" in refusal(read, folder)


def in_shards(folder, weights):
  names = sorted(weights)
  shards = {"one.safetensors": names[:9], "two.safetensors": names[9:]}
  for shard, held in shards.items():
    save_file({n: weights[n] for n in held}, folder / shard)
  index = {"weight_map": {n: shard for shard in shards for n in shards[shard]}}
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def in_pytorch(folder, weights):
  torch = pytest.importorskip("torch")
  values = {n: torch.from_numpy(t) for n, t in weights.items()}
  torch.save(values, folder / "pytorch_model.bin")


def in_h5(folder, weights):
  with pytest.importorskip("h5py").File(folder / "tf_model.h5", "w") as file:
    for tensor_name, tensor in with_old_norms(weights).items():
      is_kernel = tensor.ndim == 2 and "embeddings" not in tensor_name
      path = tensor_name.replace(".", "/").replace("/layer/", "/layer_._")
      path = path.replace("weight", "kernel") if is_kernel else path
      path = re.sub(r"(position_embeddings)/weight", r"\1/embeddings", path)
      scope = {"cls": "mlm___cls"}.get(path.partition("/")[0], "bert")
      path = path.replace("cls/", "mlm___cls/")
      file[f"{scope}/tf_bert_for/{path}:0"] = tensor.T if is_kernel else tensor


@parametrize("architecture", CLASSIFIER, "BertForMaskedLM")
@parametrize("write", in_shards, in_pytorch, in_h5)
def test_weights_are_the_same_in_other_files(write, architecture, tmp_path):
  weights = tensors(architecture)
  folder = write_folder(tmp_path / "a", weights)
  expected = read(folder).variables
  (tmp_path / "a" / "model.safetensors").unlink()
  write(tmp_path / "a", weights)
  run_outputs.assert_same_bits(read(folder).variables, expected)


def write_pytorch(folder, content=b""):
  write_folder(folder)
  (folder / "model.safetensors").unlink()
  (folder / "pytorch_model.bin").write_bytes(content)
  return str(folder)


@parametrize(
  "found, message",
  (None, "can read it: pip install torch"),
  (_OLD_TORCH, r"needs PyTorch 2\.6 .* not 2\.5\.1"),
)
def test_pytorch_that_is_needed_is_named(tmp_path, monkeypatch, found, message):
  source = write_pytorch(tmp_path / "source")
  monkeypatch.setitem(sys.modules, "torch", found)
  assert_refused(message, read, source)


class MakesFolder:
  """Creates a folder when unpickled, which shows that code was executed."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mkdir, (self.path,)


@parametrize("form", "pickle", "zip")
def test_pickled_code_is_not_executed(form, tmp_path):
  torch = pytest.importorskip("torch")
  mark = tmp_path / "mark"
  harmful = {"embeddings.word_embeddings.weight": MakesFolder(str(mark))}
  file = io.BytesIO()
  if form == "zip":
    torch.save(harmful, file)
  else:
    pickle.dump(harmful, file)
  source = write_pytorch(tmp_path / "bin", file.getvalue())
  assert_refused("corrupt, or contains more than weigh", read, source)
  assert not mark.exists()


_FAST = {
  "added_tokens": [],
  "normalizer": {"type": "BertNormalizer", "lowercase": True},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2]},
  "model": {"type": "WordPiece", "vocab": {w: i for i, w in enumerate(WORDS)}},
}


def fast(part="model", **changed):
  """The files of a fast tokenizer, with a part changed."""
  return {"tokenizer.json": _FAST | {part: _FAST[part] | changed}}


def slow(**values):
  """The files of a tokenizer of Python."""
  return {"tokenizer_config.json": values}


# Kinds of models whose tokenizers in transformers are those of BERT.
_OF_BERT = "Bert", "DistilBert", "Electra"

# A class whose rules are those of `tokenizer.json`.
_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
_GENERIC = slow(**_CLASS)
_KEEPS_ACCENTS = fast("normalizer", strip_accents=False)


def words_of(model):
  return model.vocab.decode().splitlines()


@parametrize("num_words", 9, 2)
def test_the_vocabulary_comes_from_tokenizer_json(tmp_path, num_words):
  vocab = {word: i for i, word in enumerate(WORDS[:num_words])}
  files = fast(vocab=dict(reversed(vocab.items())))
  files["tokenizer.json"]["added_tokens"] = [{"id": 9, "content": "[NEW]"}]
  folder = write_folder(tmp_path / "fast", files=files)
  (tmp_path / "fast" / "vocab.txt").unlink()
  if num_words < 9:
    assert_refused(r"tokenizer\.json: the ids have gaps", read, folder)
  else:
    assert words_of(read(folder)) == [*WORDS, "[NEW]"]


def test_a_folder_without_vocabulary_is_refused(tmp_path):
  folder = write_folder(tmp_path / "a")
  (tmp_path / "a" / "vocab.txt").unlink()
  assert_refused(r"has no vocab\.txt .* --vocab_file", read, folder)


_FIRST = {"id": 0, "content": "[PAD]"}
_NEW = [{"id": 9, "content": "dog"}, {"id": 10, "content": "cow"}]
_BY_ID = {str(token["id"]): token for token in _NEW}


@parametrize(
  "file, content",
  ("added_tokens.json", {"dog": 9, "cow": 10}),
  ("tokenizer_config.json", {"added_tokens_decoder": _BY_ID}),
  ("tokenizer.json", {"added_tokens": [_FIRST, *_NEW]}),
)
def test_added_tokens_are_appended_to_the_vocabulary(file, content, tmp_path):
  folder = write_folder(tmp_path / "a", files={file: content})
  (tmp_path / "a" / "vocab.txt").write_text("\n".join(WORDS))  # no last newline
  assert words_of(read(folder)) == [*WORDS, "dog", "cow"]


@parametrize(
  "added, num_appended",
  ({"gap": 10}, 0),
  ({"a": 9, "two\nlines": 10, "b": 11}, 1),
  ({"a": 9, "b": 10, "c": 11, "d": 12, "beyond vocab_size": 13}, 4),
)
def test_added_tokens_that_do_not_continue_the_vocabulary_are_named(
  added, num_appended, tmp_path
):
  model = read(write_folder(tmp_path / "a", files={"added_tokens.json": added}))
  appended, left_out = [*added][:num_appended], [*added][num_appended:]
  assert words_of(model) == [*WORDS, *appended]
  names = ", ".join(map(repr, left_out))
  assert any(note.endswith(f"are left out: {names}") for note in model.notes)


@parametrize(
  "token, more, lowercase, expected",
  ("Größe", {}, True, "große"),
  ("GPU", {}, True, "gpu"),
  ("GPU", {}, False, "GPU"),
  ("GPU", {"normalized": False}, True, None),
  ("[E1]", {}, False, None),
  ("new york", {}, False, None),
)
def test_added_tokens_are_written_as_text_has_them(
  token, more, lowercase, expected, tmp_path
):
  added = {"9": {"content": token} | more}
  files = slow(do_lower_case=lowercase, added_tokens_decoder=added)
  model = read(write_folder(tmp_path / "a", files=files))
  assert words_of(model) == [*WORDS, expected or token]
  said = [note for note in model.notes if "text here has no added" in note]
  assert len(said) == (expected is None)
  assert all(repr(token) in note for note in said)


@parametrize(
  "file, tokens",
  (
    "special_tokens_map.json",
    {"additional_special_tokens": ["[NAME]", {"content": "[E1]"}]},
  ),
  ("tokenizer_config.json", {"extra_special_tokens": ["[NAME]", "[E1]"]}),
  (
    "tokenizer_config.json",
    {"extra_special_tokens": {"name": "[NAME]", "first": "[E1]"}},
  ),
)
def test_special_tokens_of_the_vocabulary_are_named(file, tokens, tmp_path):
  words = [*WORDS[:5], "[NAME]", "[E1]", *WORDS[7:]]
  folder = write_folder(tmp_path / "a", words=words, files={file: tokens})
  (note,) = [note for note in read(folder).notes if "has no added" in note]
  assert note.endswith("'[E1]', '[NAME]'")


def test_blank_lines_at_the_end_are_no_entries(tmp_path):
  folder = write_folder(tmp_path / "a", words=[*WORDS, "", ""])
  assert words_of(read(folder)) == WORDS
  assert vocabulary.read_entries(f"{folder}/vocab.txt") == WORDS


_UNKNOWN = {"unk_token": "<unk>"}
_ENDS = {"cls": ["<s>", 2], "sep": ["[SEP]", 3]}
_NAMED = {"cls_token": "<s>", **_UNKNOWN}


@parametrize(
  "files",
  {"tokenizer_config.json": _NAMED},
  {"special_tokens_map.json": _NAMED},
  {"tokenizer_config.json": {k: {"content": v} for k, v in _NAMED.items()}},
  {"tokenizer.json": {"model": _UNKNOWN, "post_processor": _ENDS}},
)
def test_special_entries_get_the_names_of_bert(files, tmp_path):
  words = ["[PAD]", "<unk>", "<s>", *WORDS[3:]]
  model = read(write_folder(tmp_path / "a", words=words, files=files))
  assert words_of(model) == WORDS
  assert any("<s> to [CLS]" in note for note in model.notes)


def test_two_entries_for_one_special_token_are_refused(tmp_path):
  words = [*WORDS[:5], "<s>", *WORDS[6:]]
  files = {"tokenizer_config.json": {"cls_token": "<s>"}}
  folder = write_folder(tmp_path / "a", words=words, files=files)
  assert_refused("its cls_token is <s>, but", read, folder)


@parametrize(
  "files, limit",
  ({}, 100),
  (fast(max_input_chars_per_word=7), 100),
  (fast(max_input_chars_per_word=7) | _GENERIC, 7),
)
def test_the_limit_of_characters_is_that_of_the_files(files, limit, tmp_path):
  folder = write_folder(tmp_path / "a", files=files)
  assert read(folder).description["max_input_chars_per_word"] == limit
  tokenizer = vocabulary.load_tokenizer(
    f"{folder}/vocab.txt", True, max_input_chars_per_word=limit
  )
  # `the` is in the vocabulary and `thes` has pieces; neither is too long.
  assert tokenizer.tokenize("thes") == ["the", "##s"]
  assert tokenizer.tokenize("the" + "s" * limit) == ["[UNK]"]


@parametrize(
  "files, expected",
  (fast(), None),
  (fast() | _GENERIC, None),
  (slow(word_tokenizer_type="mecab"), "mecab"),
  *((slow(tokenizer_class=f"{kind}Tokenizer"), None) for kind in _OF_BERT),
  (slow(tokenizer_class="RoFormerTokenizer"), "RoFormerTokenizer"),
  (fast("pre_tokenizer", type="Whitespace"), "pre_tokenizer=Whitespace in"),
  (fast("normalizer", type="NFKC") | _GENERIC, "support normalizer=NFKC"),
  (fast("post_processor", type="ByteLevel") | _GENERIC, "no special tokens"),
  (fast("post_processor", type="ByteLevel"), None),
  (_KEEPS_ACCENTS | _GENERIC, "support strip_accents=False"),
  (_KEEPS_ACCENTS, "accents=False in tokenizer.json"),
  (slow(strip_accents=False), "support strip_accents=False"),
  (slow(tokenize_chinese_chars=False), "tokenize_chinese_chars=False"),
  (slow(truncation_side="left"), "truncation_side=left"),
  (slow(model_input_names=["input_ids"]), "token_type_ids=False"),
  (
    fast(vocab={w: i for i, w in enumerate([*WORDS[:-1], "##x"])}),
    "'##s', '##x'",
  ),
)
def test_other_rules_for_text_are_named(files, expected, tmp_path):
  model = read(write_folder(tmp_path / "a", files=files))
  notes = [note for note in model.notes if note.startswith("note:")]
  assert len(notes) == (expected is not None)
  assert (expected or "") in "".join(notes)


def test_accents_that_stay_where_text_is_lower_cased_are_named(tmp_path):
  folder = write_folder(tmp_path / "a", files=slow(do_lower_case=False))
  (note,) = read(folder, do_lower_case=True).notes[1:]
  assert "strip_accents=False" in note


@parametrize(
  "files, options, lowercase",
  (slow(do_lower_case=False), {}, False),
  (slow(do_lower_case=True), {}, True),
  (fast("normalizer", lowercase=True), {"do_lower_case": False}, False),
  (fast("normalizer", lowercase=False), {}, True),
  (fast("normalizer", lowercase=False) | _GENERIC, {}, False),
  (fast() | slow(do_lower_case=False, **_CLASS), {}, True),
  ({}, {"vocab_file": reference_data.vocab("uncased")}, True),
  ({}, {"vocab_file": reference_data.vocab("cased")}, False),
)
def test_casing_is_that_of_the_files_or_of_the_vocabulary(
  files, options, lowercase, tmp_path
):
  weights = tensors()
  weights["embeddings.word_embeddings.weight"] = zeros(40000, 4)
  folder = write_folder(tmp_path / "a", weights, files=files, vocab_size=40000)
  model = read(folder, **options)
  assert model.config["do_lower_case"] is lowercase
  assert model.description["do_lower_case"] is lowercase


_IN_KERAS_HUB = {
  r"embeddings\.word_embeddings": "reversible_embedding",
  r"embeddings\.position_embeddings": "position_embedding",
  r"embeddings\.token_type_embeddings": "embedding",
  r"embeddings\.LayerNorm": "layer_normalization",
  r"pooler\.dense": "dense",
  r"encoder\.layer\.0\.": "transformer_encoder/",
  r"encoder\.layer\.1\.": "transformer_encoder_1/",
  r"attention\.self\.(\w+)": r"_self_attention_layer/\1_dense",
  r"attention\.output\.dense": "_self_attention_layer/output_dense",
  r"attention\.output\.LayerNorm": "_self_attention_layer_norm",
  r"(intermediate|output)\.dense": r"_feedforward_\1_dense",
  r"output\.LayerNorm": "_feedforward_layer_norm",
  r"\.weight": "/vars/0",
  r"\.bias": "/vars/1",
}


def keras_hub_weight(tensor_name, tensor):
  path = tensor_name
  for pattern, replacement in _IN_KERAS_HUB.items():
    path = re.sub(pattern, replacement, path)
  if tensor.ndim == 2 and "embedding" not in path:
    tensor = tensor.T
  if re.search(r"_layer/(query|key|value)_dense", path):
    tensor = tensor.reshape([*tensor.shape[:-1], 2, 2])
  elif "_layer/output_dense/vars/0" in path:
    tensor = tensor.reshape(2, 2, 4)
  return f"layers/{path}", tensor


@parametrize("dtype", "float32", "bfloat16")
def test_a_preset_of_keras_hub_is_read(tmp_path, dtype):
  h5py = pytest.importorskip("h5py")
  weights = {n: t.astype(dtype).astype("float32") for n, t in tensors().items()}
  expected = read(write_folder(tmp_path / "theirs", weights))
  preset = tmp_path / "preset"
  vocab = preset / "assets" / "tokenizer" / "vocabulary.txt"
  vocab.parent.mkdir(parents=True)
  vocab.write_text("".join(f"{word}\n" for word in WORDS))
  sizes = {
    "vocabulary_size": 13,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 4,
    "intermediate_dim": 6,
    "dropout": 0.1,
    "max_sequence_length": 400,
    "num_segments": 5,
  }
  for file, of_class, config in (
    ("config.json", "BertBackbone", sizes),
    ("tokenizer.json", "BertTokenizer", {"lowercase": True}),
  ):
    content = {"class_name": of_class, "config": config}
    (preset / file).write_text(json.dumps(content))
  with h5py.File(preset / "model.weights.h5", "w") as file:
    for tensor_name, tensor in weights.items():
      path, value = keras_hub_weight(tensor_name, tensor)
      if dtype == "bfloat16":  # as Keras 3.15 writes it
        value = value.astype(dtype).view("V2")
      file[path] = value
      file[path].attrs["dtype"] = dtype
  model = read(preset)
  assert model.config["hidden_act"] == "gelu_new"
  assert model.description["do_lower_case"]
  run_outputs.assert_same_bits(model.variables, expected.variables)
