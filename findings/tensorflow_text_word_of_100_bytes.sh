#!/usr/bin/env bash
# A Thai clause of 34 letters is one [UNK] in tensorflow-text.
#
# Versions: tensorflow-cpu 2.21.0, tensorflow-text 2.21.1, tokenizers 0.23.3.
# Expected: WordPiece gives up on words above 100 characters, as in BERT: junk.
# Happens: tensorflow-text counts bytes of UTF-8. A Thai letter has three, so
#   the limit is 33 letters; and since Thai, Lao, Khmer and Burmese are written
#   without spaces between words, a "word" here is a whole clause. The
#   vocabulary of this script has every letter of the text.
# Matters: ordinary sentences become a single [UNK] with no message, in a model
#   that is multilingual, and only in the exported graph: tokenizers, with the
#   same vocabulary, splits the clause. max_bytes_per_word=300 gives the limit
#   of BERT for these scripts.
# Output:
#   43 letters, 129 bytes
#   tokenizers:                              43 tokens, first ค
#   tensorflow-text:                         1 tokens, first [UNK]
#   tensorflow-text, max_bytes_per_word=300: 43 tokens, first ค
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 tokenizers==0.23.3 || exit 2
# It requires tensorflow, which would be installed over tensorflow-cpu.
"$folder/venv/bin/pip" install --quiet --no-compile --no-deps \
  tensorflow-text==2.21.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import tensorflow as tf
import tensorflow_text
import tokenizers

# "The responsibility to the society of Thailand and its people."
CLAUSE = "ความรับผิดชอบต่อสังคมของประเทศไทยและประชาชน"
LETTERS = sorted(set(CLAUSE))
VOCABULARY = ["[UNK]", "[CLS]", "[SEP]", *LETTERS]
VOCABULARY += ["##" + letter for letter in LETTERS]


def by_tensorflow_text(**limit):
  table = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(
      VOCABULARY, tf.range(len(VOCABULARY), dtype=tf.int64)
    ),
    num_oov_buckets=1,
  )
  tokenizer = tensorflow_text.BertTokenizer(
    table, token_out_type=tf.string, **limit
  )
  tokens = tokenizer.tokenize([CLAUSE]).flat_values.numpy()
  return [token.decode() for token in tokens]


def by_tokenizers():
  tokenizer = tokenizers.BertWordPieceTokenizer(
    {token: i for i, token in enumerate(VOCABULARY)},
    lowercase=False,
    strip_accents=False,
  )
  return tokenizer.encode(CLAUSE, add_special_tokens=False).tokens


whole, cut = by_tokenizers(), by_tensorflow_text()
raised = by_tensorflow_text(max_bytes_per_word=300)
print(f"{len(CLAUSE)} letters, {len(CLAUSE.encode())} bytes")
for name, tokens in (
  ("tokenizers:", whole),
  ("tensorflow-text:", cut),
  ("tensorflow-text, max_bytes_per_word=300:", raised),
):
  print(f"{name:41}{len(tokens)} tokens, first {tokens[0]}")
if cut != ["[UNK]"] or whole != raised or len(whole) != len(CLAUSE):
  sys.exit("changed: tensorflow-text treats the clause in another way")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
  "$folder/venv/bin/python" "$folder/finding.py"
