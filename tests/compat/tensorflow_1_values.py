"""Prints numbers that names of TensorFlow 1 compute.

`tensorflow_1_values.json` is what this program printed on TensorFlow 1.15.5.
Each row is what a script written for TensorFlow 1 needs, most of them projects
beside google-research/bert.
"""

import json

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import array_ops, control_flow_ops, variable_scope

if tf.__version__ > "2":
  from bertlib import tensorflow_1 as tf

random = np.random.RandomState(0)
PREDICTIONS, LABELS = random.rand(3, 8), random.randint(0, 2, (3, 8))
WEIGHTS = random.randint(0, 3, (3, 8))
X = random.randn(3, 5, 8).astype("float32")

rows = {}


def run(*fetches):
  with tf.Session() as session:
    session.run(
      [
        tf.global_variables_initializer(),
        tf.local_variables_initializer(),
        tf.tables_initializer(),
      ]
    )
    for variable in tf.trainable_variables():
      shape = variable.shape.as_list()
      values = np.sin(np.arange(np.prod(shape)) + 1).reshape(shape)
      session.run(tf.assign(variable, tf.constant(values, variable.dtype)))
    return session.run(fetches)


def add(name, *values):
  values = [np.asarray(value, "float64").ravel() for value in values]
  rows[name] = np.concatenate(values).tolist()


def add_metric(name, metric):
  """Updates of three batches, and the value after them."""
  with tf.Graph().as_default():
    feeds = [tf.placeholder(tf.float32, [None]) for _ in range(3)]
    value, update = metric(*feeds)
    with tf.Session() as session:
      session.run(tf.local_variables_initializer())
      updates = [
        session.run(update, dict(zip(feeds, batch)))
        for batch in zip(PREDICTIONS, LABELS, WEIGHTS)
      ]
      add(name, *updates, session.run(value))


def add_layer_norm(name, dtype=tf.float32, **options):
  """Outputs, sums of gradients, and what collections have."""
  with tf.Graph().as_default():
    inputs = tf.constant(X, dtype)
    outputs = tf.contrib.layers.layer_norm(inputs, **options)
    loss = tf.reduce_sum(outputs * tf.cast(tf.range(8), dtype))
    gradients = tf.gradients(loss, [inputs, *tf.global_variables()])
    counts = [
      len(tf.get_collection(collection))
      for collection in ("model_variables", "layer_norm", "outputs")
    ]
    totals = [tf.reduce_sum(tf.abs(gradient)) for gradient in gradients]
    values = run(outputs[0, :2], *totals)
    add(name, *values, counts, len(tf.trainable_variables()))


def add_lstm(name, lengths=None, is_reversed=False, **options):
  """Outputs and states of two calls, and sums of gradients."""
  with tf.Graph().as_default():
    cell = tf.contrib.rnn.LSTMBlockFusedCell(4, **options)
    if is_reversed:
      cell = tf.contrib.rnn.TimeReversedFusedRNN(cell)
    call = {"dtype": tf.float32, "sequence_length": lengths}
    outputs, state = cell(tf.constant(X), **call)
    more, last = cell(tf.constant(X), initial_state=state, **call)
    loss = tf.reduce_sum(more) + tf.reduce_sum(last.c)
    gradients = tf.gradients(loss, tf.trainable_variables())
    totals = [tf.reduce_sum(tf.abs(gradient)) for gradient in gradients]
    add(name, *run(outputs[:, :2], state.c[1], state.h[1], last.h, *totals))
    names = [variable.op.name for variable in tf.global_variables()]
    assert names == ["lstm_fused_cell/kernel", "lstm_fused_cell/bias"], names


metrics = tf.contrib.metrics
for name, metric in {
  "f1": lambda p, y, w: metrics.f1_score(y, p),
  "f1, weights": lambda p, y, w: metrics.f1_score(y, p, w, num_thresholds=11),
  # The notebook of movie reviews.
  "f1, classes": lambda p, y, w: metrics.f1_score(y, tf.to_int32(p > 0.5)),
  "pearson": lambda p, y, w: metrics.streaming_pearson_correlation(p, y),
  "pearson, weights": lambda p, y, w: metrics.streaming_pearson_correlation(
    p[:, None], y, w[:, None]
  ),
  "covariance": lambda p, y, w: metrics.streaming_covariance(p, 99 * y),
  "concat": lambda p, y, w: metrics.streaming_concat(p),
  "concat, max_size": lambda p, y, w: metrics.streaming_concat(
    tf.stack([p, y]), -1, 13
  ),
  "accuracy": lambda p, y, w: metrics.streaming_accuracy(tf.round(p), y, w),
  "auc": lambda p, y, w: metrics.streaming_auc(p, y, curve="PR"),
  "mean": lambda p, y, w: metrics.streaming_mean(p, w),
  "percentage_less": lambda p, y, w: metrics.streaming_percentage_less(p, 0.5),
  "precision": lambda p, y, w: metrics.streaming_precision(tf.round(p), y),
  "sparse_recall": lambda p, y, w: metrics.streaming_sparse_recall_at_k(
    tf.stack([p, 1 - p], 1), tf.to_int64(y), 1
  ),
}.items():
  add_metric(name, metric)

