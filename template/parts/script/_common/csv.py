def read_number(cell: str) -> float:
    """Return the number in a cell, or NaN if it is no finite number."""
    text = cell.replace("_", "x")  # Python reads 1_2 as 12
    # (5), 5- and - 5 are -5.
    text = re.sub(r"^\( *(.+?) *\)$|^(.+?) *-$|^- +", r"-\1\2", text.replace("−", "-"))
    # Thousands are in groups: 1,000 or 1 000 or 1'000. Others, as 0,5, have a decimal comma.
    if re.fullmatch(r"[-+]?[1-9]\d{0,2}([ ,'’])\d{3}(\1\d{3})*(\.\d*)?", text):
        text = re.sub("[ ,'’]", "", text)
    try:
        number = float(text)
    except ValueError:
        return math.nan
    if abs(number) < 3.4e38:
        return number
    return math.nan


def read_rows(path: Path) -> list[list[str]]:
    """Return the cells of a CSV file, with the header first."""
    open_file: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rt", encoding="utf-8-sig") as file:
            # In one spelling: letters composed, plain spaces, no signs without a width.
            text = unicodedata.normalize("NFC", re.sub("[\u200b\u2060\ufeff]", "", file.read()))
            rows = [
                [" ".join(cell.split()) for cell in cells]
                for cells in csv.reader(io.StringIO(text), skipinitialspace=True, strict=True)
                if cells
            ]
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        raise UserError(f"cannot read the file ({error}): {path}: check --data") from None
    names: set = set(*rows[:1])  # also of no rows
    if len(rows) < 2 or len(names) < 2 or "" in names:
        raise UserError(
            f"no table: {path}: write rows after a header with at least two names, separated by "
            "commas; remove `sep=` and comments above it, and empty names (a last comma, an index)"
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise UserError(
                f"{len(row)} cells for {len(names)} different column names: {path}, row {number}: "
                "name columns once, quote commas in cells, remove a last comma and comments"
            )
    return rows
