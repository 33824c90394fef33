"""Tests of texts longer than the model: cut, or divided into windows."""

import functools
import itertools
import signal

import commands
import numpy as np
import pytest
import run_outputs
import signatures_test
import tiny_classifier
import tiny_model
import tiny_reranker
from reference_data import read_jsonl
from signatures_test import MAX_SEQ_LENGTH, assert_equal, call, make_model
from tiny_reranker import LISTS

import export_model
import extract_features
import run_classifier
import run_embeddings
import run_reranker
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs
from bertlib.exchange import rewrite
from bertlib.export import OnnxModel
from bertlib.io import result_files
from bertlib.settings.common import (
  TRUNCATE,
  LongDocumentSettings,
  LongTextSettings,
)
from optimization import StepOptions

pytestmark = pytest.mark.train

HEAD_TAIL = LongTextSettings("head_tail")
WINDOWS = LongTextSettings("windows")
WORDS = signatures_test.WORDS
SHORT = ["the cat sat", "It ran home!"]
LONG = [" ".join(WORDS * n) for n in (3, 4, 9)]
PAIRS = [(a, b) for a in SHORT + LONG for b in ["", *LONG[:2], *SHORT]]


# Cutting


def kept(length_a, length_b, room, cutting, num_prompt=0):
  """Indices of the tokens of both texts in each row."""
  texts = [*range(length_a)], [*range(length_b)]
  num_lost, rows = model_inputs.cut(*texts, room, cutting, num_prompt)
  found = [{*itertools.chain(*parts)} for parts in zip(*rows)]
  assert num_lost == length_a + length_b - sum(map(len, found))
  return rows


@pytest.mark.parametrize("cutting", [TRUNCATE, HEAD_TAIL, WINDOWS])
def test_texts_that_fit_are_whole(cutting):
  for lengths in [(0, 0), (10, 0), (7, 3), (3, 7)]:
    whole = [*map(list, map(range, lengths))]
    assert kept(*lengths, 10, cutting, 2) == [tuple(whole)]


def test_head_and_tail_are_a_quarter_and_the_rest():
  ((row, _),) = kept(1000, 0, 510, HEAD_TAIL)
  assert row == [*range(128), *range(1000 - 382, 1000)]
  # A prompt is kept beside them.
  ((row, _),) = kept(100, 0, 20, HEAD_TAIL, num_prompt=8)
  assert row == [*range(8 + 3), *range(91, 100)]
  # Each text of a pair keeps as many tokens as by truncation.
  ((a, b),) = kept(100, 30, 20, HEAD_TAIL)
  assert a == [0, 1, 2, *range(93, 100)]
  assert b == [0, 1, 2, *range(23, 30)]


def test_windows_cover_the_longer_text():
  rows = kept(23, 0, 8, WINDOWS)
  assert [row for row, _ in rows] == [
    [*range(n, min(n + 8, 23))] for n in (0, 4, 8, 12, 16)
  ]
  # The other text keeps up to half of the room; of equal ones, the first.
  for lengths in [(3, 20), (20, 3), (9, 9), (20, 30)]:
    rows = kept(*lengths, 10, LongTextSettings("windows", doc_stride=2))
    second = lengths[1] >= lengths[0]
    other = min(lengths[not second], 5)
    assert {len(row[not second]) for row in rows} == {other}
    starts = [row[second][0] for row in rows]
    assert starts == [*range(0, 2 * len(rows), 2)]
    assert rows[-1][second][-1] == lengths[second] - 1
    assert all(len(row[second]) <= 10 - other for row in rows)


def test_of_a_reranker_the_document_is_divided():
  windows = LongDocumentSettings("windows")
  rows = kept(8, 7, 10, windows)
  assert rows == [([0, 1, 2, 3, 4], [*range(n, n + 5)]) for n in (0, 2)]
  # Queries keep what their document leaves.
  assert kept(12, 3, 10, windows) == [([*range(7)], [0, 1, 2])]
  # One without a document is divided itself.
  assert [row for row, _ in kept(12, 0, 10, windows)] == [
    [*range(10)],
    [*range(5, 12)],
  ]
  ((query, document),) = kept(4, 30, 10, LongDocumentSettings("head_tail"))
  assert query == [0, 1, 2, 3] and document == [0, 1, *range(26, 30)]


