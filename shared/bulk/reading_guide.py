"""Write the part of a dataset's card that says how its format is read, and with what result.

Input: a plan. Output: Markdown. A test runs every example in it. This module needs none of the
libraries that it names.
"""

from collections.abc import Iterator
from typing import Final

from imagefleet.shared.bulk.file_layout import EXTENSION
from imagefleet.shared.bulk.plan import BulkFormat, Plan

_WITH_IMAGES: Final = {
    BulkFormat.WEBDATASET: """\
import os
import datasets

rows = datasets.load_dataset(os.getcwd(), split="train")
print(rows[0]["{extension}"].size, rows[0]["json"]["prompt"], rows[0]["json"]["extra"])
""",
    BulkFormat.PARQUET: """\
import json
import os
import datasets

rows = datasets.load_dataset(os.getcwd(), split="train")
print(rows[0]["image"].size, rows[0]["prompt"], json.loads(rows[0]["metadata"])["extra"])
""",
}
_WITH_IMAGES[BulkFormat.FILES] = _WITH_IMAGES[BulkFormat.PARQUET]
_WEBDATASET: Final = """\
import glob
import webdataset

shards = sorted(glob.glob("[0-9]*.tar"))
samples = webdataset.WebDataset(shards, shardshuffle=False).decode("pil")
for sample in samples:
    print(sample["__key__"], sample["{extension}"].size, sample["json"]["prompt"])
"""
_PARQUET: Final = (
    """\
import glob
import pandas

files = sorted(glob.glob("[0-9]*.parquet"))
table = pandas.read_parquet(files, columns=["image_name", "prompt", "seed", "metadata"])
""",
    """\
import polars

table = polars.read_parquet("[0-9]*.parquet", columns=["image_name", "prompt", "seed", "metadata"])
print(table.select("prompt", seed=polars.col("metadata").str.json_path_match("$.seed")))
""",
    """\
import duckdb

table = duckdb.sql("SELECT image_name, prompt, seed, metadata FROM '[0-9]*.parquet'")
print(duckdb.sql("SELECT prompt, metadata->'$.extra' AS extra FROM '[0-9]*.parquet'"))
""",
)
_JSON_LINES: Final = (
    """\
import glob
import json
import pandas

files = sorted(glob.glob("[0-9]*.jsonl"))
lines = (line for file in files for line in open(file, encoding="utf-8"))
table = pandas.DataFrame(map(json.loads, lines))
""",
    """\
import polars

lines = polars.read_lines("[0-9]*.jsonl")
print(lines.select(prompt=polars.col("line").str.json_path_match("$.prompt")))
""",
    """\
import duckdb

lines = duckdb.sql("SELECT json FROM read_ndjson_objects('[0-9]*.jsonl')")
print(duckdb.sql("SELECT json->>'$.prompt' AS prompt, json->'$.extra' AS extra FROM lines"))
""",
)
_ABOUT_VALUES: Final = {
    BulkFormat.WEBDATASET: """\
`datasets` takes the types of all samples from the head of this file: a value that a sample lacks is
None, and values of several types are text. `webdataset` and `NNNNN.jsonl` have each value as it was
given.""",
    BulkFormat.PARQUET: """\
`metadata` is JSON, with every value as it was given. `cfg` is rounded to 32 bits.""",
    BulkFormat.FILES: """\
`metadata` is JSON, with every value as it was given. `datasets` may read the folders in any order;
`row` is the number of the prompt.""",
}


def reading_guide(plan: Plan) -> str:
    """Return a section of Markdown, without an empty line at its end."""
    examples = "\n".join(f"```python\n{example}```\n" for example in _with_images(plan))
    if plan.format is BulkFormat.PARQUET:
        source, tables = "With pandas, polars and DuckDB, without the images:", _PARQUET
    else:
        source = "The metadata alone, in `NNNNN.jsonl`, with pandas, polars and DuckDB:"
        tables = _JSON_LINES
    without_images = "\n".join(f"```python\n{example}```\n" for example in tables)
    return f"""## How to read it

The examples run in the folder of this file. For a dataset on the Hub write its name in the place of
`os.getcwd()`; copy one in a bucket to a folder first.

{examples}
{source}

{without_images}
{_ABOUT_VALUES[plan.format]} `extra` holds the columns of the table of prompts that are no
parameters. A parameter that has no effect, such as `guidance_rescale` 0, is left out."""


def _with_images(plan: Plan) -> Iterator[str]:
    extension = EXTENSION[plan.image_format]
    yield _WITH_IMAGES[plan.format].format(extension=extension)
    if plan.format is BulkFormat.WEBDATASET:
        yield _WEBDATASET.format(extension=extension)
