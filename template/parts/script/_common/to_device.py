def to_device(values: np.ndarray, device: torch.device = DEVICE) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
