"""Puffin: deletion vectors."""
