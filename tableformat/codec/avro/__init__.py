"""Avro: containers, manifests and manifest lists."""
