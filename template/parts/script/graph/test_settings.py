SMALL = ["--batch_size", "4", "--width", "8", "--window", "6", "--neighbors", "3"]
SMALL += ["--correlation_days", "30", "--split", "150,40,40"]
