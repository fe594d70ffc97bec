if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
