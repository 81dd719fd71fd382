"""Storage: atomic files and folders, checkpoints with manifests, the run folder, and a lock for one run per folder."""
