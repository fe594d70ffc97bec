def find_file(name: str) -> Path:
    """Return the path of --data. Raise an error if nothing is there."""
    if "://" in name:
        raise UserError(f"{name} is an address: --data: download the file, and give its path")
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder: --data: give the path of a file")
    if not os.path.exists(path):
        raise UserError(f"no such file: {path}: check --data")
    return Path(path)


def to_device(values: np.ndarray, device: torch.device = DEVICE) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
