"""Wrong input: texts, scores, judgments and models of run_embeddings.py."""

import io

import numpy as np
import wrong_input_world
from wrong_input_files import checkpoint, flip, trained
from wrong_input_row import Row, named

_EVALUATE = "--output_dir={world}/trained_embeddings --nodo_train --do_eval "
_PREDICT = _EVALUATE.replace("--do_eval", "--do_predict")


def embedding(name, arguments="", rule="embeddings", **more):
  return Row(rule, name, "run_embeddings", arguments, **more)


# Rows of texts


def texts(name, content, arguments="", file="train.tsv", rule="embeddings"):
  """A row of a training set; `content` is its text."""
  given = f"--train_file={{case}}/{file} {arguments}"
  return embedding(name, given, rule, files={file: content})


_SCORED = "--text_columns=a,b --score_column=s"
_MATCHES = "--text_columns=a,b --label_column=l"
_TRIPLETS = "--text_columns=a,b,c"
_TEXTS = [
  texts("a pair without a question", "question\tanswer\n\tann sat\n"),
  texts("a pair without an answer", "question\tanswer\nwho sat\t \n"),
  texts("a row with one text", "question\tanswer\nwho sat\n"),
  texts("a score out of range", "a\tb\ts\nann\tbob\t5\n", _SCORED),
  texts("a score that is NaN", "a\tb\ts\nann\tbob\tnan\n", _SCORED),
  texts("a score with an underscore", "a\tb\ts\nann\tbob\t0_1\n", _SCORED),
  texts("a score that is a word", "a\tb\ts\nann\tbob\tgood\n", _SCORED),
  texts("no score", "a\tb\ts\nann\tbob\t1\nann\tcat\t\n", _SCORED),
  texts("a label of a pair", "a\tb\tl\nann\tbob\tyes\n", _MATCHES),
  texts("a negative that is the positive", "a\tb\tc\nx\ty\ty\n", _TRIPLETS),
  texts(
    "an answer that is a list",
    '{"question": "who", "answer": ["ann"]}\n',
    file="train.jsonl",
  ),
  texts(
    "one answer to mine",
    "question\tanswer\na\tb\nc\tb\n",
    "--nodo_train --do_predict --mine_negatives=1",
  ),
  texts(
    "scores to mine",
    "a\tb\ts\nann\tbob\t1\n",
    f"{_SCORED} --nodo_train --do_predict --mine_negatives=1",
  ),
  texts(
    "a range without room",
    "question\tanswer\na\tb\nc\td\n",
    "--nodo_train --do_predict --mine_negatives=3 --range_min=2 --range_max=4",
  ),
  texts("a header again", "question\tanswer\na\tb\nquestion\tanswer\n"),
  texts(
    "a header, columns by number",
    "question\tanswer\na\tb\n",
    "--text_columns=1,2",
  ),
  texts("a quoted line break in .tsv", 'question\tanswer\n"a\nb"\tc\n'),
  texts("white space as JSON lines", " \n", file="train.jsonl"),
  embedding(
    "a table to encode without a column",
    "--do_predict --predict_file={case}/a.csv",
    files={"a.csv": "id,text\n7,the cat\n"},
  ),
  texts(
    "texts of one label",
    "text\tlabel\nann\tx\nbob\tx\n",
    "--text_columns=text --label_column=label",
  ),
  *(
    texts(
      name, content, f"--num_train_epochs=9 {more}", rule="nothing to learn"
    )
    for name, content, more in [
      ("equal scores", "a\tb\ts\nann\tbob\t1\nc\td\t1\n", _SCORED),
      ("equal labels of pairs", "a\tb\tl\nann\tbob\t1\nc\td\t1\n", _MATCHES),
      ("equal answers", "question\tanswer\na\tx\nb\tx\nc\tx\n", ""),
      ("equal questions", "question\tanswer\na\tx\na\ty\na\tz\n", ""),
      (
        "triplets without negatives",
        "a\tb\tc\nx\ty\t\nz\tv\t\n",
        f"{_TRIPLETS} --loss=triplet",
      ),
    ]
  ),
  embedding("a batch of one pair", "--train_batch_size=1", "nothing to learn"),
]

# Queries, corpora, and texts to encode


def beir(name, file, content):
  files = wrong_input_world.beir() | {file: content}
  return embedding(
    name,
    _EVALUATE + "--dev_file={case}/beir",
    files={f"beir/{path}": text for path, text in files.items()},
  )


def judgments(name, row):
  text = f"query-id\tcorpus-id\tscore\n{row}\n"
  return beir(name, "qrels/test.tsv", text)


_SEARCHES = [
  judgments("no id that is in the corpus", "q0\td8\t1\nq1\td9\t1"),
  judgments("an id that no query has", "q7\td0\t1"),
  judgments("a grade that is a word", "q0\td0\tgood"),
  judgments("a grade with an underscore", "q0\td0\t1_0"),
  judgments("no relevant document", "q0\td0\t0"),
  beir(
    "a query without a text", "queries.jsonl", '{"_id": "q0", "text": " "}\n'
  ),
  beir("a repeated id", "corpus.jsonl", '{"_id": "d0", "text": "ann"}\n' * 2),
  embedding(
    "an empty line to encode",
    _PREDICT + "--predict_file={case}/a.txt",
    files={"a.txt": "ann sat\n\nbob sat\n"},
  ),
  embedding(
    "nothing to encode",
    _PREDICT + "--predict_file={case}/a.txt",
    files={"a.txt": ""},
  ),
]

# Models


