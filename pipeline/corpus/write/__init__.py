"""From intermediate files to corpus shards: mixture, order and Arrow files."""
