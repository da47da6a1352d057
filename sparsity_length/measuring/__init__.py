"""What the measuring stages share."""
