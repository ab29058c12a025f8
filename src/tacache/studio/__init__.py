"""The studio: a local page on which people choose a speed by looking.

What the page computes is here, without a page: jobs on one model that several people share, the
plans to choose from, pictures and their comparison, charts, and files that come and go. `page` puts
it on the screen by Gradio, and `server` opens the page to a browser.
"""
