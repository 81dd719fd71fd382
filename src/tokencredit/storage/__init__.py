"""What reaches the disk: files and folders that are there whole or not at all, and one run at a time in a folder."""