add_layer_norm("layer_norm")
add_layer_norm(  # google-research/adapter-bert
  "layer_norm, collections",
  begin_norm_axis=-1,
  variables_collections=["layer_norm", tf.GraphKeys.GLOBAL_VARIABLES],
  outputs_collections="outputs",
)
add_layer_norm(
  "layer_norm, gamma alone",
  center=False,
  trainable=False,
  begin_params_axis=1,
  activation_fn=tf.nn.relu,
  variables_collections={"gamma": ["layer_norm"]},
)
add_layer_norm("layer_norm, float16", tf.float16, begin_norm_axis=2)
add_lstm("lstm", forget_bias=0.5, cell_clip=0.5)  # dsindex/etagger
add_lstm("lstm, lengths", [3, 1, 0, 2, 2])
add_lstm("lstm, reversed", [3, 1, 0, 2, 2], is_reversed=True)
add_lstm("lstm, reversed whole", is_reversed=True)
with tf.Graph().as_default():  # sogou/SMRCToolkit
  with open("vocab.txt", "w") as file:
    file.write("a\nb\nc\n")
  lookup = tf.contrib.lookup
  strings = tf.constant(["b", "zebra", "a"])
  indices = tf.constant([1, 9, 0], tf.int64)
  tables = [
    lookup.index_table_from_tensor(mapping=["a", "b"], num_oov_buckets=9),
    lookup.index_table_from_file("vocab.txt", default_value=7),
  ]
  words = [
    lookup.index_to_string_table_from_tensor(mapping=["a", "b"]),
    lookup.index_to_string_table_from_file("vocab.txt", default_value="?"),
  ]
  found = [tf.strings.length(table.lookup(indices)) for table in words]
  add("lookup", *run(*(table.lookup(strings) for table in tables), *found))

with tf.Graph().as_default():  # tf_slim, google-research/bleurt, BERT-NER
  counter = variable_scope.variable(2.0, name="counter", trainable=False)
  cond = control_flow_ops.cond(counter > 1, lambda: 10.0, lambda: 20.0)
  loop = control_flow_ops.while_loop(lambda i: i < 5, lambda i: i + 2, [0])
  case = control_flow_ops.case([(counter > 3, lambda: 1)], lambda: 2)
  stacked = array_ops.stack(array_ops.unstack(tf.constant([4, 5])))
  add("moved names", *run(cond, loop, case, stacked))


def model_fn(features, labels, mode):
  weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
  y = weight * features["x"]
  if mode == tf.estimator.ModeKeys.PREDICT:
    exported = {"serving_default": tf.estimator.export.PredictOutput({"y": y})}
    return tf.estimator.EstimatorSpec(mode, {"y": y}, export_outputs=exported)
  loss = tf.reduce_mean((y - labels) ** 2)
  return tf.estimator.EstimatorSpec(
    mode,
    loss=loss,
    train_op=tf.train.GradientDescentOptimizer(0.25).minimize(
      loss, tf.train.get_or_create_global_step()
    ),
    eval_metric_ops={
      "f1": tf.contrib.metrics.f1_score(labels > 1.5, tf.clip_by_value(y, 0, 1))
    },
  )


def input_fn():
  x = np.arange(1, 9, dtype="float32") / 8
  return (
    tf.data.Dataset.from_tensor_slices(({"x": x}, 3 * x)).repeat(9).batch(8)
  )


distribute = tf.contrib.distribute  # HaoyuHu/bert-multi-gpu
for name, options in {
  "num_gpus": {"num_gpus": 2},  # on the CPU where there are none
  "cross_tower_ops": {
    "num_gpus_per_worker": 0,
    "cross_tower_ops": distribute.AllReduceCrossDeviceOps("nccl", num_packs=2),
  },
  "two replicas": {"devices": ["/cpu:0", "/cpu:1"]},
}.items():
  strategy = distribute.MirroredStrategy(**options)
  config = tf.estimator.RunConfig(
    train_distribute=strategy, eval_distribute=strategy
  )
  estimator = tf.estimator.Estimator(model_fn, config=config)
  estimator.train(input_fn, steps=3)
  result = estimator.evaluate(input_fn, steps=2)
  weight = estimator.get_variable_value("weight")
  add(name, weight, result["loss"], result["f1"])

with tf.Graph().as_default():  # google-research/lasertagger
  receiver = tf.estimator.export.build_raw_serving_input_receiver_fn(
    {"x": tf.placeholder(tf.float32, [None])}
  )
exported = estimator.export_saved_model("exported", receiver).decode()
predict = tf.contrib.predictor.from_saved_model(exported)
add("predictor", predict({"x": [1, 2]})["y"])
with open("values.json", "w") as file:
  json.dump(rows, file)
