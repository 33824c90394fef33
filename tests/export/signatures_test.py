"""Tests of exported models against the scripts' predictors."""

import contextlib
import functools
import inspect
import json
import math
import os
import random
import types

import commands
import numpy as np
import pytest
import reference_data
import tensorflow as tf
import tiny_model
from parametrize import parametrize

import export_model
import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_reranker
import run_squad
import tokenization
from bertlib.checkpoints import checkpoint_files, model_folder
from bertlib.data import model_inputs
from bertlib.export import tf1_module
from bertlib.export.exported_model import ExportedModel
from bertlib.io import text_files
from bertlib.task import task_record
from bertlib.tasks.ner import ner
from bertlib.tasks.squad import squad_decoding, squad_signatures

pytestmark = pytest.mark.train

WORDS = ["the", "cat", "dog", "sat", "ran", "home", "is", "it", "good", "bad"]
VOCAB = [*tiny_model.SPECIAL, *".,?!()中文", *WORDS]
VOCAB += ["cafe", "re", "##sume", "##s", "##ly", "a", "##a", "b", "##b", "e"]
SIZES = {"hidden_size": 32, "intermediate_size": 48}
# Models may have more rows than entries.
CONFIG = tiny_model.config(len(VOCAB) + 2, max_position_embeddings=40, **SIZES)
MAX_SEQ_LENGTH = 24

CLASSIFIER = {"script": "run_classifier"}
SQUAD = {"script": "run_squad", "doc_stride": 5, "max_query_length": 6}
MODELS = {
  "classification": CLASSIFIER
  | {"kind": "classification", "labels": ["no", "yes", "maybe"]},
  "regression": CLASSIFIER | {"kind": "regression", "labels": []},
  "multi_label": CLASSIFIER
  | {"kind": "multi_label", "labels": ["red", "blue", "café"]}
  | {"thresholds": {"red": 0.2, "blue": 0.9}},
  "multiple_choice": CLASSIFIER
  | {"kind": "multiple_choice", "labels": ["A", "B", "C"]},
  # Each tag is a complete entity, so that the predictor reports every word.
  "ner": {"script": "run_ner", "labels": ["O", "S-X", "S-Y", "S-Z"]},
  "squad_1": SQUAD | {"version_2_with_negative": False},
  "squad_2": SQUAD
  | {"version_2_with_negative": True, "null_score_diff_threshold": 0.75},
  "pretraining": {"script": "run_pretraining"},
  "ranking": {"script": "run_reranker", "activation": "sigmoid"},
}
PROMPTS = {"query": "the cat: ", "passage": "résumé "}
MODELS |= {
  f"embeddings, {spec['pooling']}": {
    "script": "run_embeddings",
    "embedding": spec,
  }
  for spec in (
    {"pooling": "mean", "normalize": True, "prompts": PROMPTS}
    | {"default_prompt": "passage"},
    {"pooling": "cls", "normalize": False, "projection_dim": 12}
    | {"projection_activation": "tanh"},
    {"pooling": "max", "normalize": False},
  )
}
# Small limits for short texts; squad_2 is tested with the defaults.
LIMITS = {"squad_1": {"n_best_size": 3, "max_answer_length": 4}}
# Kinds that are tested as a SavedModel; the others differ in few operations.
SAVED = ("ner", "squad_2", "pretraining")
PREDICTORS = {
  script.__name__: script.Predictor
  for script in (run_classifier, run_embeddings, run_ner)
}
PREDICTORS["run_reranker"] = run_reranker.Predictor
PREDICTORS["run_squad"] = run_squad.Predictor

HUB_NAMES = ("input_word_ids", "input_mask", "input_type_ids")

