"""What exported models say, against what the scripts say on the host."""

import contextlib
import functools
import inspect
import math
import os
import random
import types

import commands
import numpy as np
import pytest
import reference_data
import tensorflow as tf

import export_model
import modeling
import run_classifier
import run_ner
import run_pretraining
import run_squad
import tokenization
from bertlib.checkpoints import checkpoint_writer, model_json
from bertlib.compute import FastCompute
from bertlib.data import model_inputs, ner, squad_examples
from bertlib.errors import InputError
from bertlib.export import signatures, tf1_module
from bertlib.metrics import squad_decoding

pytestmark = pytest.mark.train

WORDS = ["the", "cat", "dog", "sat", "ran", "home", "is", "it", "good", "bad"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,?!()中文", *WORDS]
VOCAB += ["cafe", "re", "##sume", "##s", "##ly", "a", "##a", "b", "##b", "e"]
CONFIG = modeling.BertConfig(
  vocab_size=len(VOCAB) + 2,  # more than there are entries, as models may have
  hidden_size=32,
  num_hidden_layers=1,
  num_attention_heads=2,
  intermediate_size=48,
  max_position_embeddings=40,
  type_vocab_size=2,
)
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
  # Each tag is an entity by itself, so that the host tells of every word.
  "ner": {"script": "run_ner", "labels": ["O", "S-X", "S-Y", "S-Z"]},
  "squad_1": SQUAD | {"version_2_with_negative": False},
  "squad_2": SQUAD | {"version_2_with_negative": True},
  "pretraining": {"script": "run_pretraining"},
}
# As small as texts are; those of the other are what the host has by default.
LIMITS = {"squad_1": {"n_best_size": 3, "max_answer_length": 4}}
# The others have the same operations but for a few.
SAVED = ("classification", "ner", "squad_2", "pretraining")
PREDICTORS = {
  "run_classifier": run_classifier.Predictor,
  "run_ner": run_ner.Predictor,
  "run_squad": run_squad.Predictor,
}

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
# What is apt to go wrong in texts, and words.
ODD = [
  "cats",
  "catsly",
  "résumé",
  "re\u0301",
  "İstanbul",
  "ﬁ",
  "½",
  "한",
  "中文",
]
ODD += ["zebra.", "ab", "aab", "a,a", "(cat)", "a.b.", "CAFÉ", "##s", "[SEP]"]
ODD += [
  "ΑΣ",
  "_",
  "  ",
  "\n",
  "\xa0",
  "\u2028",
  "\0",
  "\u200b",
  "\u0301",
  *WORDS,
]


def random_texts(count, longest, words, seed, separators=("", " ")):
  """Texts of random words."""
  rng = random.Random(seed)
  return [
    rng.choice(separators).join(rng.choices(words, k=rng.randrange(longest)))
    for _ in range(count)
  ]


# Models


