SMALL = ["--data", "pairs.tsv", "--split", "200,40,40", "--batch_size", "8", "--layers", "1"]
SMALL += ["--heads", "2", "--width", "16", "--hidden", "32"]
