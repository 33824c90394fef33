"""Wrong input: texts, scores, judgments and models of run_embeddings.py."""

import io

import numpy as np
import wrong_input_world
from wrong_input_files import checkpoint, flip, trained
from wrong_input_row import Row

_EVALUATE = [
  "--output_dir={world}/trained_embeddings",
  "--nodo_train",
  "--do_eval",
]
_PREDICT = [*_EVALUATE[:2], "--do_predict"]


def embedding(name, *arguments, error=None, rule="embeddings", **more):
  """A row whose error names the last argument, if nothing else."""
  return Row(
    rule, name, "run_embeddings", arguments, error or arguments[-1], **more
  )


# Rows of texts


def texts(name, content, *arguments, row=2, file="train.tsv"):
  """A row for a row of a training set."""
  return embedding(
    name,
    f"--train_file={{case}}/{file}",
    *arguments,
    error=f"{{case}}/{file}, row {row}: ",
    files={file: content},
  )


_SCORED = ["--text_columns=a,b", "--score_column=s"]
_MATCHES = ["--text_columns=a,b", "--label_column=l"]
_TRIPLETS = ["--text_columns=a,b,c"]
_TEXTS = [
  texts("a pair without a question", "question\tanswer\n\tann sat\n"),
  texts("a pair without an answer", "question\tanswer\nwho sat\t \n"),
  texts("a row with one text", "question\tanswer\nwho sat\n"),
  texts("a score out of range", "a\tb\ts\nann\tbob\t5\n", *_SCORED),
  texts("a score that is NaN", "a\tb\ts\nann\tbob\tnan\n", *_SCORED),
  texts("a score with an underscore", "a\tb\ts\nann\tbob\t0_1\n", *_SCORED),
  texts("a score that is a word", "a\tb\ts\nann\tbob\tgood\n", *_SCORED),
  texts("no score", "a\tb\ts\nann\tbob\t1\nann\tcat\t\n", *_SCORED, row=3),
  texts("a label of a pair", "a\tb\tl\nann\tbob\tyes\n", *_MATCHES),
  texts("a negative that is the positive", "a\tb\tc\nx\ty\ty\n", *_TRIPLETS),
  texts(
    "an answer that is a list",
    '{"question": "who", "answer": ["ann"]}\n',
    file="train.jsonl",
    row=1,
  ),
  texts("a header again", "question\tanswer\na\tb\nquestion\tanswer\n", row=3),
  texts("a header, columns by number", "question\tanswer\na\tb\n",
        "--text_columns=1,2", row=1),
  texts("a quoted line break in .tsv", 'question\tanswer\n"a\nb"\tc\n'),
  embedding("white space as JSON lines", "--train_file={case}/train.jsonl",
            error="{case}/train.jsonl: is empty", files={"train.jsonl": " \n"}),
  embedding("a table to encode without a column", "--do_predict",
            "--predict_file={case}/a.csv", error="{case}/a.csv: is a table",
            files={"a.csv": "id,text\n7,the cat\n"}),
  embedding(
    "texts of one label",
    "--train_file={case}/train.tsv",
    "--text_columns=text",
    "--label_column=label",
    error="{case}/train.tsv",
    files={"train.tsv": "text\tlabel\nann\tx\nbob\tx\n"},
  ),
  *(
    embedding(
      name,
      "--train_file={case}/train.tsv",
      "--num_train_epochs=9",
      *arguments,
      error="{case}/train.tsv: ",
      rule="nothing to learn",
      files={"train.tsv": content},
    )
    for name, content, arguments in [
      ("equal scores", "a\tb\ts\nann\tbob\t1\nc\td\t1\n", _SCORED),
      ("equal labels of pairs", "a\tb\tl\nann\tbob\t1\nc\td\t1\n", _MATCHES),
      ("equal answers", "question\tanswer\na\tx\nb\tx\nc\tx\n", ()),
      ("equal questions", "question\tanswer\na\tx\na\ty\na\tz\n", ()),
      ("triplets without negatives", "a\tb\tc\nx\ty\t\nz\tv\t\n",
       [*_TRIPLETS, "--loss=triplet"]),
    ]
  ),
  embedding("a batch of one pair", "--train_batch_size=1",
            rule="nothing to learn"),
  embedding("no such column", "--text_columns=question,reply", error="reply"),
  embedding("a column twice", "--text_columns=question,question"),
  embedding("no columns", "--text_columns=", error="--text_columns"),
  embedding("a score of one text", "--text_columns=answer", "--score_column=x",
            error="--text_columns=answer"),
  embedding("no training set", "--train_file=", error="--train_file"),
  embedding("a training set that is missing", "--train_file={case}/a.tsv",
            error="{case}/a.tsv"),
  embedding("no dev set", "--do_eval", error="--dev_file"),
  embedding("no dev set during training", "--eval_steps=1", error="--dev_file"),
  embedding("scores without a range", "--min_score=1", error="--min_score=1"),
  embedding(
    "dev scores out of range",
    "--do_eval",
    "--dev_file={world}/scored.tsv",
    "--dev_score_column=score",
    error="{world}/scored.tsv, row 4: ",
  ),
]  # fmt: skip

