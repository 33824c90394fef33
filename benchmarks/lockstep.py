"""Takes the same training steps as PyTorch, and compares losses and norms.

Both sides start from the same encoder and head, and get the same batches, in
float32 without dropout, with the same optimizer and learning rates. The peer is
transformers, and sentence-transformers for CoSENT and reranking. It clips by
the gradient norm of google-research/bert, which is not that of PyTorch. Fails
if a loss differs by more than `MAX_DIFFERENCE`.

    python -m benchmarks.lockstep --data_dir=DATA --model_dir=output/minilm \
        --hugging_face_dir=DIR_OF_THE_SAME_MODEL
"""

from __future__ import annotations

import operator
import os
import tempfile
from collections.abc import Iterable
from typing import Any

from benchmarks import mrpc_epoch, results, side_by_side, training_step
from benchmarks.reranking import NUM_DOCUMENTS, read_lists
from benchmarks.side_by_side import FLAGS, Answers, Settings
from benchmarks.training_step import RENAMED

MAX_DIFFERENCE = 1e-4  # of losses, relative
HEADS = ("task", "loss", "gradient norm", "norm of PyTorch")

# Model of the peer, by task.
TASKS = {
  "classification": "BertForSequenceClassification",
  "regression": "BertForSequenceClassification",
  "spans": "BertForQuestionAnswering",
  "tags": "BertForTokenClassification",
  "CoSENT": "CoSENTLoss",
  "reranking": "ListNetLoss",
}
# Features with the same name in transformers.
SAME = ("input_ids", "start_positions", "end_positions", "scores", "labels")


def main(_: list[str]) -> None:
  """Trains both sides, prints the table, and checks the losses."""
  from bertlib.cli.errors import InputError

  side_by_side.check_peers("sentence-transformers", "torch", "transformers")
  found = [compare(task) for task in FLAGS.tasks]
  print(*HEADS, sep=" | ")
  for result in found:
    print(result.work, *map("{:.1e}".format, differences(result)), sep=" | ")
  failed = [r.work for r in found if differences(r)[0] > MAX_DIFFERENCE]
  if failed:
    raise InputError(
      f"{', '.join(failed)}: losses differ by more than {MAX_DIFFERENCE:g}"
    )


def compare(task: str) -> results.Result:
  """Trains both sides on one task."""
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "batches.npz")
    write_batches(task, path)
    answers, _ = side_by_side.one_by_one(
      side_by_side.chosen([ours, pytorch], task=task, path=path), 1, 0
    )
  more = {
    key: {name: answer[key] for name, answer in answers.items()}
    for key in ("losses", "norms")
  }
  return side_by_side.report(task, answers, {}, [], more=more)


def differences(result: results.Result) -> list[float]:
  """Largest relative differences: of the losses, and of both gradient norms."""
  losses, norms = (
    [result.more[key][side] for side in ("ours", "pytorch")]
    for key in ("losses", "norms")
  )
  pairs = [list(zip(*losses)), *([(*norms[0], norm)] for norm in norms[1])]
  return [max(abs(a - b) / abs(b) for a, b in pair) for pair in pairs]


# Batches


