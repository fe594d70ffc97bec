"""Columns of texts as numbers: the place of each cell in a list of the different ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .formats import best_formats

if TYPE_CHECKING:
    from .tables import Block


def read_texts(block: Block, name: str, gaps: tuple[str, ...] = ()) -> tuple[np.ndarray, list[str]]:
    """(rows,) places in the list of different cells, −1 for a missing one; and that list.

    gaps: as of `Block.column`.
    """
    texts = block.column(name, gaps).cast(pa.string())
    encoded = texts.combine_chunks().dictionary_encode()
    places = encoded.indices.fill_null(-1).to_numpy()
    cells = encoded.dictionary.to_pylist()
    for place, cell in enumerate(cells):
        if "\0" in cell:
            row = int((places == place).argmax())
            raise block.error(f"{cell!r} holds a NUL byte", row, name, "fix it")
    return places, cells


def is_time(block: Block, name: str) -> bool:
    """Whether at least half of a column's cells are times, none of them a bare number."""
    column = block.column(name)
    if not pa.types.is_string(column.type):
        return pa.types.is_temporal(column.type)
    cells = column.unique().drop_null()
    if not len(cells) or str(cells[0]).isdecimal():
        return False
    return bool(best_formats(cells, block.source.formats))