# Queries, corpora, and texts to encode


def folder(**changed):
  """Files of a folder in the layout of BEIR, some of them changed."""
  found = wrong_input_world.beir() | changed
  return {f"beir/{name}": text for name, text in found.items()}


def beir(name, file, content, error):
  return embedding(
    name,
    *_EVALUATE,
    "--dev_file={case}/beir",
    error=f"{{case}}/beir/{file}{error}",
    files=folder(**{file: content}),
  )


_HEADER = "query-id\tcorpus-id\tscore\n"
_SEARCHES = [
  beir("no id that is in the corpus", "qrels/test.tsv",
       _HEADER + "q0\td8\t1\nq1\td9\t1\n", ", row 2: "),
  beir("an id that no query has", "qrels/test.tsv",
       _HEADER + "q7\td0\t1\n", ", row 2: "),
  beir("a grade that is a word", "qrels/test.tsv",
       _HEADER + "q0\td0\tgood\n", ", row 2: "),
  beir("a grade with an underscore", "qrels/test.tsv",
       _HEADER + "q0\td0\t1_0\n", ", row 2: "),
  beir("no relevant document", "qrels/test.tsv", _HEADER + "q0\td0\t0\n", ": "),
  beir("a query without a text", "queries.jsonl",
       '{"_id": "q0", "text": " "}\n', ", line 1: "),
  beir("a repeated id", "corpus.jsonl",
       '{"_id": "d0", "text": "ann"}\n' * 2, ", line 2: "),
  embedding("a folder that is no data set", *_EVALUATE,
            "--dev_file={world}/mrpc", error="{world}/mrpc: "),
  embedding("no such split", *_EVALUATE, "--dev_file={world}/beir",
            "--beir_split=dev", error="{world}/beir/qrels/dev.tsv"),
  embedding("an empty line to encode", *_PREDICT,
            "--predict_file={case}/a.txt", error="{case}/a.txt, line 2: ",
            files={"a.txt": "ann sat\n\nbob sat\n"}),
  embedding("nothing to encode", *_PREDICT, "--predict_file={case}/a.txt",
            error="{case}/a.txt", files={"a.txt": ""}),
  embedding("no corpus", *_PREDICT, "--query_file={world}/lines.txt",
            error="--corpus_file"),
  embedding("an unknown prompt", *_PREDICT,
            "--predict_file={world}/lines.txt", "--prompt=queries"),
  embedding("an unknown prompt after training", "--do_predict",
            "--predict_file={world}/lines.txt", "--prompt=query"),
  embedding("standard input for two", *_PREDICT, "--predict_file=-",
            "--corpus_file={world}/lines.txt", "--query_file=-",
            error="standard input"),
]  # fmt: skip

# Models


def vectors(*shape, save=np.save, **changed):
  """Bytes of an .npy file of different numbers, the last one `changed`."""
  array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
  for value in changed.values():
    array[-1, -1] = value
  with io.BytesIO() as file:
    save(file, array)
    return file.getvalue()


def teacher(name, path, error=None, **more):
  """A row for --teacher."""
  return embedding(
    name,
    "--text_columns=answer",
    "--loss=distillation",
    f"--teacher={path}",
    error=error or path,
    **more,
  )


