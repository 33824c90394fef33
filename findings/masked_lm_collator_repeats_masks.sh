#!/usr/bin/env bash
# A seeded masked-LM collator with workers draws the same masks in every epoch.
#
# Versions: transformers 5.24.0, torch 2.14.1.
# Expected: DataCollatorForLanguageModeling(seed=7) makes a run repeatable.
#   Masks are dynamic: each epoch has new ones, and the seed fixes their
#   sequence.
# Happens: so it is with num_workers=0. With workers each epoch starts new ones
#   from a copy of the collator whose generator has not been used, so epochs are
#   equal. With persistent_workers=True, or without a seed, they differ.
# Matters: asking for reproducibility turns dynamic masking into static masking.
#   Nothing tells: the training loss only falls faster than it should.
# Output:
#   seed=7,    num_workers=0: epochs differ
#   seed=7,    num_workers=2: epochs are equal
#   seed=7,    num_workers=2, persistent: epochs differ
#   seed=None, num_workers=2: epochs differ
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  transformers==5.24.0 torch==2.14.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import torch
import transformers

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"word{i}" for i in range(100)]
ROWS = [{"input_ids": [2, *range(5 + row, 35 + row), 3]} for row in range(8)]


def epochs_are_equal(seed, workers, persistent=False):
  tokenizer = transformers.BertTokenizer(
    vocab={word: i for i, word in enumerate(SPECIAL + WORDS)}
  )
  collator = transformers.DataCollatorForLanguageModeling(tokenizer, seed=seed)
  loader = torch.utils.data.DataLoader(
    ROWS,
    batch_size=4,
    collate_fn=collator,
    num_workers=workers,
    persistent_workers=persistent,
  )
  first, second = (
    torch.cat([batch["labels"] for batch in loader]) for _ in range(2)
  )
  equal = torch.equal(first, second)
  print(
    f"seed={seed},{'' if seed is None else '   '} num_workers={workers}"
    f"{', persistent' if persistent else ''}: "
    f"epochs {'are equal' if equal else 'differ'}"
  )
  return equal


if __name__ == "__main__":
  found = [
    epochs_are_equal(7, 0),
    epochs_are_equal(7, 2),
    epochs_are_equal(7, 2, persistent=True),
    epochs_are_equal(None, 2),
  ]
  if found != [False, True, False, False]:
    sys.exit("changed: epochs are equal in other cases than before")
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/finding.py"
