SMALL = ["--data", "small.h5", "--batch_size", "16", "--width", "8", "--shuffle_block", "200"]
