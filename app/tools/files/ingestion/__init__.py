"""Indexing of files: extracts text, splits it into chunks, embeds and stores them."""