def make_model(folder, script, **description):
  """Makes a folder as training leaves it, of a model with random weights.

  The weights are so large that no two outputs are alike.
  """
  folder.mkdir(exist_ok=True)
  vocab_file = folder / "words.txt"
  vocab_file.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
  usual = {"max_seq_length": MAX_SEQ_LENGTH, "do_lower_case": True}
  description = {"script": script} | usual | description
  model_json.write_model_files(
    str(folder), description, CONFIG, str(vocab_file)
  )
  with tf.Graph().as_default():
    build_graph(description)
    shapes = {
      variable.op.name: variable.shape.as_list()
      for variable in tf.compat.v1.trainable_variables()
    }
  rng = np.random.default_rng(1)
  variables = {"global_step": np.int64(7)}
  for name, shape in shapes.items():
    mean = 1.0 if name.endswith("gamma") else 0.0
    variables[name] = rng.normal(mean, 0.3, shape).astype(np.float32)
    for moment in ("adam_m", "adam_v"):
      variables[f"{name}/{moment}"] = np.ones(shape, np.float32)
  checkpoint_writer.write_variables(str(folder / "model.ckpt-7"), variables)
  (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
  return folder


def build_graph(description):
  """The graph that training has, by the script's own function."""
  inputs = {
    name: tf.compat.v1.placeholder(tf.int32, [None, None])
    for name in model_inputs.TOKEN_FEATURES
  }
  if description["script"] == "run_pretraining":
    inputs["masked_lm_positions"] = inputs["input_ids"]
    run_pretraining.create_model(CONFIG, False, inputs, False)
  else:
    predictor = PREDICTORS[description["script"]]
    predictor.build(description, CONFIG, inputs, FastCompute())


def source_of(folder):
  return export_model.find_source(str(folder), None, None, None, True, None)


def unsaved(
  source, encoder=False, seq_length=None, precision="float32", **limits
):
  """What would be exported, without a SavedModel in between."""
  served = export_model.exported_model(source, encoder, seq_length, precision)
  vars(served).update(limits)
  weights = export_model.read_weights(served, source.checkpoint)
  module = tf1_module.GraphModule(weights)

  def as_function(signature):
    @tf.function(input_signature=[signature.inputs], autograph=False)
    def call(inputs):
      with module.scope():
        return signature.function(inputs)

    return lambda **inputs: call(inputs)

  signatures = served.signatures().items()
  return types.SimpleNamespace(
    signatures={name: as_function(signature) for name, signature in signatures}
  )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  """Of a kind of model: its folder, what is exported, its Predictor."""
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


def ask(model, signature, **inputs):
  """What a signature gives, as arrays by name."""
  said = model.signatures[signature](
    **{name: tf.constant(value) for name, value in inputs.items()}
  )
  return {name: tensor.numpy() for name, tensor in said.items()}


def encode(host, pairs):
  """Pairs as the model's script encodes them: int32 [B, S] of each feature."""
  rows = [
    model_inputs.encode_pair(host.tokenizer, *pair, MAX_SEQ_LENGTH)
    for pair in pairs
  ]
  return {
    name: np.array([getattr(row, name) for row in rows], np.int32)
    for name in model_inputs.TOKEN_FEATURES
  }


def assert_equal(actual, expected, mask=True):
  """Equality to 1e-5, where a mask is true."""
  assert np.shape(actual) == np.shape(expected)
  difference = np.where(mask, np.abs(np.subtract(actual, expected)), 0.0)
  assert difference.max(initial=0.0) < 1e-5


def strings(array):
  """Bytes of any shape as lists of texts."""
  return np.char.decode(array.astype(np.bytes_), "utf-8").tolist()


# Classifiers


def assert_says(said, predictions):
  rows = [list(one.probabilities.values()) for one in predictions]
  assert_equal(said["probabilities"], rows)
  assert strings(said["label"]) == [one.label for one in predictions]
  assert len({one.label for one in predictions}) > 1


def test_texts_are_labelled(models):
  _, model, host = models("classification")
  assert_says(ask(model, "text", text_a=TEXTS), host.predict(TEXTS))


def test_pairs_are_labelled(models):
  _, model, host = models("classification")
  pairs = [(a, b) for a in TEXTS for b in TEXTS]
  text_a, text_b = zip(*pairs)
  expected = host.predict(pairs)
  assert_says(ask(model, "pair", text_a=text_a, text_b=text_b), expected)
  assert_says(ask(model, "ids", **encode(host, pairs)), expected)


def test_choices_are_made(models):
  _, model, host = models("multiple_choice")
  rows = [[(a, b) for b in TEXTS[n : n + 3]] for n, a in enumerate(TEXTS[:-2])]
  expected = host.predict(rows)
  text_a, text_b = np.moveaxis(np.array(rows), -1, 0)
  assert_says(ask(model, "choices", text_a=text_a, text_b=text_b), expected)
  ids = encode(host, [pair for row in rows for pair in row])
  shape = [len(rows), 3, MAX_SEQ_LENGTH]
  ids = {name: of.reshape(shape) for name, of in ids.items()}
  assert_says(ask(model, "ids", **ids), expected)


def test_numbers_are_given(models):
  _, model, host = models("regression")
  pairs = list(zip(TEXTS, reversed(TEXTS)))
  expected = [one.label for one in host.predict(pairs)]
  assert_equal(ask(model, "ids", **encode(host, pairs))["score"], expected)
  assert len({round(number, 2) for number in expected}) > 5


def test_a_text_has_the_labels_above_their_thresholds(models):
  _, model, host = models("multi_label")
  labels, expected = MODELS["multi_label"]["labels"], host.predict(TEXTS)
  said = ask(model, "ids", **encode(host, [(text, None) for text in TEXTS]))
  rows = [list(one.probabilities.values()) for one in expected]
  assert_equal(said["probabilities"], rows)
  for row, one in zip(said["has_label"], expected):
    assert [label for label, has in zip(labels, row) if has] == one.label
  # One threshold for all would say otherwise.
  assert (said["has_label"] != (said["probabilities"] >= 0.5)).any()


def test_other_number_formats_stay_inside(models):
  folder, model, host = models("classification")
  ids = encode(host, [(text, None) for text in TEXTS])
  rounded = unsaved(source_of(folder), precision="bfloat16")
  said = ask(rounded, "ids", **ids)["probabilities"]
  difference = abs(said - ask(model, "ids", **ids)["probabilities"]).max()
  assert said.dtype == np.float32
  assert 1e-4 < difference < 0.05


# Text to ids


def assert_tokenizes(model, tokenizer, pairs, spelled=str):
  text_a, text_b = zip(*pairs)
  said = ask(model, "tokenize", text_a=text_a, text_b=text_b)
  expected = [
    model_inputs.encode_pair(tokenizer, spelled(a), spelled(b), MAX_SEQ_LENGTH)
    for a, b in pairs
  ]
  longest = max(sum(row.input_mask) for row in expected)
  assert set(said) == set(model_inputs.TOKEN_FEATURES)
  for name, array in said.items():
    rows = [getattr(row, name)[:longest] for row in expected]
    np.testing.assert_array_equal(array, rows)


def odd_pairs():
  texts = random_texts(80, 20, ODD, seed=2)
  return [*zip(texts, reversed(texts)), *zip(TEXTS, TEXTS)]


def test_tokens_of_texts(models):
  _, model, host = models("classification")
  assert_tokenizes(model, host.tokenizer, odd_pairs())


def test_tokens_of_texts_with_masks(models):
  folder, model, _ = models("pretraining")
  tokenizer = tokenization.FullTokenizer(
    os.path.join(folder, "vocab.txt"), never_split=["[MASK]"]
  )
  pairs = [(f"a[MASK]{a}", f"{b}[MASK].") for a, b in odd_pairs()]
  assert_tokenizes(
    model, tokenizer, pairs, lambda text: text.replace("[MASK]", " [MASK] ")
  )


def test_texts_become_vectors(models):
  folder, _, host = models("classification")
  model = unsaved(source_of(folder), encoder=True)
  text_a, text_b = zip(*odd_pairs())
  texts = ask(model, "pair", text_a=text_a, text_b=text_b)
  inputs = encode(host, odd_pairs()).values()
  ids = ask(model, "ids", **dict(zip(HUB_NAMES, inputs)))
  for name in ("pooled_output", "mean_output"):
    assert_equal(texts[name], ids[name])


# Tags


def assert_tags(model, host, texts):
  """Places of all words as in `ner`, entities as the host finds them."""
  said = ask(model, "text", text=texts)
  for row, (text, expected) in enumerate(zip(texts, host.predict(texts))):
    places = ner.from_text(text).offsets
    rows = zip(*(said[name][row].tolist() for name in ("starts", "ends")))
    assert [*rows] == places + [(-1, -1)] * (
      said["tags"].shape[1] - len(places)
    )
    tags, sure = strings(said["tags"])[row], said["probabilities"][row]
    assert not any(tags[len(places) :]) and not sure[len(places) :].any()
    is_found = [tag.startswith("S-") for tag in tags]
    assert [
      (tag[2:], *place)
      for tag, place, found in zip(tags, places, is_found)
      if found
    ] == [(entity.label, entity.start, entity.end) for entity in expected]
    assert_equal(sure[is_found], [entity.probability for entity in expected])


def test_words_are_tagged(models):
  _, model, host = models("ner")
  texts = [*TEXTS, *random_texts(60, 12, ODD, seed=3)]
  assert_tags(model, host, texts)
  labels = {found.label for text in host.predict(texts) for found in text}
  assert labels == {"X", "Y", "Z"}


def test_texts_of_several_windows_are_tagged(models):
  _, model, host = models("ner")
  texts = random_texts(40, 120, ODD, seed=4)
  sentences = map(ner.from_text, texts)
  windows = ner.make_windows(sentences, host.tokenizer, MAX_SEQ_LENGTH)
  assert len(list(windows)) > 4 * len(texts)
  assert_tags(model, host, texts)


def test_a_word_without_pieces_is_no_entity_for_sure(models):
  _, model, _ = models("ner")
  said = ask(model, "text", text=["the \0 cat"])
  assert (said["starts"][0, 1], said["ends"][0, 1]) == (4, 5)
  assert (said["tags"][0, 1], said["probabilities"][0, 1]) == (b"O", 1.0)


def test_no_texts_have_no_tags(models):
  _, model, _ = models("ner")
  said = ask(model, "text", text=tf.zeros([0], tf.string))
  assert {of.shape for of in said.values()} == {(0, 0)}


# Answers


def questions(count, longest, words, seed):
  """Questions and passages, those of known words with signs after some."""
  asked = random_texts(count, 9, words, seed, " ")
  if words is WORDS:
    words = [word + sign for word in WORDS for sign in (".", ",", "?", "")]
  return list(zip(asked, random_texts(count, longest, words, seed + 1, " ")))


SIMPLE = [pair for pair in questions(150, 70, WORDS, seed=5) if pair[1]]
DIFFICULT = questions(150, 60, ODD, seed=7)


def answer(model, pairs):
  """What a model says; and its answers: text, start, end."""
  asked, passages = zip(*pairs)
  said = ask(model, "text", question=asked, passage=passages)
  return said, [*zip(strings(said["answer"]), said["start"], said["end"])]


def null_odds(listed):
  """The odds of no answer, by the probabilities of all that are listed."""
  probabilities = {answer.text: answer.probability for answer in listed}
  none = probabilities.pop("")
  if not probabilities:
    return squad_decoding.CERTAIN_ODDS
  return math.log(none / max(probabilities.values()))


@pytest.mark.unit
def test_limits_of_answers_are_those_of_the_host():
  host = inspect.signature(run_squad.Predictor.predict).parameters
  for name in ("n_best_size", "max_answer_length", "null_score_diff_threshold"):
    assert getattr(signatures.QuestionAnswering, name) == host[name].default


@pytest.mark.parametrize("kind", ["squad_1", "squad_2"])
def test_questions_are_answered(models, kind):
  _, model, host = models(kind)
  assert any(not question for question, _ in SIMPLE)
  said, answers = answer(model, SIMPLE)
  assert answers == [
    (listed[0].text, listed[0].start, listed[0].end) if listed else ("", 0, 0)
    for listed in host.predict(SIMPLE, **LIMITS.get(kind, {}))
  ]
  assert len(set(answers)) > 50
  assert ("null_odds" in said) == (kind == "squad_2")


def test_odds_of_no_answer(models):
  _, model, host = models("squad_2")
  pairs = [*SIMPLE, *DIFFICULT]
  odds = [null_odds(listed) for listed in host.predict(pairs)]
  said, answers = answer(model, pairs)
  assert_equal(said["null_odds"], odds)
  assert [not text for text, *_ in answers] == [odd > 0 for odd in odds]
  assert {odd > 0 for odd in odds} == {True, False}


def test_answers_end_where_their_pieces_end(models):
  _, model, host = models("squad_1")
  _, answers = answer(model, DIFFICULT)
  expected = host.predict(DIFFICULT, **LIMITS["squad_1"])
  for (_, passage), said, listed in zip(DIFFICULT, answers, expected):
    text, start, end = said
    assert text == passage[start:end]
    if not listed:
      assert said == ("", 0, 0)
      continue
    starts, ends = zip(*host.tokenizer.tokenize_with_offsets(passage)[1])
    assert start in starts and end in ends
    # The host puts one space between words, and may fall back on whole ones.
    words, _ = squad_examples.split_words(text)
    assert " ".join(words) in listed[0].text
  assert sum(map(bool, expected)) > 50


def test_the_score_is_that_of_the_first_and_the_last_token(models):
  _, model, host = models("squad_2")
  rng = random.Random(9)
  passages = [
    " ".join(rng.sample(WORDS, rng.randrange(1, 10))) for _ in range(40)
  ]
  pairs = [("is it", passage) for passage in passages]
  logits = ask(model, "ids", **encode(host, pairs))
  said, answers = answer(model, pairs)
  assert sum(bool(text) for text, *_ in answers) > 20
  for row, (text, start, _) in enumerate(answers):
    if not text:
      continue
    first = 4 + passages[row][:start].count(" ")
    last = first + text.count(" ")
    starts, ends = logits["start_logits"][row], logits["end_logits"][row]
    assert_equal(said["score"][row], starts[first] + ends[last])


@pytest.mark.parametrize("kind", ["squad_1", "squad_2"])
def test_passages_without_words_have_no_answer(models, kind):
  _, model, host = models(kind)
  pairs = [("is it", ""), ("", " \n"), ("is", "\0"), ("", "the cat")]
  _, answers = answer(model, pairs)
  assert answers[:3] == [("", 0, 0)] * 3
  expected = [
    listed[0].text if listed else ""
    for listed in host.predict(pairs, **LIMITS.get(kind, {}))
  ]
  assert [text for text, *_ in answers] == expected


def test_a_length_without_room_for_text_is_refused(models):
  folder, *_ = models("squad_1")
  with pytest.raises(InputError, match="=9 leaves no room for text"):
    export_model.exported_model(source_of(folder), False, 9, "float32")


# Masks


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
  with commands.in_process(run_pretraining) as main:
    main(
      "--do_predict",
      f"--predict_file={path}",
      f"--output_dir={folder}",
      f"--bert_config_file={os.path.join(folder, 'bert_config.json')}",
      f"--max_seq_length={MAX_SEQ_LENGTH}",
    )
  predictions = os.path.join(folder, "predictions.jsonl")
  text_a, text_b = zip(*map(model_inputs.split_pair, lines))
  text_b = [text or "" for text in text_b]
  said = ask(model, "pair", text_a=text_a, text_b=text_b)
  nothing = [{"token": "", "probability": 0.0}] * 5
  most = 7  # of the twelve in one line, as many as are left
  for line, tokens, probabilities in zip(
    reference_data.read_jsonl(predictions),
    strings(said["tokens"]),
    said["probabilities"],
  ):
    masks = line.get("masks", [])
    masks += [nothing] * (most - len(masks))
    assert tokens == [[f["token"] for f in mask] for mask in masks]
    expected = [[f["probability"] for f in mask] for mask in masks]
    assert_equal(probabilities, expected)
  alone = ask(model, "text", text_a=lines[:1])
  np.testing.assert_array_equal(alone["tokens"], said["tokens"][:1, :1])


def test_lines_without_masks_have_none_filled(models):
  _, model, _ = models("pretraining")
  said = ask(model, "text", text_a=["the cat", ""])
  assert {of.shape for of in said.values()} == {(2, 0, 5)}


# Ids, against the reference's results


def golden(name):
  path = reference_data.golden("modeling", "tiny", f"{name}.npz")
  return dict(np.load(path))


def ask_golden(signature, seq_length, **description):
  """What a signature gives for the reference's checkpoint and inputs."""
  index = reference_data.golden("modeling", "tiny", "bert_model.ckpt.index")
  config_file = reference_data.golden("modeling", "tiny", "bert_config.json")
  source = export_model.find_source(
    None, index[: -len(".index")], config_file, None, True, 17
  )
  source.description.update(description)
  inputs = golden("inputs")
  inputs |= zip(HUB_NAMES, map(inputs.get, model_inputs.TOKEN_FEATURES))
  names = HUB_NAMES
  if description:
    names = (*model_inputs.TOKEN_FEATURES, "masked_lm_positions")
  model = unsaved(source, seq_length=seq_length)
  return ask(model, signature, **{name: inputs[name] for name in names})


def visible():
  """The tokens, which alone have states in batches of any length."""
  return golden("inputs")["input_mask"] > 0


def test_layers_are_what_the_reference_gives():
  said = ask_golden("layers", 17)
  expected = golden("outputs")
  names = ["embedding_output", *(f"encoder_layer_{n}" for n in range(3))]
  states = np.stack([expected[name] for name in names], axis=1)
  assert_equal(said["all_layers"], states)
  assert_equal(said["pooled_output"], expected["pooled_output"])


def test_vectors_of_texts_are_what_the_reference_gives():
  said = ask_golden("ids", None)
  expected, mask = golden("outputs"), visible()
  states = expected["sequence_output"]
  assert_equal(said["sequence_output"], states, mask[:, :, np.newaxis])
  assert_equal(said["pooled_output"], expected["pooled_output"], mask[:, :1])
  means = [row[tokens].mean(axis=0) for row, tokens in zip(states, mask)]
  assert_equal(said["mean_output"], means)


def test_probabilities_of_words_are_what_the_reference_gives():
  said = ask_golden("ids", None, script="run_pretraining")
  positions = golden("inputs")["masked_lm_positions"]
  expected, mask = golden("outputs"), visible()
  words = said["masked_lm_probabilities"]
  assert_equal(
    words,
    np.exp(expected["masked_lm_log_probs"]).reshape(words.shape),
    np.take_along_axis(mask, positions, axis=1)[:, :, np.newaxis],
  )
  order = np.exp(expected["next_sentence_log_probs"])
  assert_equal(said["next_sentence_probabilities"], order, mask[:, :1])
