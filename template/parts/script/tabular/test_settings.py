SMALL = ["--split", "0.02,0.01,0.97", "--width", "8"]
SMALL += ["--batch_size", "64", "--learning_rate", "0.003"]  # so that 30 steps learn
