"""One file per verb of the command line; `__main__` lists this folder."""