def test_each_window_begins_with_the_prompt():
  rows = kept(14, 0, 6, WINDOWS, num_prompt=2)
  assert [row for row, _ in rows] == [
    [0, 1, *range(n, n + 4)] for n in (2, 4, 6, 8, 10)
  ]
  # It leaves room beside a second text.
  rows = kept(14, 9, 8, WINDOWS, num_prompt=6)
  assert rows == [([0, 1, n, n + 1], [0, 1, 2, 3]) for n in range(2, 13)]


# Models


MODELS = {
  "mean": signatures_test.MODELS["classification"],
  "max": signatures_test.MODELS["multi_label"] | {"join_windows": "max"},
  "values": signatures_test.MODELS["regression"],
}
# The words of a window, and those between the starts of two.
ROOM, STRIDE = MAX_SEQ_LENGTH - 2, (MAX_SEQ_LENGTH - 2) // 2


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
  """Returns the folder of a model that divides texts into windows."""

  @functools.cache
  def folder_of(kind):
    path = tmp_path_factory.mktemp(kind)
    make_model(path / "plain", **MODELS[kind])
    return make_model(path / "model", **MODELS[kind], long_texts="windows")

  return folder_of


def pieces_of(text):
  """The windows of a text without pieces of words, as texts."""
  words = text.replace("!", " !").split()
  starts = range(0, max(len(words) - ROOM + STRIDE - 1, 0) + 1, STRIDE)
  return [" ".join(words[start : start + ROOM]) for start in starts]


def numbers(predictions):
  """Probabilities, or the value of a regression: [texts, labels]."""
  return np.array(
    [[*p.probabilities.values()] or [p.label] for p in predictions]
  )


def loop_over_pieces(folder, kind, text):
  """The joined outputs of a text, from a predictor of its pieces."""
  with run_classifier.Predictor(str(folder.parent / "plain")) as predictor:
    rows = numbers(predictor.predict(pieces_of(text)))
  if kind == "values":
    return rows.mean(axis=0)
  if kind == "max":
    return rows.max(axis=0)  # the sigmoid increases
  powers = np.exp(np.log(rows).mean(axis=0))
  return powers / powers.sum()


@pytest.mark.parametrize("kind", MODELS)
def test_predictions_of_windows_are_joined(kind, folder_of):
  folder, texts = folder_of(kind), SHORT + LONG
  with run_classifier.Predictor(str(folder)) as predictor:
    found = numbers(predictor.predict(texts))
    alone = numbers(predictor.predict(SHORT))
  for text, row in zip(texts, found):
    assert_equal(row, loop_over_pieces(folder, kind, text))
  # A text of one window has the outputs of a model without windows.
  with run_classifier.Predictor(str(folder.parent / "plain")) as plain:
    np.testing.assert_array_equal(alone, numbers(plain.predict(SHORT)))
    assert np.abs(found - numbers(plain.predict(texts))).max() > 0.01


@pytest.mark.parametrize("kind", MODELS)
def test_exports_join_windows_as_the_predictor(kind, folder_of, tmp_path):
  folder = folder_of(kind)
  with run_classifier.Predictor(str(folder)) as predictor:
    expected = numbers(predictor.predict(PAIRS))
    texts = numbers(predictor.predict(LONG))
  model = signatures_test.unsaved(signatures_test.source_of(folder))
  text_a, text_b = zip(*PAIRS)
  outputs = call(model, "pair", text_a=text_a, text_b=text_b)
  name = "score" if kind == "values" else "probabilities"
  assert_equal(outputs[name].reshape(expected.shape), expected)
  outputs = call(model, "text", text_a=LONG)
  assert_equal(outputs[name].reshape(texts.shape), texts)
  with commands.in_process(export_model) as main:
    out = f"--model_dir={folder}", f"--export_dir={tmp_path}/onnx"
    main(*out, "--format=onnx")
  for engine in "onnxruntime", "openvino":
    with OnnxModel(str(tmp_path / "onnx"), engine) as model:
      assert_equal(numbers(model.predict(PAIRS)), expected)


