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
            rows = [row for row in csv.reader(file, skipinitialspace=True) if row]
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        raise UserError(f"cannot read the file ({error}): {path}: check --data") from None
    names = {*rows[0]} if rows else set()
    if len(rows) < 2 or len(names) < 2 or "" in names:
        raise UserError(
            f"no table: {path}: write rows after a header with at least two names, "
            "separated by commas, and none of them empty, as a pandas index is"
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise UserError(
                f"{len(row)} cells for {len(names)} different column names: "
                f"{path}, row {number}: fix it"
            )
    return rows
