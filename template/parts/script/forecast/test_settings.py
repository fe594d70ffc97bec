SMALL = ["--history", "28", "--horizon", "7", "--split", "0.6,0.2,0.2", "--batch_size", "64"]
SMALL += ["--width", "16", "--depth", "1"]
