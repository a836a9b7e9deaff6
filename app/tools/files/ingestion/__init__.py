"""From a file to what is searched: its text, its chunks, and who reads them."""
