"""Long work: its progress bars, and sharing it between processes."""