def vectors(*shape, save=np.save, **changed):
  """Bytes of an .npy file of different numbers, the last one `changed`."""
  array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
  for value in changed.values():
    array[-1, -1] = value
  with io.BytesIO() as file:
    save(file, array)
    return file.getvalue()


def save_equal(value):
  return lambda file, array: np.save(file, np.full_like(array, value))


_DISTILL = "--text_columns=answer --loss=distillation --teacher="


def teacher(name, content, rule="embeddings"):
  given = _DISTILL + "{case}/teacher.npy"
  return embedding(name, given, rule, files={"teacher.npy": content})


_BESIDE = "--init_checkpoint={case}/model.ckpt"
_MODELS = [
  teacher("too few vectors", vectors(3, 8)),
  teacher("vectors without a width", vectors(4)),
  teacher("an empty file of vectors", b""),
  teacher("an .npz file of vectors", vectors(4, 8, save=np.savez)),
  teacher("a vector that is NaN", vectors(4, 8, last=np.nan)),
  teacher("a vector beyond float32", vectors(4, 8, last=1e300)),
  *(
    teacher(
      f"vectors of {name}",
      vectors(4, 8, save=save_equal(value)),
      "nothing to learn",
    )
    for name, value in (("zeros", 0.0), ("ones", 1.0))
  ),
  teacher("vectors that are a text", "1 2 3\n"),
  teacher("vectors of another width", vectors(4, 4)),
  embedding(
    "a file of vectors that is missing",
    _DISTILL + "{case}/teacher.npy",
    kind=OSError,
  ),
  embedding("a teacher that is a classifier", _DISTILL + "{world}/trained"),
  embedding(
    "no config beside the checkpoint",
    f"--bert_config_file= {_BESIDE}",
    files=checkpoint(),
  ),
  embedding(
    "no vocabulary beside the checkpoint",
    f"--vocab_file= {_BESIDE}",
    files=checkpoint(),
  ),
  embedding("a corrupt checkpoint", _BESIDE, files=checkpoint(data=flip(4000))),
  embedding(
    "a corrupt trained checkpoint",
    "--output_dir={case}/trained --nodo_train --do_eval"
    " --dev_file={world}/beir",
    files=trained("trained_embeddings", data=flip(900)),
  ),
]

# Outputs over inputs, and flags out of range


def overwriting(name, file, arguments, content="ann sat\n"):
  return embedding(
    name, "--output_dir={case} " + arguments, files={file: content}
  )


_OUTPUTS = [
  overwriting(
    "pairs to mine",
    "a_negatives.jsonl",
    "--do_predict --mine_negatives=1 --nodo_train"
    " --train_file={case}/a_negatives.jsonl",
    '{"question": "ann", "answer": "sat"}\n',
  ),
  overwriting(
    "texts to encode",
    "a_vectors.npy",
    "--do_predict --predict_file={case}/a_vectors.npy",
  ),
  overwriting(
    "queries",
    "a_results.jsonl",
    "--do_predict --corpus_file={world}/lines.txt"
    " --query_file={case}/a_results.jsonl",
  ),
  overwriting(
    "vectors of a teacher",
    "a_vectors.npy",
    "--text_columns=answer --loss=distillation --teacher={case}/a_vectors.npy",
    vectors(4, 8),
  ),
]

_OUT_OF_RANGE = """
  --temperature=0 --temperature=nan --margin=-1 --top_k=0 --projection_dim=0
  --matryoshka_dims=8,0 --max_score=inf
  --max_seq_length=33 --train_batch_size=5 --gradient_accumulation_steps=3
  --freeze_layers=3 --best_metric=beauty"""
_FLAGS = [embedding(flag, flag) for flag in _OUT_OF_RANGE.split()]

# No files of their own

_ARGUMENTS = """
no such column: --text_columns=question,reply
a column twice: --text_columns=question,question
no columns: --text_columns=
a score of one text: --text_columns=answer --score_column=x
no training set: --train_file=
a training set that is missing: --train_file={case}/a.tsv
no dev set: --do_eval
no dev set during training: --eval_steps=1
scores without a range: --max_score=0
dev scores out of range:
  --do_eval --dev_file={world}/scored.tsv --dev_score_column=score
a folder that is no data set: EVALUATE --dev_file={world}/mrpc
no such split: EVALUATE --dev_file={world}/beir/qrels/dev.tsv
no corpus: PREDICT --query_file={world}/lines.txt
an unknown prompt: PREDICT --predict_file={world}/lines.txt --prompt=queries
an unknown prompt after training:
  --do_predict --predict_file={world}/lines.txt --prompt=query
standard input for two:
  PREDICT --predict_file=- --corpus_file={world}/lines.txt --query_file=-
a teacher without distillation: --teacher={world}/trained
distillation without a teacher: --loss=distillation
a loss of other data: --loss=triplet
a width that is too large: --matryoshka_dims=16,8
a model to use that is missing:
  --nodo_train --do_eval --dev_file={world}/beir --init_checkpoint=
a projection that is missing:
  EVALUATE --dev_file={world}/beir --projection_dim=4
another pooling: --output_dir={world}/trained_embeddings --pooling=cls
a folder of tags: --output_dir={world}/trained_ner
weights that are NaN: --init_checkpoint={world}/nan.ckpt
"""
_OTHERS = named(
  "embeddings",
  "run_embeddings",
  _ARGUMENTS,
  EVALUATE=_EVALUATE,
  PREDICT=_PREDICT,
)

ROWS = [*_TEXTS, *_SEARCHES, *_MODELS, *_OUTPUTS, *_FLAGS, *_OTHERS]
