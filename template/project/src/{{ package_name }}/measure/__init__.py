"""What the extras that measure need, and nothing else imports."""
