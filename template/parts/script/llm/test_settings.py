SMALL = ["--data", str(HERE / "train.py"), "--block_size", "16", "--batch_size", "8"]
SMALL += ["--layers", "2", "--heads", "2", "--width", "16", "--dropout", "0.1"]
