def split_rows(split: str, num_rows: int, what: str = "rows") -> list[int]:
    """Return the row, or the group, at which each split ends."""
    try:
        train, validation, test = map(float, split.split(","))
        ends = np.cumsum([train, validation, test])
        if abs(ends[2] - 1) < 1e-6:  # fractions
            last = num_rows - round(num_rows * test)
            first = min(round(num_rows * train), last)
            ends = np.array([first, last, num_rows])
        if not 0 < ends[0] < ends[1] <= ends[2] <= num_rows or (ends % 1).any():
            raise ValueError
    except ValueError:
        raise UserError(
            f"'{split}' does not split {num_rows} {what}: --split: "
            "use fractions that add up to 1, such as 0.7,0.15,0.15, or numbers of rows"
        ) from None
    return ends.astype(int).tolist()
