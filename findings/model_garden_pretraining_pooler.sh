#!/usr/bin/env bash
# Pretraining in tensorflow/models leaves the pooler of the encoder untrained.
#
# Versions: tf-models-official 2.20.0, tensorflow-cpu 2.20.0, tf-keras 2.20.1.
# Expected: next-sentence prediction trains the pooler of the encoder, as in
#   BERT, so that pooled_output of a pretrained encoder is a trained feature.
# Happens: the head of next sentences has a dense layer of its own, over the
#   first token. The loss has no gradient for the encoder's pooler, which stays
#   as it was initialized. Both are in the checkpoint: the random one as
#   encoder/layer_with_weights-N, the trained one as next_sentence..pooler_dense.
# Matters: whoever takes `encoder` from such a checkpoint, and its
#   pooled_output, fine-tunes or embeds by a random projection, without a word.
# Output:
#   variables without a gradient: ['pooler_transform/bias:0',
#     'pooler_transform/kernel:0']
#   poolers in the checkpoint: ['encoder/layer_with_weights-6/kernel',
#     'next_sentence..pooler_dense/kernel']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.20.0 tf-keras==2.20.1 tensorflow-text==2.20.0 \
  tensorflow-model-optimization==0.8.0 tensorflow-hub==0.16.1 scipy gin-config \
  immutabledict pyyaml psutil || exit 2
"$folder/venv/bin/pip" install --quiet --no-compile --no-deps \
  tf-models-official==2.20.0 tf_slim==1.1.0 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import tensorflow as tf
from official.nlp.modeling import layers, models, networks

encoder = networks.BertEncoder(
  vocab_size=30,
  hidden_size=32,
  num_layers=2,
  num_attention_heads=4,
  inner_dim=48,
  max_sequence_length=16,
  dict_outputs=True,
)
head = layers.ClassificationHead(32, num_classes=2, name="next_sentence")
model = models.BertPretrainerV2(encoder, classification_heads=[head])
ids = tf.constant([[2, 5, 6, 3]])
batch = {
  "input_word_ids": ids,
  "input_mask": tf.ones_like(ids),
  "input_type_ids": tf.zeros_like(ids),
  "masked_lm_positions": tf.constant([[1, 2]]),
}
with tf.GradientTape() as tape:
  outputs = model(batch)
  loss = tf.reduce_sum(outputs["mlm_logits"] ** 2)
  loss += tf.reduce_sum(outputs["next_sentence"] ** 2)
weights = model.trainable_variables
gradients = tape.gradient(loss, weights)
untrained = sorted(w.name for w, g in zip(weights, gradients) if g is None)
print("variables without a gradient:", untrained)
path = tf.train.Checkpoint(**model.checkpoint_items).write(sys.argv[1])
names = [name for name, _ in tf.train.list_variables(path)]
poolers = [
  name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
  for name in names
  if "pooler" in name or "layer_with_weights-6/" in name
]
poolers = [name for name in poolers if name.endswith("kernel")]
print("poolers in the checkpoint:", poolers)
if len(poolers) != 2 or not all("pooler" in name for name in untrained):
  sys.exit("changed: the encoder has one pooler, or it is trained")
if not untrained:
  sys.exit("changed: the encoder's pooler is trained")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 TF_USE_LEGACY_KERAS=1 \
  "$folder/venv/bin/python" -W ignore "$folder/finding.py" "$folder/checkpoint"
