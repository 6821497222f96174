"""Copies, exact and near, and text of evaluation tasks: found by hashes, without moving any text."""
