SMALL = ["--split", "0.08,0.02,0.9", "--width", "8", "--batch_size", "64"]
