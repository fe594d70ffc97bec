def read_number(cell: str) -> float:
    """Return the number in a cell, or NaN if it is no finite number."""
    try:
        number = float(cell.replace("_", "x"))  # Python reads 1_2 as 12
    except ValueError:
        return math.nan
    return number if abs(number) < 3.4e38 else math.nan


def read_rows(path: Path) -> list[list[str]]:
    """Return the cells of a CSV file, with the header first."""
    open_file: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rt", encoding="utf-8-sig", newline="") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (EOFError, ValueError, csv.Error, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"cannot read the file ({error}): {path}: check --data") from None
    header = rows[0] if rows else []
    for delimiter in ";\t|":
        if len(header) == 1 and delimiter in header[0]:
            raise UserError(
                f"cells are separated by {delimiter!r}: {path}: separate them by commas"
            )
    if len(rows) < 2 or len(header) < 2:
        raise UserError(f"no data: {path}: write a header with at least two columns, and rows")
    if "" in header:
        raise UserError(
            f"column {header.index('') + 1} has no name: {path}, row 1: "
            "give it a name; if it is a pandas index, export index=False"
        )
    num_names = len({*header})
    for number, row in enumerate(rows, start=1):
        if len(row) != num_names:
            raise UserError(
                f"{len(row)} cells for {num_names} different column names: "
                f"{path}, row {number}: fix it"
            )
    return rows
