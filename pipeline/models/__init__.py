"""Language models behind one interface; ai2-olmo stays behind this door."""