def write_batches(task: str, path: str) -> None:
  """Writes the batches of all steps, and the initial weights of the head.

  Each feature is an array [steps, B, ...]. Sequences are as long as the longest
  of all.
  """
  import numpy as np

  rng = np.random.default_rng(1)
  rows = read_rows(task)
  ranks = task == "reranking"
  shape = FLAGS.steps, FLAGS.batch_size // (NUM_DOCUMENTS if ranks else 1)
  side_by_side.check_number(task, len(rows), shape[0] * shape[1])
  order = rng.permutation(len(rows))[: shape[0] * shape[1]]
  data = {
    name: np.array([rows[index][name] for index in order])
    for name in (*RENAMED, *SAME, "texts")
    if name in rows[0]
  }
  length = data["input_mask"].sum(axis=-1).max()
  for name, array in data.items():
    if array.ndim > 1:
      array = array[..., :length]
    dtype = {"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype)
    data[name] = array.reshape(*shape, *array.shape[1:]).astype(dtype)
  num_outputs = {"regression": 1, "reranking": 1, "CoSENT": 0}.get(task, 2)
  if task == "tags":
    num_outputs = int(data["label_ids"].max()) + 1
  if num_outputs:
    hidden_size = mrpc_epoch.read_config(FLAGS).hidden_size
    data["head"] = rng.normal(0.0, 0.02, [num_outputs, hidden_size])
  np.savez(path, **data)


def read_rows(task: str) -> list[dict[str, Any]]:
  """The training set of a task, padded: features by name."""
  import tokenization
  from bertlib.data import model_inputs
  from bertlib.tasks.classification import (
    classification,
    classification_records,
  )
  from bertlib.tasks.ner import ner, ner_files
  from bertlib.tasks.squad import original_api, squad_windows

  length = FLAGS.max_seq_length
  tokenizer = tokenization.FullTokenizer(
    os.path.join(FLAGS.model_dir, "vocab.txt")
  )
  folder = FLAGS.data_dir
  squad_file = os.path.join(folder, "squad", "train-v1.1.part.json")
  if task == "spans":
    windows = squad_windows.convert_examples_to_windows(
      original_api.read_squad_examples(squad_file, True, False),
      tokenizer,
      squad_windows.WindowSettings(length, length // 2, length // 2, True),
    )
    rows = squad_windows.window_records(windows, length, tokenizer)
    # The softmax of transformers includes padding.
    return [row for row in rows if all(row["input_mask"])]
  if task == "reranking":
    return lists_of_documents(squad_file, tokenizer)
  if task == "tags":
    path = os.path.join(folder, "ner", "wnut17", "train.conll")
    sentences = ner_files.read_sentences(path, ner_files.Columns())
    labels = sorted({tag for sentence in sentences for tag in sentence.tags})
    windows = list(ner.make_windows(sentences, tokenizer, length))
    return ner.window_records(sentences, windows, length, labels)
  name = "MRPC" if task == "classification" else "STS-B"
  processor = classification.PROCESSORS[name.lower().replace("-", "")]()
  examples = processor.get_train_examples(os.path.join(folder, "glue", name))
  if task == "CoSENT":
    return [
      {"scores": float(example.label)}
      | stacked(
        model_inputs.encode_pair(tokenizer, text, None, length)
        for text in (example.text_a, example.text_b)
      )
      for example in examples
    ]
  features = classification_records.convert_examples_to_features(
    examples, processor.get_labels(), length, tokenizer
  )
  return [feature.as_record() for feature in features]


def lists_of_documents(path: str, tokenizer: Any) -> list[dict[str, Any]]:
  """Questions of SQuAD with the first words of paragraphs, none truncated."""
  from bertlib.data import model_inputs

  labels = [1.0] + [0.0] * (NUM_DOCUMENTS - 1)
  rows = []
  for question, texts in zip(*read_lists(path, 2000)):
    documents = [" ".join(text.split()[:50]) for text in texts]
    encoded = [
      model_inputs.encode_pair(tokenizer, question, text, FLAGS.max_seq_length)
      for text in documents
    ]
    if not any(each.num_truncated_tokens for each in encoded):
      row = {"labels": labels, "texts": [question, *documents]}
      rows.append(row | stacked(encoded))
  return rows


def stacked(encoded: Iterable[Any]) -> dict[str, list]:
  """Features of several texts in one row, [texts, S] by name."""
  from bertlib.data import model_inputs

  names = model_inputs.TOKEN_FEATURES
  columns = zip(*map(operator.attrgetter(*names), encoded))
  return dict(zip(names, columns))


# Sides


def ours(settings: Settings) -> Answers:
  """Steps of this project."""
  import numpy as np
  import tensorflow.compat.v1 as tf

  import optimization

  with np.load(settings.path) as file:
    data = dict(file)
  head = data.pop("head", None)
  data.pop("texts", None)
  # The second gradients, of `norm`, wait for compiled calls of the first ones,
  # see findings/compiled_call_as_control_dependency.sh.
  session_config = tf.ConfigProto()
  rewrites = session_config.graph_options.rewrite_options
  rewrites.dependency_optimization = rewrites.OFF
  with tf.Graph().as_default(), tf.Session(config=session_config) as session:
    features = {
      name: tf.placeholder(array.dtype, array.shape[1:])
      for name, array in data.items()
    }
    model_fn, description = make_model_fn(settings, head)
    params = {"batch_size": settings.batch_size}
    spec = model_fn(features, None, "train", params)
    gradients = optimization.gradients_of(spec.loss)
    _, norm = optimization.mean_over_replicas(gradients)
    session.run(tf.global_variables_initializer())
    for variable in tf.trainable_variables():
      if optimization.name_of(variable).endswith("output_weights"):
        session.run(variable.assign(head.astype(np.float32)))
    feeds = [
      {features[name]: array[step] for name, array in data.items()}
      for step in range(settings.steps)
    ]
    norms = [session.run(norm, feeds[0])]
    losses = [session.run([spec.loss, spec.train_op], f)[0] for f in feeds]
  yield {
    "description": description,
    "losses": [float(loss) for loss in losses],
    "norms": [float(norm) for norm in norms],
  }


def make_model_fn(settings: Settings, head: Any) -> tuple[Any, str]:
  """The `model_fn` of the task without dropout, and how it is computed."""
  import modeling
  import run_classifier
  import run_embeddings
  import run_ner
  import run_reranker
  import run_squad
  from bertlib.settings import embedding_spec
  from bertlib.tasks.embeddings import embedding_losses

  script, arguments = {
    "classification": (run_classifier, {"num_labels": 2}),
    "regression": (run_classifier, {"num_labels": 1, "kind": "regression"}),
    "spans": (run_squad, {"mask_padding": True}),
    "tags": (run_ner, {"num_labels": 0 if head is None else len(head)}),
    "reranking": (run_reranker, {"loss": "listwise"}),
    "CoSENT": (
      run_embeddings,
      {
        "spec": embedding_spec.EmbeddingSpec(),
        "loss": embedding_losses.LossOptions("cosent"),
      },
    ),
  }[settings.task]
  config = mrpc_epoch.read_config(settings)
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
  # Dropout of a head is fixed, as in the original.
  modeling.dropout = lambda tensor, *_: tensor
  keywords = training_step.training_plan(
    settings,
    config,
    settings.max_seq_length,
    precision="float32",
    bias_correction=True,
  )
  model_fn = training_step.make_model_fn(
    script,
    config,
    init_checkpoint=os.path.join(settings.model_dir, "bert_model.ckpt"),
    learning_rate=settings.learning_rate,
    num_train_steps=settings.steps,
    num_warmup_steps=int(0.1 * settings.steps),
    **keywords,
    **arguments,
  )
  return model_fn, training_step.describe(keywords)


def pytorch(settings: Settings) -> Answers:
  """Steps of transformers, or of sentence-transformers."""
  import numpy as np
  import torch

  from benchmarks.torch_training import make_optimizer, make_schedule

  with np.load(settings.path) as file:
    arrays = dict(file)
  texts = arrays.pop("texts", None)
  batches = {name: torch.from_numpy(array) for name, array in arrays.items()}
  head = batches.pop("head", None)
  data = {} if texts is None else {"texts": texts}
  for name, tensor in batches.items():
    if not tensor.is_floating_point():
      # transformers has -100 at positions without a label.
      tensor = tensor.long().masked_fill(tensor < 0, -100)
    data[RENAMED.get(name, name)] = tensor
  model, loss_fn = make_peer(settings, head)
  model.eval()  # no dropout
  embeddings = next(
    m for m in model.modules() if isinstance(m, torch.nn.Embedding)
  )
  rows = []  # gradients of the word embeddings, before they are summed

  def keep_gradient(module, inputs, output):
    output.register_hook(rows.append)

  embeddings.register_forward_hook(keep_gradient)
  optimizer = make_optimizer(model, settings.learning_rate, fused=False)
  schedule = make_schedule(optimizer, settings.steps)
  losses, norms = [], []
  for step in range(settings.steps):
    loss = loss_fn({name: tensor[step] for name, tensor in data.items()})
    loss.backward()
    trained = [w for w in model.parameters() if w.grad is not None]
    others = [w.grad for w in trained if w is not embeddings.weight]
    norm = torch.nn.utils.get_total_norm([*rows, *others])
    if not norms:
      own = torch.nn.utils.get_total_norm([w.grad for w in trained])
      norms = [norm.item(), own.item()]
    torch.nn.utils.clip_grads_with_norm_(trained, 1.0, norm)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    rows.clear()
    losses.append(loss.item())
  yield {"description": "float32", "losses": losses, "norms": norms}


def make_peer(settings: Settings, head: Any) -> tuple[Any, Any]:
  """The peer's model, and its loss as a function of a batch."""
  if settings.task == "CoSENT":
    import sentence_transformers
    from sentence_transformers.sentence_transformer import losses

    model = sentence_transformers.SentenceTransformer(
      settings.hugging_face_dir, device="cpu"
    )
    cosent = losses.CoSENTLoss(model)

    def pair_loss(batch):
      scores = batch.pop("scores")
      return cosent(
        [{n: t[:, text] for n, t in batch.items()} for text in (0, 1)], scores
      )

    return model, pair_loss

  if settings.task == "reranking":
    from sentence_transformers import cross_encoder

    reranker = cross_encoder.CrossEncoder(
      settings.hugging_face_dir, num_labels=1, device="cpu"
    )
    listnet = cross_encoder.losses.ListNetLoss(reranker)

    def list_loss(batch):
      queries, *documents = batch["texts"].T.tolist()
      # The softmax of 50 and 0 is 1 and 0.
      return listnet([queries, [*zip(*documents)]], [*50 * batch["labels"]])

    set_head(reranker.model.classifier, head)
    return reranker, list_loss

  from benchmarks.torch_training import load

  model = load(
    TASKS[settings.task], settings.hugging_face_dir, num_labels=len(head)
  )
  set_head(
    model.qa_outputs if settings.task == "spans" else model.classifier, head
  )
  return model, lambda batch: model(**batch).loss


def set_head(layer: Any, weights: Any) -> None:
  """Gives an output layer of PyTorch these weights, and no bias."""
  import torch

  with torch.no_grad():
    layer.weight.copy_(weights)
    layer.bias.zero_()


if __name__ == "__main__":
  side_by_side.run(
    main,
    **side_by_side.ENCODER,
    data_dir="Folder with glue, squad and ner.",
    tasks=(TASKS, "Tasks."),
    steps=(50, "Training steps."),
    learning_rate=(5e-5, "Its peak."),
  )
