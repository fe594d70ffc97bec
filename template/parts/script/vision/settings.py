@dataclass
class Settings(RunSettings):
    """All settings, with those of this script."""

    # data
    data: str = setting(
        "", "folder with a folder for each class, or .npz, or MNIST's files; if empty, shapes"
    )
    size: int = setting(0, "sides of the images in pixels; 0: those of arrays, and 64 for files")
    split: str = setting(
        "0.8,0.1,0.1", "training, validation, test where the data have none: fractions or images"
    )
    # augmentation of training images: each draw depends on the seed, the epoch and the image alone
    shift: int = setting(1, "largest shift in pixels; 0: none", low=0)
    flip: bool = setting(
        True, "mirror half of the images, and average over both in evaluations; 0 for digits"
    )
    crop: float = setting(
        1.0, "smallest area of a random crop; 0.35 suits photos, 1: no crop", low=1e-4, high=1
    )
    cutout: float = setting(
        0.0, "side of a hidden square, as a fraction of the image's side", high=1
    )
    label_smoothing: float = setting(
        0.1, "probability that training moves from the true class to all classes", high=1
    )
    # model
    width: int = setting(24, "channels of the first group; 24 suits a CPU, 64 a GPU")
    depth: int = setting(
        0, "groups, each of which halves the sides; 0: until fewer than 6 pixels are left"
    )
    # optimizer
    batch_size: int = setting(256, "images in a micro-batch, over which batch norm takes means")
    learning_rate: float = setting(1.2e-2, "peak learning rate of the schedule", high=1)
    weight_decay: float = setting(
        0.05, "weight decay of matrices; biases and norms have none", high=1
    )
    # optimizations
    channels_last: bool = setting(
        True, "convolutions are faster if the channels of a pixel are together", off=False
    )
    resident: bool = setting(
        True, "the images stay on the device: no step waits for data", off=False
    )
