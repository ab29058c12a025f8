"""Files: versioned JSON, finished work that outlives a kill, plans on a hub."""
