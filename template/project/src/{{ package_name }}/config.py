"""Moved: the settings that you own are in `settings.py`, all others in `engine/settings.py`.

An update writes this file, so that your edits of the former one conflict instead of vanishing. Move
them to `settings.py`. Nothing imports this file: delete it.
"""