TEXTS = [
  "the cat sat",
  "The DOG ran home!",
  "",
  "\t \u3000",
  "is it good? (bad, good) " * 5,
  "re\u0301sume\u0301 Résumé cafés",
  "中文 the中",
  "zebra",
  "\0the\u200b",
  "catsly [SEP] [MASK]",
]
# Difficult words, and simple ones.
ODD = ["cats", "catsly", "résumé", "re\u0301", "İstanbul", "ﬁ", "½", "한"]
ODD += ["中文", "zebra.", "ab", "aab", "a,a", "(cat)", "a.b.", "CAFÉ", "##s"]
ODD += ["[SEP]", "ΑΣ", "_", "  ", "\n", "\xa0", "\u2028", "\0", "\u200b"]
ODD += ["\u0301", *WORDS]


def random_texts(count, longest, words, seed, separators=("", " ")):
  rng = random.Random(seed)
  return [
    rng.choice(separators).join(rng.choices(words, k=rng.randrange(longest)))
    for _ in range(count)
  ]


def write_files(folder, script, **description):
  """Writes all but the checkpoint of a trained model; returns `model.json`."""
  folder.mkdir(exist_ok=True)
  vocab_file = folder / "words.txt"
  vocab_file.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
  defaults = {"max_seq_length": MAX_SEQ_LENGTH, "do_lower_case": True}
  description = {"script": script} | defaults | description
  files = description, CONFIG, str(vocab_file)
  model_folder.write_model_files(str(folder), *files)
  return description