def test_blocks_of_a_file_count_windows(folder_of):
  with run_classifier.Predictor(str(folder_of("mean"))) as predictor:
    texts = (LONG + SHORT) * 3
    sizes = [len(pieces_of(text)) for text in texts]
    blocks = [*predictor.blocks(iter(texts), 10)]
  assert [text for block in blocks for text in block] == texts
  counts = [sum(len(pieces_of(text)) for text in block) for block in blocks]
  assert sum(counts) == sum(sizes)
  assert all(10 <= count < 10 + max(sizes) for count in counts[:-1])


# Sentence vectors


def test_vectors_are_means_of_those_of_windows(tmp_path, caplog):
  spec = {"pooling": "mean", "normalize": True}
  spec |= {"prompts": {"query": "is it "}, "default_prompt": None}
  script = {"script": "run_embeddings", "embedding": spec}
  plain = make_model(tmp_path / "plain", **script)
  folder = make_model(tmp_path / "model", **script, long_texts="windows")
  words = LONG[2].split()
  room = ROOM - 2  # beside the prompt
  pieces = [
    " ".join(words[start : start + room])
    for start in range(0, len(words) - room + room // 2, room // 2)
  ]
  with run_embeddings.Predictor(str(plain)) as model:
    mean = model.encode(pieces, prompt="query").mean(axis=0)
    alone = model.encode(SHORT, prompt="query")
  with run_embeddings.Predictor(str(folder)) as model:
    (found,) = model.encode(LONG[2:], prompt="query")
    np.testing.assert_array_equal(model.encode(SHORT, prompt="query"), alone)
    expected = model.encode(LONG + SHORT)
  assert_equal(found, mean / np.linalg.norm(mean))
  exported = signatures_test.unsaved(signatures_test.source_of(folder))
  outputs = call(exported, "embed_query", text=LONG[2:])
  assert_equal(outputs["vectors"], [found])
  assert_equal(call(exported, "embed", text=LONG + SHORT)["vectors"], expected)
  texts = tmp_path / "texts.txt"
  texts.write_text("".join(f"{text}\n" for text in LONG + SHORT))
  windows, model = "--long_texts=windows", f"--init_checkpoint={plain}"
  with commands.in_process(run_embeddings) as main:
    out = f"--output_dir={tmp_path}/out", f"--predict_file={texts}"
    main("--do_predict", model, *out, windows)
  assert_equal(np.load(tmp_path / "out" / "texts_vectors.npy"), expected)
  with commands.in_process(extract_features) as main:
    files = f"--input_file={texts}", f"--output_file={tmp_path}/x.npz"
    # As the model was trained.
    main(f"--init_checkpoint={folder}", *files, "--output_format=npz")
    assert_equal(np.load(tmp_path / "x.npz")["vectors"], expected)
    main(model, *files, "--output_format=npz", "--pooling=mean", windows)
    pooled = np.load(tmp_path / "x.npz")["vectors"]
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    assert_equal(pooled[-2:], expected[-2:])
    caplog.clear()
    main(model, *files, "--pooling=mean", windows, "--doctor")
    assert "checked 5 of 5" in caplog.text and "lose" not in caplog.text
    with pytest.raises(InputError, match="select them with --pooling"):
      main(model, *files, "--layers=-1", windows)


# Rerankers


@pytest.mark.parametrize("long_texts", ["head_tail", "windows"])
def test_all_engines_rank_long_documents_equally(long_texts, tmp_path):
  kind = signatures_test.MODELS["ranking"] | {"query_prefix": "is it "}
  plain = make_model(tmp_path / "plain", **kind)
  folder = make_model(tmp_path / "model", **kind, long_texts=long_texts)
  query, documents = "the cat", SHORT + LONG
  num_query = len(f"is it {query}".split())
  room = MAX_SEQ_LENGTH - 3 - num_query
  with run_reranker.Predictor(str(plain)) as model:
    truncated = model.score([(query, text) for text in documents])
    alone = model.score([(query, text) for text in SHORT])
    best = []
    for text in LONG:
      words = text.split()
      count = max(len(words) - room + room // 2 - 1, 0) // (room // 2) + 1
      pieces = [words[n * (room // 2) :][:room] for n in range(count)]
      if long_texts == "head_tail":
        head = (room + 2) // 4
        pieces = [words[:head] + words[head - room :]]
      pairs = [(query, " ".join(piece)) for piece in pieces]
      best.append(model.score(pairs).max())
  with run_reranker.Predictor(str(folder)) as model:
    found = model.score([(query, text) for text in documents])
    ranked = model.rank(query, documents)
    # In a batch of the same rows, texts of one window have the same score.
    again = model.score([(query, text) for text in SHORT])
    np.testing.assert_array_equal(again, alone)
  assert np.abs(found - truncated).max() > 1e-4
  assert_equal(found[len(SHORT) :], best)
  exported = signatures_test.unsaved(signatures_test.source_of(folder))
  outputs = call(
    exported, "pair", text_a=[query] * len(documents), text_b=documents
  )
  assert_equal(outputs["score"], found)
  outputs = call(exported, "rank", query=query, documents=documents)
  assert_equal(outputs["scores"], found)
  assert outputs["order"].tolist() == [row.index for row in ranked]
  with commands.in_process(export_model) as main:
    out = f"--model_dir={folder}", f"--export_dir={tmp_path}/onnx"
    main(*out, "--format=onnx")
  for engine in "onnxruntime", "openvino":
    with OnnxModel(str(tmp_path / "onnx"), engine) as model:
      assert_equal(model.score([(query, text) for text in documents]), found)
      assert [row.index for row in model.rank(query, documents)] == [
        row.index for row in ranked
      ]


def test_a_reranker_is_trained_on_truncated_documents(tmp_path, caplog):
  tiny_reranker.write_data(tmp_path)
  rows = [f"{q}\t{' '.join([d] * 9)}\n" for q, d, *_ in LISTS]
  (tmp_path / "long.tsv").write_text("".join(rows))

  def records(output_dir, *more):
    with commands.in_process(run_reranker) as main:
      main(
        *tiny_reranker.flags(tmp_path, output_dir=output_dir),
        *(*tiny_reranker.training(tmp_path), "--num_train_epochs=0.5"),
        *("--max_seq_length=10", *more),
      )
    return (output_dir / "train.tf_record").read_bytes()

  predict = "--do_predict", f"--predict_file={tmp_path}/long.tsv"
  windows = tmp_path / "windows"
  encoded = records(windows, *predict, "--long_texts=windows")
  assert "Training truncates texts" in caplog.text
  assert encoded == records(tmp_path / "cut")
  assert encoded != records(tmp_path / "both", "--long_texts=head_tail")
  lines = read_jsonl(windows / "long_predictions.jsonl")
  with run_reranker.Predictor(str(windows)) as model:
    pairs = [(line["query"], line["document"]) for line in lines]
    assert max(model.encode_windows(pairs)[0]) > 1
    assert_equal([line["score"] for line in lines], model.score(pairs))


# Training


VOCAB = tiny_classifier.VOCAB
CONFIG = tiny_model.config(
  len(VOCAB),
  hidden_dropout_prob=0.0,
  attention_probs_dropout_prob=0.0,
  initializer_range=0.2,
)
CONFIG.classifier_dropout = 0.0
TEXTS = [" ".join(VOCAB[5:] * n)[:size] for n, size in ((1, 20), (3, 200))]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with a small model's files, and texts of two lengths."""
  place = tmp_path_factory.mktemp("windows")
  tiny_model.write_files(place, VOCAB, CONFIG)
  rows = [f"{TEXTS[n % 2]}\t{'ab'[n % 3 == 0]}\n" for n in range(8)]
  for name in ("train", "dev", "short"):
    used = rows[::2] if name == "short" else rows
    (place / f"{name}.tsv").write_text("".join(used))
  (place / "texts.txt").write_text("\n".join(TEXTS) + "\n")
  return place


def flags(place, output_dir, *more, **changed):
  """Flags of the script in `output_dir`, and more."""
  values = {"task_name": "tsv", "data_dir": place, "xla": "off"}
  values |= {"output_dir": output_dir, "train_batch_size": 4}
  return [*tiny_classifier.flags(place, **(values | changed)), *more]


@pytest.fixture(scope="module")
def classify(place):
  """Runs the script in `output_dir` with more flags."""
  with commands.in_process(run_classifier) as main:

    def classify(output_dir, *more, **changed):
      main(*flags(place, output_dir, *more, **changed))
      return output_dir

    yield classify


# Of a training with an evaluation every eight steps.
TRAINING = "--do_train", "--long_texts=windows", "--eval_steps=8"


@pytest.fixture(scope="module")
def trained(classify, place):
  """A folder of a model that is trained on windows."""
  predict = "--do_predict", f"--predict_file={place}/texts.txt"
  return classify(place / "out", *TRAINING, "--do_eval", *predict)


def test_metrics_and_predictions_are_of_texts(trained, place):
  predicted = read_jsonl(trained / "texts_predictions.jsonl")
  rows = np.array([[*line["probabilities"].values()] for line in predicted])
  with run_classifier.Predictor(str(trained)) as predictor:
    expected = numbers(predictor.predict(TEXTS))
  assert_equal(rows, expected)
  # Those of the same texts are the same.
  labels = [line.split("\t") for line in (place / "dev.tsv").open()]
  gold = ["ab".index(label.strip()) for _, label in labels]
  of_text = np.array([expected[TEXTS.index(text)] for text, _ in labels])
  results = result_files.read_results(str(trained / "eval_results.txt"))
  losses = -np.log(of_text[range(8), gold])
  assert results["eval_loss"] == pytest.approx(losses.mean(), abs=1e-5)
  right = of_text.argmax(axis=1) == gold
  assert results["eval_accuracy"] == pytest.approx(right.mean())
  assert len(read_jsonl(trained / "eval_predictions.jsonl")) == 8
  # The window is a part of the text.
  assert predicted[0]["window"] == {"start": 0, "end": len(TEXTS[0])}
  with run_classifier.Predictor(str(trained)) as predictor:
    rows = predictor.run(predictor.encode_windows(TEXTS[1:])[1])
  label = "ab".index(predicted[1]["label"])
  best = np.argmax([logits[label] for _, logits in rows])
  (start, end), words = predicted[1]["window"].values(), 14
  first = (words // 2) * best
  assert TEXTS[1][start:end].split() == TEXTS[1].split()[first:][:words]


def test_a_training_on_short_texts_is_that_of_truncation(classify, tmp_path):
  outs = [
    classify(
      tmp_path / cut,
      *("--do_train", "--do_eval", f"--long_texts={cut}"),
      train_file="short.tsv",
      dev_file="short.tsv",
    )
    for cut in ("truncate", "windows")
  ]
  first, second = ((out / "eval_results.txt").read_text() for out in outs)
  assert first == second
  weights = [rewrite.read_weights(str(out)) for out in outs]
  for name, value in weights[0].items():
    np.testing.assert_array_equal(weights[1][name], value, name)


@pytest.mark.parametrize(
  ("kind", "label_weights"),
  [
    ("classification", None),
    ("classification", [3.0, 1.0]),
    ("multi_label", [3.0, 1.0]),
    ("regression", None),
  ],
)
def test_each_text_has_the_same_weight_in_the_loss(kind, label_weights):
  draw = np.random.default_rng(0)
  ids = draw.integers(5, len(VOCAB), [3, 8], np.int32)
  labels = np.array([0, 1, 1], np.int32)
  if kind != "classification":
    labels = labels.astype(np.float32)
  if kind == "multi_label":
    labels = np.stack([labels, 1 - labels], axis=1)

  def step(texts, num_micro_batches=1, **more):
    tokens = dict.fromkeys(["input_mask", "segment_ids"], np.ones_like(ids))
    tokens |= {"input_ids": ids, "label_ids": labels}
    batch = {name: value[texts][np.newaxis] for name, value in tokens.items()}
    if more:
      shares = [1 / texts.count(text) for text in texts]
      batch["example_weights"] = np.array([shares], np.float32)
    model_fn = run_classifier.model_fn_builder(
      *(CONFIG, 1 if kind == "regression" else 2, None, 1e-3, 4, 0, False),
      *(False, kind),
      options=StepOptions(clip_norm=None),
      num_micro_batches=num_micro_batches,
      label_weights=label_weights,
      **more,
    )
    return run_outputs.train_steps(model_fn, batch)

  (whole_loss,), whole = step([0, 1, 2])
  # The second text has two windows, of the same tokens.
  for num_micro_batches in (1, 2):
    (loss,), found = step(
      [0, 1, 1, 2], num_micro_batches, texts_per_window=3 / 4
    )
    times = 1.0
    if kind == "classification" and label_weights:
      # The weights of the labels of texts, and those of windows as texts.
      times = (3 + 1 + 1) / ((3 + 1 + 1 + 1) * 3 / 4)
    assert loss == pytest.approx(times * whole_loss, rel=1e-5)
    for name in whole:
      if name.endswith("/adam_m"):  # the gradient as the optimizer has it
        np.testing.assert_allclose(
          found[name], times * whole[name], rtol=1e-4, atol=1e-7, err_msg=name
        )


def test_two_replicas_train_as_one(classify, tmp_path):
  losses = []
  for number, flags in enumerate(
    [
      (),
      ("--distribution=mirrored", "--num_replicas=2"),
    ]
  ):
    out = classify(
      tmp_path / str(number),
      *("--do_train", "--do_eval", "--long_texts=windows", *flags),
      num_train_epochs=0.2,
      class_weights="a:2",
    )
    losses.append(result_files.read_results(str(out / "eval_results.txt")))
  for found in losses[1:]:
    assert found["eval_loss"] == pytest.approx(losses[0]["eval_loss"], abs=2e-6)


# The script, killed in the evaluation of step 16.
KILLED = """
import os, sys
import run_classifier
from bertlib.cli import app
from bertlib.tasks.classification.settings import ClassifierSettings

decoding, calls = run_classifier.classification_decoding, []
losses, sys.argv = decoding.losses, sys.argv[1:]

def counted(*arguments, **more):
  calls.append(arguments)
  if len(calls) == 2:
    os.kill(os.getpid(), 9)
  return losses(*arguments, **more)

decoding.losses = counted
app.parse_flags(ClassifierSettings)
app.run(run_classifier.main)
"""


@pytest.mark.process
def test_a_killed_training_ends_with_the_same_weights(
  classify, trained, place, tmp_path
):
  arguments = flags(place, tmp_path, *TRAINING)
  done = commands.run_code(KILLED, "run_classifier.py", *arguments)
  assert done.returncode == -signal.SIGKILL, done.stderr
  assert run_outputs.steps_done(tmp_path) == 16
  # Without the flag: it is kept.
  classify(tmp_path, "--do_train", "--eval_steps=8")
  found, straight = (
    run_outputs.read_variables(str(folder / "model.ckpt-21"))
    for folder in (tmp_path, trained)
  )
  run_outputs.assert_same_bits(found, straight)


# Refusals and warnings


def test_flags_that_contradict_the_model_are_refused(classify, trained, place):
  predict = "--do_predict", f"--predict_file={place}/texts.txt"
  with pytest.raises(InputError, match="long_texts 'windows', but this run's"):
    classify(trained, *predict, "--long_texts=truncate")


def test_windows_are_refused_where_they_cannot_be_joined(classify, tmp_path):
  flags = "--do_eval", "--long_texts=windows"
  with pytest.raises(InputError, match="not for multiple choice"):
    classify(tmp_path, *flags, task_name="SWAG", data_dir=tmp_path)
  with pytest.raises(InputError, match="not on a TPU"):
    classify(tmp_path, *flags, "--use_tpu", "--tpu_name=local")


def test_a_text_of_thousands_of_windows_is_named(folder_of, caplog):
  with run_classifier.Predictor(str(folder_of("mean"))) as predictor:
    list(predictor.blocks(["the cat", "the cat " * 9000], 100))
  assert "text 2: has" in caplog.text


def test_the_doctor_names_what_is_cut_and_what_windows_cost(
  classify, tmp_path, caplog
):
  classify(tmp_path / "out", "--do_train", "--doctor")
  assert "lose 58.6% of all tokens" in caplog.text
  assert "--long_texts=windows, in about 4.1 times the time" in caplog.text
