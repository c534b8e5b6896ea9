"The committed notebooks as tests look at them: read once, and not validated each time."
from functools import cache
from pathlib import Path

from nbformat.v4 import reads_json


@cache
def book(path):
    "The notebook at `path`. It is shared: nobody changes it."
    return reads_json(Path(path).read_text(encoding="utf-8"))
