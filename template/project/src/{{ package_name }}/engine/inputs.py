"""What the files are that users name, by their first bytes: a name may be wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from .errors import UserError

# What a file is, by a regular expression of its first bytes, which are read as Latin-1; and how to
# convert it, for commands that do not read it.
KINDS = yaml.safe_load(r"""
# Compressed, as pyarrow reads it.
'\x1f\x8b': [gzip, '']
'BZh[1-9]1AY&SY': [bz2, '']
'\x28\xb5\x2f\xfd': [zstd, '']
'\x04\x22\x4d\x18': [lz4, '']

# Columns.
'PAR1[^ -~]': [a Parquet file, 'decompress it, or convert it to what `prepare --help` names']

'ARROW1\0': [an Arrow file, write it as Parquet]
'\xff\xff\xff\xff': [an Arrow stream, write it as Parquet]

'FEA1.{0,8}\0': [a Feather file of version 1, write it as Parquet]
'ORC.*\0': [an ORC file, write it as Parquet]

'Obj\x01': [an Avro file, write it as Parquet]
'SQLite format 3\0': [a SQLite database, export it as CSV]

# JSON.
'(\xef\xbb\xbf)?\s*\{[ \t]*"': [JSON lines, 'pandas.read_json(OLD, lines=True).to_csv(NEW)']
'(\xef\xbb\xbf)?\s*(\{\s*"|(\[\s*)+[{"])': [a JSON document, 'run `jq -c ".[]" OLD > NEW`']

# Arrays.
'PK\x03\x04.{26}[^\0]{0,99}\.npy': [an .npz archive of NumPy, load it; write a table or HDF5]
'\x93NUMPY': [a NumPy array, load it; write a table or HDF5]

'\x89HDF': [an HDF5 file, write its datasets as the columns of a table]
'CDF[\x01\x02\x05]': [a netCDF 3 file, 'run `nccopy -k nc4 OLD NEW`, which writes HDF5']

'MATLAB 5.0 MAT-file': [a MATLAB file, 'load it with scipy.io, and write a table or HDF5']
'\x80[\x02-\x05]': [a pickle, 'load it where you trust it, and write a table']

# Archives and documents.
'PK\x03\x04.{26}(\[Content|_rels|docProps|mimetype)': [an office document, export sheets as CSV]
'\xd0\xcf\x11\xe0': [an office document, export sheets as CSV]
'PK\x03\x04|PK\x05\x06': [a ZIP archive, unpack it]

'.{257}ustar|7z\xbc\xaf|Rar!\x1a|\x1f\x9d': [an archive, unpack it]
'\xfd7zXZ': [a file compressed with xz, run `unxz` on it]

'version https://git-lfs': [a pointer of Git LFS, run `git lfs pull`]
'%PDF-': [a PDF document, extract its text]
'\x89PNG|\xff\xd8\xff|GIF8[79]a': [an image, use a project for images]
""")


def kind_of(path: Path, file: Any, *known: str) -> str:
    """Return what the opened file of a path is, or an empty text for a plain text.

    Raises `UserError` for a kind that is neither `known` nor a way of compression.
    """
    head = file.peek()[:512].decode("latin-1")
    for pattern, (kind, remedy) in KINDS.items():
        if re.match(pattern, head, re.DOTALL):
            if remedy and kind not in known:
                raise UserError(f"cannot read {kind}", str(path), remedy)
            return str(kind)
    return ""
