"""What `commands/prepare.py` needs: reading tables, learning scales, splitting rows."""
