#!/usr/bin/env bash
# tf.contrib.metrics.f1_score: a classifier that never says yes gets 0.67.
#
# Versions: tf-slim 1.1.0, which has the function of tf.contrib since TensorFlow
#   2, tensorflow-cpu 2.21.0, scikit-learn 1.7.2.
# Expected: given predicted classes, 0 or 1, the F1 of these predictions, as
#   scikit-learn has it. google-research/bert's notebook for movie reviews, and
#   many copies of it, call the function so and print the result as "f1_score".
# Happens: it is the highest F1 of 200 thresholds, and the lowest threshold lies
#   just below 0, where each example counts as positive. The result is the
#   larger of the F1 of the predictions and that of "always yes", which is 2/3
#   for balanced classes.
# Matters: a model that has learned nothing, or the opposite, looks usable, and
#   a score of 0.667 hides in any table. tf.metrics.precision and recall of the
#   same call are right.
# Output:
#   never yes: f1_score 0.667, scikit-learn 0.000
#   all wrong: f1_score 0.667, scikit-learn 0.000
#   one of 8 wrong: f1_score 0.889, scikit-learn 0.889
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 tf-slim==1.1.0 scikit-learn==1.7.2 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import tensorflow.compat.v1 as tf
import tf_slim
from sklearn import metrics

GOLD = [0, 1] * 4
PREDICTED = {
  "never yes": [0] * 8,
  "all wrong": [1, 0] * 4,
  "one of 8 wrong": [1, *GOLD[1:]],
}

tf.disable_eager_execution()
found = []
for name, predicted in PREDICTED.items():
  value, update = tf_slim.metrics.f1_score(
    tf.constant(GOLD), tf.constant(predicted)
  )
  with tf.Session() as session:
    session.run(tf.local_variables_initializer())
    session.run(update)
    pair = float(session.run(value)), metrics.f1_score(GOLD, predicted)
  print(f"{name}: f1_score {pair[0]:.3f}, scikit-learn {pair[1]:.3f}")
  found.append([round(score, 3) for score in pair])
if found != [[0.667, 0], [0.667, 0], [0.889, 0.889]]:
  sys.exit("changed: f1_score is that of the predictions")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/finding.py"
