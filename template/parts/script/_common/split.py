def split_rows(split: str, num_rows: int) -> list[int]:
    """Return the row at which each split ends."""
    try:
        ends = np.cumsum([float(share) for share in split.split(",")])
    except ValueError:
        ends = np.zeros(3)
    if abs(ends[-1] - 1) < 1e-6:
        ends = np.round(ends * num_rows)
    if len(ends) != 3 or not 0 < ends[0] <= ends[1] <= ends[2] <= num_rows or (ends % 1).any():
        raise UserError(
            f"'{split}' does not split {num_rows} rows: --split: "
            "use fractions that add up to 1, such as 0.7,0.15,0.15, or numbers of rows"
        )
    return ends.astype(int).tolist()