_NPY = "{case}/teacher.npy"
_MODELS = [
  teacher("too few vectors", _NPY, files={"teacher.npy": vectors(3, 8)}),
  teacher("vectors without a width", _NPY, files={"teacher.npy": vectors(4)}),
  teacher("an empty file of vectors", _NPY, files={"teacher.npy": b""}),
  teacher("an .npz file of vectors", _NPY,
          files={"teacher.npy": vectors(4, 8, save=np.savez)}),
  teacher("a vector that is NaN", _NPY, "{case}/teacher.npy: 1 vectors",
          files={"teacher.npy": vectors(4, 8, last=np.nan)}),
  teacher("a vector beyond float32", _NPY, "{case}/teacher.npy: 1 vectors",
          files={"teacher.npy": vectors(4, 8, last=1e300)}),
  *(
    teacher(f"vectors of {name}", _NPY, "{case}/teacher.npy: all vectors",
            rule="nothing to learn",
            files={"teacher.npy": vectors(
              4, 8, save=lambda file, array, value=value: np.save(
                file, np.full_like(array, value)))})
    for name, value in (("zeros", 0.0), ("ones", 1.0))
  ),
  teacher("vectors that are a text", _NPY, files={"teacher.npy": "1 2 3\n"}),
  teacher("vectors of another width", _NPY, "--teacher: its vectors have 4",
          files={"teacher.npy": vectors(4, 4)}),
  teacher("a file of vectors that is missing", _NPY, kind=OSError),
  teacher("a teacher that is a classifier", "{world}/trained"),
  embedding("a teacher without distillation", "--teacher={world}/trained",
            error="--teacher"),
  embedding("distillation without a teacher", "--loss=distillation",
            error="--teacher"),
  embedding("a loss of other data", "--loss=triplet"),
  embedding("a width that is too large", "--matryoshka_dims=16,8"),
  embedding("too many weights", "--matryoshka_dims=8,4",
            "--matryoshka_weights=1,1,1"),
  embedding("no config beside the checkpoint", "--bert_config_file=",
            "--init_checkpoint={case}/model.ckpt", error="--bert_config_file",
            files=checkpoint()),
  embedding("no vocabulary beside the checkpoint", "--vocab_file=",
            "--init_checkpoint={case}/model.ckpt", error="--vocab_file",
            files=checkpoint()),
  embedding("a model to use that is missing", "--nodo_train", "--do_eval",
            "--dev_file={world}/beir", "--init_checkpoint=", error="{out}"),
  embedding("a projection that is missing", *_EVALUATE,
            "--dev_file={world}/beir", "--projection_dim=4",
            error="{world}/trained_embeddings"),
  embedding("another pooling", "--output_dir={world}/trained_embeddings",
            "--pooling=cls", error="embedding pooling 'mean'"),
  embedding("a folder of tags", "--output_dir={world}/trained_ner",
            error="{world}/trained_ner"),
  embedding("a corrupt checkpoint", "--init_checkpoint={case}/model.ckpt",
            error="{case}/model.ckpt", files=checkpoint(data=flip(4000))),
  embedding("a corrupt trained checkpoint",
            "--output_dir={case}/trained", *_EVALUATE[1:],
            "--dev_file={world}/beir", error="{case}/trained/model.ckpt-1",
            files=trained("trained_embeddings", data=flip(900))),
  embedding("weights that are NaN", "--init_checkpoint={world}/nan.ckpt",
            error="{world}/nan.ckpt"),
]  # fmt: skip

# Outputs over inputs, and flags out of range


def overwriting(name, file, *arguments, content="ann sat\n"):
  return embedding(
    name,
    "--output_dir={case}",
    *arguments,
    error=f"{{case}}/{file}",
    files={file: content},
  )


_OUTPUTS = [
  overwriting("texts to encode", "a_vectors.npy", "--do_predict",
              "--predict_file={case}/a_vectors.npy"),
  overwriting("queries", "a_results.jsonl", "--do_predict",
              "--corpus_file={world}/lines.txt",
              "--query_file={case}/a_results.jsonl"),
  overwriting("vectors of a teacher", "a_vectors.npy",
              "--text_columns=answer", "--loss=distillation",
              "--teacher={case}/a_vectors.npy", content=vectors(4, 8)),
]  # fmt: skip

_FLAGS = [
  embedding(argument, argument, error=argument.partition("=")[0])
  for argument in (
    "--temperature=0",
    "--temperature=nan",
    "--margin=-1",
    "--top_k=0",
    "--projection_dim=0",
    "--matryoshka_dims=8,0",
    "--matryoshka_weights=-1",
    "--max_score=inf",
    "--max_seq_length=33",
    "--train_batch_size=5",
    "--gradient_accumulation_steps=3",
    "--freeze_layers=3",
    "--best_metric=beauty",
  )
]

ROWS = [*_TEXTS, *_SEARCHES, *_MODELS, *_OUTPUTS, *_FLAGS]
