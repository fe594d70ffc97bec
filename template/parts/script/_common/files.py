def find_file(name: str, is_folder: bool = False) -> Path:
    """Return the path of --data. Raise an error if there is no such file or folder."""
    if "://" in name:
        raise UserError(f"{name} is an address: --data: download the file, and give its path")
    path = os.path.expanduser(name)
    if not os.path.exists(path):
        raise UserError(f"no such file: {path}: check --data")
    if os.path.isdir(path) != is_folder:
        kinds = ["a file", "a folder"]
        found = kinds[not is_folder]
        raise UserError(f"{path} is {found}: --data: give the path of {kinds[is_folder]}")
    return Path(path)


def to_device(values: np.ndarray, device: torch.device = DEVICE) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
