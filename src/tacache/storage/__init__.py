"""Files: versioned JSON, journals of finished work, and plans on a hub."""
