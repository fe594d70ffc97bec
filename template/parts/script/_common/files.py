def find_file(name: str) -> Path:
    """Return the path of --data. Raise an error if there is no such file or folder."""
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(f"no such file: {name}: check --data")
    return path


def to_device(values: np.ndarray, device: torch.device = DEVICE) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
