"""Codecs: bytes of Puffin, deletion vectors, manifests, manifest lists and Parquet."""
