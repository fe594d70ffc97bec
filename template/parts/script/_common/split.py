def split_rows(split: str, num_rows: int, rounded: int = 0) -> list[int]:
    """Return the row at which each split ends.

    rounded: which fraction is rounded, besides that of test.
    """
    try:
        sizes = [float(size) for size in split.split(",")]
        if abs(sum(sizes) - 1) < 1e-6:  # fractions
            sizes = [num_rows * size for size in sizes]
            sizes[2] = round(sizes[2])
            sizes[rounded] = min(round(sizes[rounded]), num_rows - sizes[2])
            sizes[1 - rounded] = num_rows - sizes[2] - sizes[rounded]
        ends = np.cumsum(sizes)
        if len(sizes) != 3 or min(sizes) < 0 or 0 in sizes[:2] or (ends % 1).any():
            raise ValueError
        if ends[2] > num_rows:
            raise ValueError
    except (ValueError, IndexError):
        raise UserError(
            f"'{split}' does not split {num_rows} rows: --split: "
            "use fractions that add up to 1, such as 0.7,0.15,0.15, or numbers of rows"
        ) from None
    return ends.astype(int).tolist()
