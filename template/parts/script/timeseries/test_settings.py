SMALL = ["--history", "24", "--horizon", "4", "--split", "1200,300,300", "--batch_size", "16"]
SMALL += ["--width", "8"]
