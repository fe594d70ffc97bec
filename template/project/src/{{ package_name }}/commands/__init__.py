"""One file per command; `__main__` lists this folder.

The `type=` of an argument that is a path is `typed_path` of `engine/runs.py`.
"""