def make_model(folder, script, **description):
  """Creates the output folder of training, with random weights.

  The weights are large, so that all outputs differ.
  """
  description = write_files(folder, script, **description)
  variables = variables_of(json.dumps(description))
  checkpoint_files.write_variables(str(folder / "model.ckpt-7"), variables)
  (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
  return folder


@functools.cache
def variables_of(text):
  """Variables of a checkpoint, for the text of `model.json`."""
  description = json.loads(text)
  task = task_record.find(description["script"])
  source = export_model.Source(description, CONFIG, "", None, task=task)
  shapes = export_model.weight_shapes(export_model.signature_model(source))
  shapes = shapes.used | shapes.unused
  rng = np.random.default_rng(1)
  variables = {"global_step": np.int64(7)}
  # The encoder with its pooler, then the head, as they are in the graph.
  for name in sorted(shapes, key=lambda name: not name.startswith("bert/")):
    shape = shapes[name]
    mean = 1.0 if name.endswith("gamma") else 0.0
    variables[name] = rng.normal(mean, 0.3, shape).astype(np.float32)
    for slot in ("adam_m", "adam_v"):
      variables[f"{name}/{slot}"] = np.ones(shape, np.float32)
  return variables


def source_of(folder):
  return export_model.find_source(str(folder), None, None, None, True, None)


def unsaved(
  source, encoder=False, seq_length=None, precision="float32", **limits
):
  """The signatures of an exported model, without writing a SavedModel."""
  how = encoder, seq_length, precision
  described = export_model.signature_model(source, *how)
  vars(described).update(limits)
  shapes = export_model.weight_shapes(described)
  weights = export_model.read_weights(source.checkpoint, shapes)
  module = tf1_module.GraphModule(weights)

  def as_function(signature):
    @tf.function(input_signature=[signature.inputs], autograph=False)
    def call(inputs):
      with module.scope():
        return signature.function(inputs)

    return lambda **inputs: call(inputs)

  signatures = described.signatures().items()
  return types.SimpleNamespace(
    signatures={name: as_function(signature) for name, signature in signatures},
    specs={name: signature.inputs for name, signature in signatures},
  )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  """Returns folder, exported model and predictor of a kind of model."""
  with contextlib.ExitStack() as stack:

    @functools.cache
    def models(kind):
      folder = make_model(tmp_path_factory.mktemp(kind), **MODELS[kind])
      if kind in SAVED:
        export_model.export(source_of(folder), str(folder / "exported"))
        model = tf.saved_model.load(str(folder / "exported"))
      else:
        model = unsaved(source_of(folder), **LIMITS.get(kind, {}))
      predictor = PREDICTORS.get(MODELS[kind]["script"])
      host = predictor and stack.enter_context(predictor(str(folder)))
      return str(folder), model, host

    yield models


# Outputs by kind whose shape the batch does not change otherwise.
WIDTHS = {
  "classification": {"probabilities": (3,), "label": ()},
  "regression": {"score": ()},
  "multi_label": {"probabilities": (3,), "has_label": (3,)},
  "multiple_choice": {"probabilities": (3,), "label": ()},
  "squad_2": {"answer": (), "null_odds": ()},
  "embeddings, mean": {"vectors": (32,)},
  "embeddings, cls": {"vectors": (12,)},
  "embeddings, max": {"vectors": (32,)},
  "encoder": {"pooled_output": (32,), "mean_output": (32,)},
}


# Kinds whose signatures take texts in the ways of all the others.
OF_TEXTS = ("classification", "multiple_choice", "ner", "squad_2")
OF_TEXTS += ("pretraining", "ranking", "embeddings, mean")


@parametrize("kind", *MODELS, "encoder")
def test_an_empty_batch_has_an_empty_result(kind, models):
  if kind == "encoder":
    folder, *_ = models("classification")
    model = unsaved(source_of(folder), encoder=True)
  else:
    _, model, _ = models(kind)
  for name, signature in model.signatures.items():
    if name != "ids" and kind not in OF_TEXTS:
      continue
    if hasattr(model, "specs"):
      specs = model.specs[name]
    else:
      _, specs = signature.structured_input_signature
    for seq_length in (0, 5):
      inputs = {}
      for key, spec in specs.items():
        sizes = (seq_length if n is None else n for n in spec.shape[1:])
        shape = [0, *sizes] if spec.shape.rank else []  # a query
        inputs[key] = tf.zeros(shape, spec.dtype)
      for key, value in call(model, name, **inputs).items():
        assert value.shape[0] == 0, (name, key)
        if key in WIDTHS.get(kind, {}):
          assert value.shape[1:] == WIDTHS[kind][key], (name, key)


def test_documents_are_ranked_as_by_the_predictor(tmp_path):
  described = {"activation": "identity", "query_prefix": "the "}
  folder = make_model(tmp_path / "model", **MODELS["ranking"] | described)
  query, documents = "cat", ["a", "the cat sat", "", "sat " * 40, "a"]
  with run_reranker.Predictor(str(folder)) as predictor:
    expected = predictor.rank(query, documents)
  source, saved = source_of(folder), str(tmp_path / "saved")
  export_model.export(source, saved)
  found = ExportedModel(saved)("rank", query=query, documents=documents)
  assert found["order"].tolist() == [one.index for one in expected]
  scores = [found["scores"][one.index] for one in expected]
  assert scores == pytest.approx([one.score for one in expected], abs=1e-5)
  # Equal ones keep their order.
  order = [index for index in found["order"].tolist() if index in (0, 4)]
  assert order == [0, 4]


def call(model, signature, **inputs):
  outputs = model.signatures[signature](
    **{name: tf.constant(value) for name, value in inputs.items()}
  )
  return {name: tensor.numpy() for name, tensor in outputs.items()}


def encode(host, pairs):
  """Encodes pairs like the model's script: int32 [B, S] per feature."""
  rows = [
    model_inputs.encode_pair(host.tokenizer, *pair, MAX_SEQ_LENGTH)
    for pair in pairs
  ]
  return {
    name: np.array([getattr(row, name) for row in rows], np.int32)
    for name in model_inputs.TOKEN_FEATURES
  }


def assert_equal(actual, expected, mask=True):
  """Asserts equality within 1e-5 where the mask is true."""
  assert np.shape(actual) == np.shape(expected)
  difference = np.where(mask, np.abs(np.subtract(actual, expected)), 0.0)
  assert difference.max(initial=0.0) < 1e-5


def strings(array):
  """Decodes an array of bytes to nested lists of strings."""
  return np.char.decode(array.astype(np.bytes_), "utf-8").tolist()


def assert_predicts(outputs, predictions):
  rows = [list(p.probabilities.values()) for p in predictions]
  assert_equal(outputs["probabilities"], rows)
  assert strings(outputs["label"]) == [p.label for p in predictions]
  assert len({p.label for p in predictions}) > 1


def test_texts_and_pairs_are_classified(models):
  _, model, host = models("classification")
  assert_predicts(call(model, "text", text_a=TEXTS), host.predict(TEXTS))
  pairs = [(a, b) for a in TEXTS for b in TEXTS]
  text_a, text_b = zip(*pairs)
  expected = host.predict(pairs)
  assert_predicts(call(model, "pair", text_a=text_a, text_b=text_b), expected)
  assert_predicts(call(model, "ids", **encode(host, pairs)), expected)


def test_multiple_choice_is_predicted(models):
  _, model, host = models("multiple_choice")
  rows = [[(a, b) for b in TEXTS[n : n + 3]] for n, a in enumerate(TEXTS[:-2])]
  expected = host.predict(rows)
  text_a, text_b = np.moveaxis(np.array(rows), -1, 0)
  found = call(model, "choices", text_a=text_a, text_b=text_b)
  assert_predicts(found, expected)
  ids = encode(host, [pair for row in rows for pair in row])
  shape = [len(rows), 3, MAX_SEQ_LENGTH]
  ids = {name: values.reshape(shape) for name, values in ids.items()}
  assert_predicts(call(model, "ids", **ids), expected)


def test_regression_scores_are_predicted(models):
  _, model, host = models("regression")
  pairs = list(zip(TEXTS, reversed(TEXTS)))
  expected = [p.label for p in host.predict(pairs)]
  assert_equal(call(model, "ids", **encode(host, pairs))["score"], expected)
  assert len({round(number, 2) for number in expected}) > 5


def test_a_text_has_the_labels_above_their_thresholds(models):
  _, model, host = models("multi_label")
  labels, expected = MODELS["multi_label"]["labels"], host.predict(TEXTS)
  outputs = call(model, "ids", **encode(host, [(text, None) for text in TEXTS]))
  rows = [list(p.probabilities.values()) for p in expected]
  assert_equal(outputs["probabilities"], rows)
  for row, prediction in zip(outputs["has_label"], expected):
    assert [label for label, has in zip(labels, row) if has] == prediction.label
  # A single threshold would give other labels.
  assert (outputs["has_label"] != (outputs["probabilities"] >= 0.5)).any()


MANY = [*TEXTS, *random_texts(60, 20, ODD, seed=5)]


@pytest.mark.parametrize(
  ("signature", "prompt"),
  [("embed", None), ("embed_query", "query"), ("embed_passage", "passage")],
)
def test_texts_are_encoded_with_a_prompt(models, signature, prompt):
  _, model, host = models("embeddings, mean")
  vectors = call(model, signature, text=MANY)["vectors"]
  assert vectors.dtype == np.float32
  assert_equal(vectors, host.encode(MANY, prompt))


def test_ids_of_texts_are_those_of_the_predictor(models):
  _, model, host = models("embeddings, mean")
  prefix = PROMPTS["passage"]
  ids = encode(host, [(prefix + text, None) for text in MANY])
  assert_equal(call(model, "ids", **ids)["vectors"], host.encode(MANY))
  tokens = call(model, "tokenize", text=[prefix + text for text in MANY])
  length = tokens["input_ids"].shape[1]
  for name, values in tokens.items():
    np.testing.assert_array_equal(values, ids[name][:, :length])
    assert not ids["input_mask"][:, length:].any()


@parametrize("pooling", "cls", "max")
def test_other_vectors_are_those_of_the_predictor(models, pooling):
  _, model, host = models(f"embeddings, {pooling}")
  assert set(model.signatures) == {"ids", "embed", "tokenize"}
  assert_equal(call(model, "embed", text=MANY)["vectors"], host.encode(MANY))


def assert_tokenizes(model, tokenizer, pairs, prepare=str):
  text_a, text_b = zip(*pairs)
  encoded = call(model, "tokenize", text_a=text_a, text_b=text_b)
  expected = [
    model_inputs.encode_pair(tokenizer, prepare(a), prepare(b), MAX_SEQ_LENGTH)
    for a, b in pairs
  ]
  longest = max(sum(row.input_mask) for row in expected)
  assert set(encoded) == set(model_inputs.TOKEN_FEATURES)
  for name, array in encoded.items():
    rows = [getattr(row, name)[:longest] for row in expected]
    np.testing.assert_array_equal(array, rows)


def odd_pairs():
  texts = random_texts(80, 20, ODD, seed=2)
  return [*zip(texts, reversed(texts)), *zip(TEXTS, TEXTS)]


def test_texts_are_tokenized(models):
  _, model, host = models("classification")
  assert_tokenizes(model, host.tokenizer, odd_pairs())


def test_texts_with_masks_are_tokenized(models):
  folder, model, _ = models("pretraining")
  vocab = os.path.join(folder, "vocab.txt")
  tokenizer = tokenization.FullTokenizer(vocab, never_split=["[MASK]"])
  pairs = [(f"a[MASK]{a}", f"{b}[MASK].") for a, b in odd_pairs()]
  assert_tokenizes(
    model, tokenizer, pairs, lambda text: text.replace("[MASK]", " [MASK] ")
  )


def assert_tags(model, host, texts):
  """Asserts offsets of words as in `ner`, and entities of the predictor."""
  outputs = call(model, "text", text=texts)
  for row, (text, expected) in enumerate(zip(texts, host.predict(texts))):
    offsets = ner.from_text(text).offsets
    rows = zip(*(outputs[name][row].tolist() for name in ("starts", "ends")))
    num_missing = outputs["tags"].shape[1] - len(offsets)
    assert [*rows] == offsets + [(-1, -1)] * num_missing
    tags = strings(outputs["tags"])[row]
    probabilities = outputs["probabilities"][row]
    assert not any(tags[len(offsets) :])
    assert not probabilities[len(offsets) :].any()
    is_entity = [tag.startswith("S-") for tag in tags]
    assert [
      (tag[2:], *span)
      for tag, span, found in zip(tags, offsets, is_entity)
      if found
    ] == [(entity.label, entity.start, entity.end) for entity in expected]
    found = [entity.probability for entity in expected]
    assert_equal(probabilities[is_entity], found)


def test_words_are_tagged(models):
  _, model, host = models("ner")
  texts = [*TEXTS, *random_texts(60, 12, ODD, seed=3)]
  assert_tags(model, host, texts)
  labels = {found.label for text in host.predict(texts) for found in text}
  assert labels == {"X", "Y", "Z"}
  # Several windows each.
  texts = random_texts(40, 120, ODD, seed=4)
  sentences = map(ner.from_text, texts)
  windows = ner.make_windows(sentences, host.tokenizer, MAX_SEQ_LENGTH)
  assert len(list(windows)) > 4 * len(texts)
  assert_tags(model, host, texts)


def test_a_word_without_pieces_has_tag_o_with_probability_1(models):
  _, model, _ = models("ner")
  outputs = call(model, "text", text=["the \0 cat"])
  assert (outputs["starts"][0, 1], outputs["ends"][0, 1]) == (4, 5)
  assert (outputs["tags"][0, 1], outputs["probabilities"][0, 1]) == (b"O", 1.0)


def questions(count, longest, words, seed):
  """Random questions and passages; passages of `WORDS` have punctuation."""
  queries = random_texts(count, 9, words, seed, " ")
  if words is WORDS:
    words = [word + sign for word in WORDS for sign in (".", ",", "?", "")]
  return list(zip(queries, random_texts(count, longest, words, seed + 1, " ")))


QUESTIONS = [
  *(pair for pair in questions(150, 70, WORDS, seed=5) if pair[1]),
  *questions(150, 60, ODD, seed=7),
  *[("is it", ""), ("", " \n"), ("is", "\0"), ("", "the cat")],
]


def answer(model, pairs):
  """Outputs of a model, and its answers as (text, start, end)."""
  queries, passages = zip(*pairs)
  outputs = call(model, "text", question=queries, passage=passages)
  answers = strings(outputs["answer"])
  return outputs, [*zip(answers, outputs["start"], outputs["end"])]


@pytest.fixture(scope="module")
def answered(models):
  """Returns what a kind of model and its predictor answer to `QUESTIONS`."""

  @functools.cache
  def answered(kind):
    _, model, host = models(kind)
    expected = host.predict(QUESTIONS, **LIMITS.get(kind, {}))
    return *answer(model, QUESTIONS), expected

  return answered


def null_odds(n_best):
  """The log odds of no answer, from the probabilities of the n-best list."""
  probabilities = {answer.text: answer.probability for answer in n_best}
  null_probability = probabilities.pop("")
  if not probabilities:
    return squad_decoding.CERTAIN_ODDS
  return math.log(null_probability / max(probabilities.values()))


@pytest.mark.unit
def test_default_limits_of_answers_equal_those_of_the_predictor():
  host = inspect.signature(run_squad.Predictor.predict).parameters
  for name in ("n_best_size", "max_answer_length"):
    limit = getattr(squad_signatures.QuestionAnswering, name)
    assert limit == host[name].default


@parametrize("kind", "squad_1", "squad_2")
def test_answers_are_the_predictor_s_characters(answered, kind):
  assert any(not question for question, _ in QUESTIONS)
  outputs, answers, expected = answered(kind)
  assert answers == [
    (n_best[0].text, n_best[0].start, n_best[0].end) if n_best else ("", 0, 0)
    for n_best in expected
  ]
  for (text, start, end), (_, passage) in zip(answers, QUESTIONS):
    assert text == passage[start:end]
  assert len(set(answers)) > 100
  assert ("null_odds" in outputs) == (kind == "squad_2")


def test_null_odds_equal_those_of_the_predictor(answered):
  outputs, answers, expected = answered("squad_2")
  odds = [null_odds(n_best) for n_best in expected]
  assert_equal(outputs["null_odds"], odds)
  # The threshold is the one in model.json; another would give other answers.
  assert [not text for text, *_ in answers] == [odd > 0.75 for odd in odds]
  assert {odd > 0 for odd in odds if odd <= 0.75} == {True, False}


def test_the_score_is_the_sum_of_start_and_end_logits(models):
  _, model, host = models("squad_2")
  rng = random.Random(9)
  counts = (rng.randrange(1, 10) for _ in range(40))
  passages = [" ".join(rng.sample(WORDS, count)) for count in counts]
  pairs = [("is it", passage) for passage in passages]
  logits = call(model, "ids", **encode(host, pairs))
  outputs, answers = answer(model, pairs)
  assert sum(bool(text) for text, *_ in answers) > 20
  for row, (text, start, _) in enumerate(answers):
    if not text:
      continue
    first = 4 + passages[row][:start].count(" ")
    last = first + text.count(" ")
    starts, ends = logits["start_logits"][row], logits["end_logits"][row]
    assert_equal(outputs["score"][row], starts[first] + ends[last])


def test_masks_are_filled(models, tmp_path):
  folder, model, _ = models("pretraining")
  lines = [
    "the [MASK] sat",
    "[MASK][MASK] ||| is it [MASK] .",
    "no masks ||| here",
    "",
    "the[MASK]cat",
    "the [MASK] cat " * 12,
    "[mask] RÉSUMÉ [MASK] 中",
    "the ||| [MASK]",
  ]
  path = tmp_path / "lines.txt"
  path.write_text("\n".join(lines) + "\n", encoding="utf-8")
  files = f"--output_dir={folder}", f"--predict_file={path}"
  files += (f"--bert_config_file={folder}/bert_config.json",)
  with commands.in_process(run_pretraining) as main:
    main("--do_predict", *files, f"--max_seq_length={MAX_SEQ_LENGTH}")
  predictions = os.path.join(folder, "predictions.jsonl")
  text_a, text_b = zip(*map(text_files.split_pair, lines))
  text_b = [text or "" for text in text_b]
  outputs = call(model, "pair", text_a=text_a, text_b=text_b)
  padding = [{"token": "", "probability": 0.0}] * 5
  max_masks = 7  # of twelve in one line, after truncation
  for line, tokens, probabilities in zip(
    reference_data.read_jsonl(predictions),
    strings(outputs["tokens"]),
    outputs["probabilities"],
  ):
    masks = line.get("masks", [])
    masks += [padding] * (max_masks - len(masks))
    assert tokens == [[f["token"] for f in mask] for mask in masks]
    expected = [[f["probability"] for f in mask] for mask in masks]
    assert_equal(probabilities, expected)
  single = call(model, "text", text_a=lines[:1])
  np.testing.assert_array_equal(single["tokens"], outputs["tokens"][:1, :1])


def test_lines_without_masks_have_no_predictions(models):
  _, model, _ = models("pretraining")
  outputs = call(model, "text", text_a=["the cat", ""])
  assert {values.shape for values in outputs.values()} == {(2, 0, 5)}


# Ids, against golden results of google-research/bert


def golden(name):
  return dict(np.load(reference_data.golden("modeling", "tiny", f"{name}.npz")))


def call_golden(signature, seq_length, **description):
  """Calls a signature with the golden checkpoint and inputs."""
  index = reference_data.golden("modeling", "tiny", "bert_model.ckpt.index")
  config_file = reference_data.golden("modeling", "tiny", "bert_config.json")
  source = export_model.find_source(
    None, index[: -len(".index")], config_file, None, True, 17
  )
  source.description.update(description)
  source = source._replace(task=task_record.find(description.get("script")))
  inputs = golden("inputs")
  inputs |= zip(HUB_NAMES, map(inputs.get, model_inputs.TOKEN_FEATURES))
  names = HUB_NAMES
  if description:
    names = (*model_inputs.TOKEN_FEATURES, "masked_lm_positions")
  model = unsaved(source, seq_length=seq_length)
  return call(model, signature, **{name: inputs[name] for name in names})


def is_token():
  """Bool [B, S]: real tokens. With unpadding only they have hidden states."""
  return golden("inputs")["input_mask"] > 0


def test_all_layers_equal_golden_results():
  outputs = call_golden("layers", 17)
  expected = golden("outputs")
  names = ["embedding_output", *(f"encoder_layer_{n}" for n in range(3))]
  states = np.stack([expected[name] for name in names], axis=1)
  assert_equal(outputs["all_layers"], states)
  assert_equal(outputs["pooled_output"], expected["pooled_output"])


def test_encoder_outputs_equal_golden_results():
  outputs = call_golden("ids", None)
  expected, mask = golden("outputs"), is_token()
  states = expected["sequence_output"]
  assert_equal(outputs["sequence_output"], states, mask[:, :, np.newaxis])
  assert_equal(outputs["pooled_output"], expected["pooled_output"], mask[:, :1])
  means = [row[tokens].mean(axis=0) for row, tokens in zip(states, mask)]
  assert_equal(outputs["mean_output"], means)


def test_pretraining_probabilities_equal_golden_results():
  outputs = call_golden("ids", None, script="run_pretraining")
  positions = golden("inputs")["masked_lm_positions"]
  expected, mask = golden("outputs"), is_token()
  words = outputs["masked_lm_probabilities"]
  assert_equal(
    words,
    np.exp(expected["masked_lm_log_probs"]).reshape(words.shape),
    np.take_along_axis(mask, positions, axis=1)[:, :, np.newaxis],
  )
  found = outputs["next_sentence_probabilities"]
  next_sentence = np.exp(expected["next_sentence_log_probs"])
  assert_equal(found, next_sentence, mask[:, :1])
